// The attention step in both lowerings, and rotary embedding where it stands alone.
#pragma once
#include "engine.hpp"
#include "prompt_attention.hpp"

namespace hs {

// Columns and forms of an attention step.
struct AttendStep {
    int q, k, v, out, turn_q, turn_k, interleaved_q, interleaved_k;
    explicit AttendStep(const Step& s)
        : q(s.a), k(s.b), v(s.p[0]), out(s.out), turn_q(s.p[1]), turn_k(s.p[2]), interleaved_q(s.p[3]), interleaved_k(s.p[4]) {}
};

// A window's rows see keys from `seen` on (and always their own).
inline int first_chunk(const Window& w) { return std::min(w.seen, w.start) / PAGE; }
inline int last_chunk(const Window& w) { return (w.start + w.rows - 1) / PAGE; }
inline Span span_of(const Window& w, int position, int chunk) {
    return Span{std::max(0, std::min(w.seen, position) - chunk * PAGE), std::min(PAGE, position - chunk * PAGE + 1)};
}

// cos and sin of every row for every rotary form, in double precision.
inline void Run::turns() {
    for (const Window* w = c.window; w < c.window + c.windows; w++)
        each_row(w->rows, [&](int r, int) {
            float* out = e.turned.data + (w->first + r) * p.turn_floats;
            for (int32_t form : p.turns) {
                const Turn& turn = e.turns[(size_t)form];
                const int half = turn.dims / 2;
                for (int i = 0; i < half; i++) {
                    const double angle = (double)(w->start + r) * turn.speed[(size_t)i];
                    out[i] = (float)std::cos(angle);
                    out[half + i] = (float)std::sin(angle);
                }
                out += turn.dims;
            }
        });
}

inline const float* Run::turned(int row, int form) const { return e.turned.data + row * p.turn_floats + p.turn_at[(size_t)form]; }

inline void Run::turn(const Step& s) {
    const int heads = s.p[0], width = s.p[1], form = s.p[2];
    each_row(c.rows, [&](int r, int) {
        float* out = at(r, s.out);
        memmove(out, at(r, s.a), (size_t)(heads * width) * 4);
        rotate_heads(out, r, form, s.p[3] != 0, heads, width);
    });
}

inline void Run::rotate_heads(float* x, int row, int form, bool interleaved, int heads, int width) const {
    if (form < 0) return;
    const float* turn = turned(row, form);
    const int dims = e.turns[(size_t)p.turns[(size_t)form]].dims;
    for (int h = 0; h < heads; h++) rotate(x + h * width, turn, dims, interleaved);
}

// Keys and values of one row for one KV head into its page.
inline void Run::remember(const AttendStep& a, const KvShape& kv, int16_t* head, int row, int h, int token) const {
    alignas(64) float key[1024];
    memcpy(key, at(row, a.k + h * kv.head_dim), (size_t)kv.head_dim * 4);
    rotate_heads(key, row, a.turn_k, a.interleaved_k, 1, kv.head_dim);
    write_kv(Chunk(head, kv), kv, token, key, at(row, a.v + h * kv.head_dim));
}

// Where a thread collects the queries of a task.
struct Queries {
    std::vector<const float*> q;
    std::vector<float*> outs;
    std::vector<Span> spans;
    std::vector<Part> parts;
    void size(size_t n) {
        q.resize(n);
        outs.resize(n);
        spans.resize(n);
        parts.resize(n);
    }
};

// Windows: a task is one chunk of one KV head of one window. It writes the window's own keys and values that fall into its chunk.
inline void Run::attend_rows(const Step& s) {
    const AttendStep a(s);
    const KvShape& kv = p.kv[(size_t)s.slot];
    const int group = kv.heads / kv.kv_heads, d = kv.head_dim;
    const int64_t entry = kv.padded + 16, at_slot = p.kv_at[(size_t)s.slot];
    int64_t tasks = 0;
    int most = 1;
    for (int w = 0; w < c.windows; w++) {
        tasks += (int64_t)(last_chunk(c.window[w]) + 1 - first_chunk(c.window[w])) * kv.kv_heads;
        most = std::max(most, last_chunk(c.window[w]) + 1);
    }
    auto part_at = [&](int row, int head, int chunk) { return e.parts.data + (((int64_t)row * kv.heads + head) * most + chunk) * entry; };
    auto task_of = [&](const Window& win, int h, int chunk, Engine::Local& local) {
        static thread_local Queries mine;
        mine.size((size_t)(win.rows * group));
        float* q = local.floats.need((size_t)(win.rows * group * d + 16));
        const bool only = first_chunk(win) == last_chunk(win);
        int16_t* head = win.stream->pages[(size_t)chunk] + at_slot + h * kv.head_words();
        const int begin = std::max(0, chunk * PAGE - win.start);  // rows before it lie in earlier chunks
        // A chunk comes from memory and is walked in short strides: ask for all of it at once.
        for (const char *line = (const char*)head, *end = line + 2 * kv.head_words(); line < end; line += 64) __builtin_prefetch(line);
        int count = 0;
        for (int r = begin; r < win.rows; r++) {
            const int position = win.start + r, row = win.first + r;
            if (position / PAGE == chunk) remember(a, kv, head, row, h, position % PAGE);
            float* mineq = q + (int64_t)count * d;
            memcpy(mineq, at(row, a.q + h * group * d), (size_t)(group * d) * 4);
            rotate_heads(mineq, row, a.turn_q, a.interleaved_q, group, d);
            for (int g = 0; g < group; g++, count++) {
                mine.q[(size_t)count] = mineq + g * d;
                mine.spans[(size_t)count] = span_of(win, position, chunk);
                mine.outs[(size_t)count] = part_at(row, h * group + g, chunk) + 16;
            }
        }
        chunk_all(Chunk(head, kv), kv, mine.q.data(), mine.spans.data(), count, mine.parts.data(), mine.outs.data());
        for (int i = 0; i < count; i++) {
            float* values = mine.outs[(size_t)i];
            const Part& part = mine.parts[(size_t)i];
            values[-16] = part.peak;
            values[-15] = part.sum;
            if (only) settle(at(win.first + begin + i / group, a.out + (h * group + i % group) * d), values, part.sum, d);
        }
    };
    const int64_t parts = pieces(tasks);
    e.pool.split(parts, [&](int piece, int thread) {
        int64_t base = 0;
        const int64_t from = tasks * piece / parts, to = tasks * (piece + 1) / parts;
        for (int w = 0; w < c.windows; w++) {
            const Window& win = c.window[w];
            const int skipped = first_chunk(win), chunks = last_chunk(win) + 1 - skipped;
            const int64_t here = (int64_t)chunks * kv.kv_heads;
            for (int64_t task = std::max<int64_t>(from - base, 0); task < std::min(here, to - base); task++)
                task_of(win, (int)(task / chunks), skipped + (int)(task % chunks), e.local[(size_t)thread]);
            base += here;
        }
    });
    for (int w = 0; w < c.windows; w++) {
        const Window& win = c.window[w];
        const int skipped = first_chunk(win);
        if (last_chunk(win) == skipped) continue;  // settled in its only chunk
        each_row(win.rows * kv.heads, [&](int i, int) {
            const int r = i / kv.heads, h = i % kv.heads, row = win.first + r, last = (win.start + r) / PAGE;
            float* first = part_at(row, h, skipped);
            Part sofar{first[0], first[1]};
            for (int chunk = skipped + 1; chunk <= last; chunk++) {
                float* more = part_at(row, h, chunk);
                join(sofar, first + 16, Part{more[0], more[1]}, more + 16, kv.padded);
            }
            settle(at(row, a.out + h * d), first + 16, sofar.sum, d);
        });
    }
}

// A prompt piece of one stream: all keys and values first, then tasks of 64 rows of one KV head that walk the chunks.
inline void Run::attend_tiles(const Step& s) {
    constexpr int SPAN = 64;
    const AttendStep a(s);
    const KvShape& kv = p.kv[(size_t)s.slot];
    const Window& win = c.window[0];
    const int group = kv.heads / kv.kv_heads, d = kv.head_dim, limit = SPAN * group;
    const int64_t at_slot = p.kv_at[(size_t)s.slot];
    each_row(win.rows, [&](int r, int) {
        const int position = win.start + r;
        for (int h = 0; h < kv.kv_heads; h++)
            remember(a, kv, win.stream->pages[(size_t)(position / PAGE)] + at_slot + h * kv.head_words(), r, h, position % PAGE);
    });
    const int spans = (win.rows + SPAN - 1) / SPAN;
    e.pool.split((int64_t)spans * kv.kv_heads, [&](int task, int thread) {
        static thread_local Queries mine;
        static thread_local std::vector<const Element*> queries;
        static thread_local std::vector<Part> sofar;
        mine.size((size_t)limit);
        queries.resize((size_t)limit);
        sofar.resize((size_t)limit);
        Engine::Local& local = e.local[(size_t)thread];
        float* sums = local.floats.need((size_t)limit * 2 * kv.padded + (size_t)(group * d) + 64);
        float *more = sums + (int64_t)limit * kv.padded, *one = more + (int64_t)limit * kv.padded;
        const int64_t wide = TileChunk::query_elements(kv);
        Element* q = local.panel.need((size_t)(limit * wide + TileChunk::elements(kv) + 64));
        TileChunk tile(q + (limit * wide + 31) / 32 * 32, kv);
        const int span = spans - 1 - task / kv.kv_heads, h = task % kv.kv_heads;  // the long ones first
        const int first = span * SPAN, rows = std::min(SPAN, win.rows - first);
        const int skipped = first_chunk(win), chunks = (win.start + first + rows - 1) / PAGE + 1;
        for (int r = 0; r < rows; r++) {
            memcpy(one, at(first + r, a.q + h * group * d), (size_t)(group * d) * 4);
            rotate_heads(one, first + r, a.turn_q, a.interleaved_q, group, d);
            for (int g = 0; g < group; g++) put_query(one + g * d, kv, q + (r * group + g) * wide);
        }
        for (int chunk = skipped; chunk < chunks; chunk++) {
            const Chunk stored(win.stream->pages[(size_t)chunk] + at_slot + h * kv.head_words(), kv);
            tile.fill(stored, kv, std::min(PAGE, win.start + win.rows - chunk * PAGE));
            const int begin = std::max(0, chunk * PAGE - win.start - first);
            int count = 0;
            for (int r = begin; r < rows; r++)
                for (int g = 0; g < group; g++, count++) {
                    queries[(size_t)count] = q + (r * group + g) * wide;
                    mine.spans[(size_t)count] = span_of(win, win.start + first + r, chunk);
                    mine.outs[(size_t)count] = (chunk > skipped ? more : sums) + (int64_t)count * kv.padded;
                }
            tile_all(tile, kv, queries.data(), mine.spans.data(), count, mine.parts.data(), mine.outs.data());
            for (int i = 0; i < count; i++) {
                const size_t query = (size_t)(begin * group + i);
                if (chunk == skipped)
                    sofar[query] = mine.parts[(size_t)i];
                else
                    join(sofar[query], sums + (int64_t)query * kv.padded, mine.parts[(size_t)i], more + (int64_t)i * kv.padded, kv.padded);
            }
        }
        for (int i = 0; i < rows * group; i++)
            settle(at(first + i / group, a.out + (h * group + i % group) * d), sums + (int64_t)i * kv.padded, sofar[(size_t)i].sum, d);
    });
}

}  // namespace hs
