// Router and experts: (row, expert) pairs grouped by expert, so that each expert's weights are read once for all its rows.
//
// A row's experts are added up in ascending order of their ids by the one thread that owns the outputs.
#pragma once
#include "engine.hpp"
#include "linear.hpp"

namespace hs {

// Dot products of one row with a dense float32 matrix, up to 8 blocks of 16 outputs side by side.
inline void dense_row(const Matrix& m, const float* x, float* out) {
    for (int64_t b = 0; b < m.blocks; b += 8) {
        const int some = (int)std::min<int64_t>(8, m.blocks - b);
        const float* p[8];
        F acc[8];
        for (int j = 0; j < 8; j++) {
            p[j] = (const float*)m.block(0, b + (j < some ? j : 0));
            acc[j] = F{};
        }
        for (int64_t i = 0; i < m.k; i++) {
            const F xi = splat(x[i]);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) acc[j] = fma(load(p[j] + i * 16), xi, acc[j]);
        }
        for (int j = 0; j < some; j++) store(out + (b + j) * 16, acc[j]);
    }
}

struct RouteStep {
    int experts, top, groups, top_groups, normalise;
    float scale;
};

// Choose `top` experts from their scores: by score + bias, ties to the lower id, ids ascending; shares from the scores alone.
inline void choose(const RouteStep& s, float* score, const float* bias, int32_t* ids, float* shares) {
    constexpr int MOST = 1024;
    float key[MOST];
    for (int i = 0; i < s.experts; i++) {
        score[i] = 1.0f / (1.0f + std::exp(-score[i]));
        key[i] = score[i] + bias[i];
    }
    if (s.groups > 1) {
        const int size = s.experts / s.groups;
        float best[MOST];
        bool open[MOST] = {};
        for (int g = 0; g < s.groups; g++) {
            float one = -INFINITY, two = -INFINITY;
            for (int i = g * size; i < (g + 1) * size; i++) {
                if (key[i] > one) two = one, one = key[i];
                else if (key[i] > two) two = key[i];
            }
            best[g] = one + two;
        }
        for (int n = 0; n < s.top_groups; n++) {
            int pick = -1;
            for (int g = 0; g < s.groups; g++)
                if (!open[g] && (pick < 0 || best[g] > best[pick])) pick = g;
            open[pick] = true;
        }
        for (int i = 0; i < s.experts; i++)
            if (!open[i / size]) key[i] = -INFINITY;
    }
    bool chosen[MOST] = {};
    for (int n = 0; n < s.top; n++) {
        int pick = -1;
        for (int i = 0; i < s.experts; i++)
            if (!chosen[i] && (pick < 0 || key[i] > key[pick])) pick = i;
        chosen[pick] = true;
    }
    float sum = 0;
    int n = 0;
    for (int i = 0; i < s.experts; i++)
        if (chosen[i]) {
            ids[n] = i;
            shares[n++] = score[i];
            sum += score[i];
        }
    for (int i = 0; i < n; i++) shares[i] = (s.normalise ? shares[i] / (sum + 1e-20f) : shares[i]) * s.scale;
}

inline void Run::route(const Step& s) {
    const RouteStep r{s.p[0], s.p[1], s.p[2], s.p[3], s.p[4], s.f[0]};
    const Matrix& gate = e.matrices[(size_t)s.p[5]];
    const float* bias = e.vectors[(size_t)s.vector].data();
    each_row(c.rows, [&](int row, int thread) {
        float* score = e.local[(size_t)thread].floats.need((size_t)gate.blocks * 16 + 16);
        dense_row(gate, at(row, s.a), score);
        choose(r, score, bias, (int32_t*)at(row, s.out), at(row, s.p[6]));
    });
}

// Which rows each active expert serves: pairs grouped by expert, experts ascending, rows ascending within.
inline void Run::group_pairs(const Step& s, int experts, int top) {
    Grouped& g = e.grouped;
    g.first.assign((size_t)experts + 1, 0);
    for (int r = 0; r < c.rows; r++)
        for (int n = 0; n < top; n++) g.first[(size_t)((const int32_t*)at(r, s.b))[n] + 1]++;
    g.active.clear();
    for (int x = 0; x < experts; x++) {
        if (g.first[(size_t)x + 1]) g.active.push_back(x);
        g.first[(size_t)x + 1] += g.first[(size_t)x];
    }
    g.row.resize((size_t)(c.rows * top));
    g.share.resize((size_t)(c.rows * top));
    g.fill.assign(g.first.begin(), g.first.end());
    for (int r = 0; r < c.rows; r++)
        for (int n = 0; n < top; n++) {
            const int pair = g.fill[(size_t)((const int32_t*)at(r, s.b))[n]]++;
            g.row[(size_t)pair] = r;
            g.share[(size_t)pair] = at(r, s.p[2])[n];
        }
}

inline void Run::experts(const Step& s) {
    const Matrix &first = e.matrices[(size_t)s.p[0]], &second = e.matrices[(size_t)s.p[1]];
    group_pairs(s, first.experts, s.p[3]);
    if (c.prompt)
        experts_tiles(s, first, second);
    else
        experts_rows(s, first, second);
}

// fn(active expert's number, block) for pieces of `blocks` blocks of every active expert, laid end to end.
template <class Fn>
inline void Run::each_expert_block(int64_t blocks, Fn fn) {
    const int64_t all = (int64_t)e.grouped.active.size() * blocks, parts = pieces(all);
    e.pool.split(parts, [&](int piece, int thread) {
        for (int64_t i = all * piece / parts; i < all * (piece + 1) / parts; i++) fn((int)(i / blocks), i % blocks, thread);
    });
}

inline void Run::experts_rows(const Step& s, const Matrix& first, const Matrix& second) {
    const Grouped& g = e.grouped;
    const int64_t k = first.k, inner = second.k, pairs = (int64_t)g.row.size();
    const size_t bytes = Row::bytes(k), inner_bytes = Row::bytes(inner);
    const int64_t wide = (inner + 15) / 16 * 16;
    float* between = e.between.need((size_t)(pairs * wide + 16));
    uint8_t* packed = e.between_bytes.need((size_t)pairs * inner_bytes + 64);
    e.rows.resize((size_t)(c.rows + pairs));
    e.points.resize((size_t)(2 * pairs));
    Row *in = e.rows.data(), *mid = in + c.rows;
    const Row **in_at = e.points.data(), **mid_at = in_at + pairs;
    each_row(c.rows, [&](int r, int) {
        in[r] = Row::at(e.row_bytes.data + (size_t)r * bytes, k, at(r, s.a));
        if (first.group) quantize(in[r].x, k, first.group, e.fine, in[r]);
    });
    for (int64_t i = 0; i < pairs; i++) in_at[i] = in + g.row[(size_t)i];
    each_expert_block(first.blocks, [&](int number, int64_t b, int) {
        const int x = g.active[(size_t)number];
        F y[16];
        for (int i = g.first[(size_t)x]; i < g.first[(size_t)x + 1]; i += 16) {
            const int some = std::min(16, g.first[(size_t)x + 1] - i);
            block_rows(first.block(x, b), first, in_at + i, some, e.fine, y);
            for (int j = 0; j < some; j++) {
                const F v = max(y[j], F{});
                store(between + (i + j) * wide + b * 16, v * v, (int)(inner - b * 16));
            }
        }
    });
    each_row((int)pairs, [&](int i, int) {
        mid[i] = Row::at(packed + (size_t)i * inner_bytes, inner, between + i * wide);
        mid_at[i] = mid + i;
        if (second.group) quantize(mid[i].x, inner, second.group, e.fine, mid[i]);
    });
    const int64_t parts = pieces(second.blocks);
    e.pool.split(parts, [&](int piece, int) {
        F y[16];
        for (int64_t b = second.blocks * piece / parts; b < second.blocks * (piece + 1) / parts; b++) {
            const int left = (int)(second.n - b * 16);
            for (int r = 0; r < c.rows; r++) store(at(r, s.out + b * 16), F{}, left);
            for (int x : g.active)
                for (int i = g.first[(size_t)x]; i < g.first[(size_t)x + 1]; i += 16) {
                    const int some = std::min(16, g.first[(size_t)x + 1] - i);
                    block_rows(second.block(x, b), second, mid_at + i, some, e.fine, y);
                    for (int j = 0; j < some; j++) add_share(s, i + j, b, left, y[j]);
                }
        }
    });
}

inline void Run::add_share(const Step& s, int pair, int64_t block, int left, F y) const {
    float* out = at(e.grouped.row[(size_t)pair], s.out + block * 16);
    store(out, fma(y, splat(e.grouped.share[(size_t)pair]), load(out, left)), left);
}

inline void Run::experts_tiles(const Step& s, const Matrix& first, const Matrix& second) {
    const Grouped& g = e.grouped;
    const int64_t k = first.k, inner = second.k, pairs = (int64_t)g.row.size(), wide = row_elements(k), mid_wide = row_elements(inner);
    Element *in = (Element*)e.row_bytes.data, *mid = (Element*)e.between_bytes.need((size_t)((pairs + 1) * mid_wide) * sizeof(Element));
    e.elements.resize((size_t)(2 * pairs));
    const Element **in_at = e.elements.data(), **mid_at = in_at + pairs;
    each_row(c.rows, [&](int r, int) { to_elements(at(r, s.a), k, in + r * wide); });
    for (int64_t i = 0; i < pairs; i++) {
        in_at[i] = in + g.row[(size_t)i] * wide;
        mid_at[i] = mid + i * mid_wide;
        if (inner & 1) mid[i * mid_wide + inner] = 0;
    }
    each_expert_block((first.blocks + 1) / 2, [&](int number, int64_t half, int thread) {
        const int x = g.active[(size_t)number], from = g.first[(size_t)x], count = g.first[(size_t)x + 1] - from;
        const int64_t b = 2 * half;
        const int halves = b + 1 < first.blocks ? 2 : 1;
        Element* panel = e.local[(size_t)thread].panel.need(panel_bytes(k) / sizeof(Element));
        for (int h = 0; h < halves; h++) fill_panel(first.block(x, b + h), first, panel, h);
        panel_all(panel, k, in_at + from, count, [&](int i, const F* y) {
            for (int h = 0; h < halves; h++) {
                const int left = (int)std::min<int64_t>(16, inner - (b + h) * 16);
                F v = max(y[h], F{});
                v *= v;
                float row[LANES];
                store(row, v);
                put_elements(row, left, mid + (from + i) * mid_wide + (b + h) * 16);
            }
        });
    });
    e.pool.split((second.blocks + 1) / 2, [&](int half, int thread) {
        const int64_t b = 2 * (int64_t)half;
        const int halves = b + 1 < second.blocks ? 2 : 1;
        Element* panel = e.local[(size_t)thread].panel.need(panel_bytes(inner) / sizeof(Element));
        for (int r = 0; r < c.rows; r++)
            for (int h = 0; h < halves; h++) store(at(r, s.out + (b + h) * 16), F{}, (int)(second.n - (b + h) * 16));
        for (int x : g.active) {
            const int from = g.first[(size_t)x], count = g.first[(size_t)x + 1] - from;
            for (int h = 0; h < halves; h++) fill_panel(second.block(x, b + h), second, panel, h);
            panel_all(panel, inner, mid_at + from, count, [&](int i, const F* y) {
                for (int h = 0; h < halves; h++) add_share(s, from + i, b + h, (int)(second.n - (b + h) * 16), y[h]);
            });
        }
    });
}

}  // namespace hs
