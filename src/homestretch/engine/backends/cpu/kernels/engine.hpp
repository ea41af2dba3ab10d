// A compiled program and what one call of it sees: steps, streams, windows, the workspace.
//
// The workspace has one row per token of the call; a value is a range of columns of it, fixed at load. The calling thread walks
// the steps and cuts each into pieces for the pool.
#pragma once
#include <memory>
#include <vector>

#include "attention.hpp"
#include "draws.hpp"
#include "matrix.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "tiles.hpp"

namespace hs {

enum Kind : int32_t { EMBED, MAP, LINEAR, HEAD, ATTEND, CONV, SSM, ROUTE, EXPERTS, TURN };
enum Form : int32_t { PASS, NORM, SILU_MUL, RELU2, GATED, ADD, CONCAT };
enum Act : int32_t { PLAIN, ACT_RELU2, ACT_SILU_MUL };

struct Segment {  // mirrors native.Segment: one weight of a linear step
    int32_t weight, second, bias, out, residual, act;
};
constexpr int SEGMENTS = 6;
struct Step {  // mirrors native.Step; columns where not said otherwise
    int32_t kind, form, a, b, width, wide_b, vector, groups, slot, segments, out, pad;
    Segment segment[SEGMENTS];
    int32_t p[16];
    float f[4];
};

struct Stream {
    std::vector<int16_t*> pages;
    std::vector<float> state;      // recurrent slots, committed
    std::vector<float> replay[2];  // inputs of a window's rows, for commit: of the last window, and of the running one
    int turn = 0;                  // which is the running one's
};

struct Window {  // mirrors native.Window
    Stream* stream;
    int32_t start, rows, first, kept, seen, pad;  // first: its first row of the call; seen: keys below it are not
};
struct Call {  // mirrors native.Call
    int32_t program, rows, windows, prompt, draws, wants_hidden;
    const Window* window;
    const int32_t* tokens;
    const float* hidden;      // rows of input "hidden", or null
    float* hidden_out;        // rows x width, or null
    const int32_t* draw_rows; // row of each draw
    const Draw* draw;
    Drawn* drawn;
    float* logits_out;        // draws x vocab, or null
};

struct Program {
    std::vector<Step> steps;
    int64_t columns = 0;  // of the workspace
    bool recurrent = false;
    int32_t hidden_in = -1, hidden_out = -1, hidden_width = 0, vocab = 0;
    std::vector<KvShape> kv;
    std::vector<int64_t> kv_at;  // 16-bit words into a page
    std::vector<int32_t> turns;      // rotary forms that its steps name by place
    std::vector<int32_t> turn_at;    // floats of each into a row's angles
    int64_t turn_floats = 0;
};

struct Turn {  // one rotary form: pairs rotated, base^(-2i/dims)/factor
    int32_t dims;
    std::vector<double> speed;
};

// (row, expert) pairs grouped by expert.
struct Grouped {
    std::vector<int> first, fill, active, row;  // first pair of each expert; experts with pairs; row of each pair
    std::vector<float> share;
};

template <class T>
struct Scratch {  // grows, keeps its memory, aligned for vectors
    T* data = nullptr;
    size_t size = 0;
    T* need(size_t n) {
        if (n > size) {
            free(data);
            size = n + n / 4;
            data = (T*)allocate(size * sizeof(T));
        }
        return data;
    }
    ~Scratch() { free(data); }
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};

struct Engine {
    Pool pool;
    bool fine = true;
    std::vector<Matrix> matrices;
    std::vector<std::vector<float>> vectors;
    std::vector<std::unique_ptr<Program>> programs;
    std::vector<Turn> turns;
    int64_t state_floats = 0, replay_floats = 0;  // of a stream
    Scratch<float> work, logits, turned, parts, shared, between;
    Scratch<uint8_t> row_bytes, between_bytes;
    Grouped grouped;
    struct Local {  // of one thread
        uint64_t formed = 0;  // the phase whose single row lies in floats and bytes
        Scratch<float> floats;
        Scratch<uint8_t> bytes;
        Scratch<Element> panel;
        Row row;
        const Row* point = nullptr;
    };
    std::vector<Local> local;
    std::vector<Row> rows;
    std::vector<const Row*> points;
    std::vector<const Element*> elements;
    Drawing drawing;

    explicit Engine(int threads) : pool(threads), local((size_t)pool.count()) {}
};

struct AttendStep;
struct ConvStep;

// A running call.
class Run {
   public:
    Run(Engine& e, const Call& c) : e(e), c(c), p(*e.programs[(size_t)c.program]), ld(p.columns), work(e.work.data) {}
    void all();

   private:
    Engine& e;
    const Call& c;
    const Program& p;
    const int64_t ld;
    float* const work;

    float* at(int row, int64_t column) const { return work + row * ld + column; }
    // Pieces for work of `units` equal parts: a few a thread, so that one that is late holds up little. One thread: one piece.
    int64_t pieces(int64_t units) const {
        const int64_t n = e.pool.count();
        return n == 1 ? std::min<int64_t>(1, units) : std::min(units, 4 * n);
    }
    // fn(row, thread) for every row below count.
    template <class Fn>
    void each_row(int count, Fn fn) {
        const int64_t parts = pieces(count);
        e.pool.split(parts, [&](int piece, int thread) {
            for (int64_t r = count * piece / parts; r < count * (piece + 1) / parts; r++) fn((int)r, thread);
        });
    }
    const float* formed(const Step& s, int row, float* into) const;
    void finish(const Segment& s, const float* row, float* to, int64_t block, int64_t outs, F y, F second) const;
    void embed(const Step& s);
    void map(const Step& s);
    void linear_rows(const Step& s, const int32_t* rows, int count);
    void linear_part(const Step& s, const int32_t* rows, int count, const Row* const* point, int64_t from, int64_t to) const;
    void linear_tiles(const Step& s, int count);
    int64_t units(const Segment& s) const;
    void turn(const Step& s);
    void turns();
    const float* turned(int row, int form) const;
    void rotate_heads(float* x, int row, int form, bool interleaved, int heads, int width) const;
    void remember(const AttendStep& a, const KvShape& kv, int16_t* head, int row, int h, int token) const;
    void attend_rows(const Step& s);
    void attend_tiles(const Step& s);
    const float* conv_input(const ConvStep& s, const Window& w, int r) const;
    void conv(const Step& step);
    void ssm(const Step& step);
    void route(const Step& s);
    void group_pairs(const Step& s, int experts, int top);
    void experts(const Step& s);
    template <class Fn>
    void each_expert_block(int64_t blocks, Fn fn);
    void experts_rows(const Step& s, const Matrix& first, const Matrix& second);
    void experts_tiles(const Step& s, const Matrix& first, const Matrix& second);
    void add_share(const Step& s, int pair, int64_t block, int left, F y) const;
    void head(const Step& s);
    void draw_one(const float* raw, const Draw& d, Drawn& out);
};

}  // namespace hs
