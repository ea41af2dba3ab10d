// The C interface: build an engine from matrices, vectors and steps; run a program over rows in one call.
#if defined(__linux__)
#include <malloc.h>
#endif

#include "attend.hpp"
#include "engine.hpp"
#include "experts.hpp"
#include "linear.hpp"
#include "recurrent.hpp"

namespace hs {

void Run::all() {
    if (!c.prompt && p.recurrent)
        for (int w = 0; w < c.windows; w++) c.window[w].stream->turn ^= 1;
    if (p.turn_floats) turns();
    if (c.hidden)
        for (int r = 0; r < c.rows; r++) memcpy(at(r, p.hidden_in), c.hidden + (int64_t)r * p.hidden_width, (size_t)p.hidden_width * 4);
    for (const Step& s : p.steps) {
        switch (s.kind) {
            case EMBED: embed(s); break;
            case MAP: map(s); break;
            case LINEAR: c.prompt ? linear_tiles(s, c.rows) : linear_rows(s, nullptr, c.rows); break;
            case HEAD: head(s); break;
            case TURN: turn(s); break;
            case ATTEND: c.prompt ? attend_tiles(s) : attend_rows(s); break;
            case CONV: conv(s); break;
            case SSM: ssm(s); break;
            case ROUTE: route(s); break;
            case EXPERTS: experts(s); break;
            default: break;
        }
    }
    if (c.hidden_out)
        for (int r = 0; r < c.rows; r++) memcpy(c.hidden_out + (int64_t)r * p.hidden_width, at(r, p.hidden_out), (size_t)p.hidden_width * 4);
}

// Memory that all threads write into, sized before they start.
static void prepare(Engine& e, const Call& c) {
    const Program& p = *e.programs[(size_t)c.program];
    const size_t rows = (size_t)c.rows;
    e.work.need(rows * (size_t)p.columns + 64);
    e.turned.need(rows * (size_t)p.turn_floats + 64);
    size_t wide = 0;
    for (const Step& s : p.steps) wide = std::max(wide, (size_t)s.width);
    e.row_bytes.need(std::max((rows + TILE_ROWS) * (size_t)row_elements((int64_t)wide) * sizeof(Element), (size_t)c.rows * Row::bytes((int64_t)wide)));
    e.shared.need(std::max(c.prompt ? (size_t)c.draws * (wide + 64) : rows * (wide + 64), (size_t)p.vocab + 64));
    e.logits.need((size_t)c.draws * (size_t)p.vocab + 64);
    if (!c.prompt) {
        size_t most = 1, entry = 0;
        for (int w = 0; w < c.windows; w++) most = std::max(most, (size_t)((c.window[w].start + c.window[w].rows - 1) / PAGE + 1));
        for (const KvShape& kv : p.kv) entry = std::max(entry, (size_t)(kv.padded + 16) * (size_t)kv.heads);
        e.parts.need(rows * most * entry + 64);
    }
}

// fill(block) for every block of a matrix, over the pool.
template <class Fill>
static void fill_blocks(Engine* e, const Matrix& m, Fill fill) {
    const int64_t all = m.blocks * m.experts, parts = std::min<int64_t>(all, 8 * e->pool.count());
    e->pool.begin();
    e->pool.split(parts, [&](int piece, int) {
        for (int64_t b = all * piece / parts; b < all * (piece + 1) / parts; b++) fill(b);
    });
    e->pool.end();
}
}  // namespace hs

using namespace hs;

extern "C" {

// 1: AVX-512 VNNI and so on; a line for people and for the contract.
const char* hs_form() {
    return
#if defined(__AVX512VNNI__)
        "AVX-512 VNNI"
#elif defined(__AVXVNNI__)
        "AVX-VNNI"
#elif defined(__AVX2__)
        "AVX2"
#elif defined(__ARM_FEATURE_DOTPROD)
        "NEON dotprod"
#elif defined(__ARM_NEON)
        "NEON"
#else
        "portable"
#endif
        ;
}
const char* hs_prompt_form() { return PROMPT_FORM; }

Engine* hs_new(int32_t threads, int32_t fine) {
    Engine* e = new Engine(threads);
    e->fine = fine != 0;
    return e;
}
void hs_free(Engine* e) { delete e; }

// Give the memory of what was freed while loading back to the system.
void hs_trim() {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

// A matrix of `experts` stacked (n, k); returns its number, -1 without memory. Filled by hs_fill_affine or hs_fill_dense.
int32_t hs_matrix(Engine* e, int32_t storage, int32_t group, int32_t scales, int32_t experts, int64_t n, int64_t k) {
    Matrix m{storage, group, scales, experts, n, k, 0, 0, nullptr};
    m.size();
    m.data = (uint8_t*)allocate((size_t)(m.blocks * m.block_bytes * experts) + 8192);
    if (!m.data) return -1;
    e->matrices.push_back(m);
    return (int32_t)e->matrices.size() - 1;
}
int64_t hs_matrix_bytes(Engine* e, int32_t id) {
    const Matrix& m = e->matrices[(size_t)id];
    return m.blocks * m.block_bytes * m.experts;
}

void hs_fill_affine(Engine* e, int32_t id, const uint8_t* words, int32_t bits, const uint8_t* scales, const uint8_t* biases) {
    const Matrix& m = e->matrices[(size_t)id];
    fill_blocks(e, m, [&](int64_t b) { pack_affine(m, b, words, bits, scales, biases); });
}
void hs_fill_dense(Engine* e, int32_t id, const uint8_t* values) {
    const Matrix& m = e->matrices[(size_t)id];
    fill_blocks(e, m, [&](int64_t b) { pack_dense(m, b, values); });
}

int32_t hs_vector(Engine* e, const float* values, int64_t n) {
    e->vectors.emplace_back(values, values + n);
    e->vectors.back().resize((size_t)(n + 15) / 16 * 16 + 16);
    return (int32_t)e->vectors.size() - 1;
}
int32_t hs_turn(Engine* e, int32_t dims, const double* speed) {
    e->turns.push_back(Turn{dims, std::vector<double>(speed, speed + dims / 2)});
    return (int32_t)e->turns.size() - 1;
}

int32_t hs_program(Engine* e, int64_t columns, int32_t hidden_in, int32_t hidden_out, int32_t hidden_width, int32_t vocab) {
    auto p = std::make_unique<Program>();
    p->columns = columns;
    p->hidden_in = hidden_in;
    p->hidden_out = hidden_out;
    p->hidden_width = hidden_width;
    p->vocab = vocab;
    e->programs.push_back(std::move(p));
    return (int32_t)e->programs.size() - 1;
}
int32_t hs_program_kv(Engine* e, int32_t program, int32_t heads, int32_t kv_heads, int32_t head_dim, float scale, int64_t at) {
    Program& p = *e->programs[(size_t)program];
    p.kv.push_back(KvShape{heads, kv_heads, head_dim, (head_dim + 15) / 16 * 16, scale});
    p.kv_at.push_back(at);
    return (int32_t)p.kv.size() - 1;
}
int32_t hs_program_turn(Engine* e, int32_t program, int32_t turn) {
    Program& p = *e->programs[(size_t)program];
    p.turns.push_back(turn);
    p.turn_at.push_back((int32_t)p.turn_floats);
    p.turn_floats += e->turns[(size_t)turn].dims;
    return (int32_t)p.turns.size() - 1;
}
void hs_program_steps(Engine* e, int32_t program, const Step* steps, int64_t count) {
    Program& p = *e->programs[(size_t)program];
    p.steps.assign(steps, steps + count);
    for (const Step& s : p.steps) p.recurrent |= s.kind == CONV || s.kind == SSM;
}

// Floats of a stream's recurrent state, and of the inputs that 16 rows of a window leave for the commit.
void hs_state(Engine* e, int64_t state, int64_t replay) {
    e->state_floats = state;
    e->replay_floats = replay;
}
Stream* hs_stream(const Engine* e) {
    Stream* s = new Stream();
    s->state.assign((size_t)e->state_floats + 16, 0.0f);
    for (auto& r : s->replay) r.resize((size_t)e->replay_floats + 16);
    return s;
}
float* hs_stream_state(Stream* s) { return s->state.data(); }
void hs_stream_free(Stream* s) { delete s; }
void hs_stream_pages(Stream* s, int16_t* const* pages, int64_t count) { s->pages.assign(pages, pages + count); }

void hs_run(Engine* e, const Call* call) {
    prepare(*e, *call);
    e->pool.begin();
    Run(*e, *call).all();
    e->pool.end();
    if (call->logits_out) memcpy(call->logits_out, e->logits.data, (size_t)call->draws * (size_t)e->programs[(size_t)call->program]->vocab * 4);
}

}  // extern "C"
