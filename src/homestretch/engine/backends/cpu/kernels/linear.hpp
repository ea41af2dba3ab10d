// Steps made of rows and weights: embedding, elementwise forms, linear layers in both lowerings, the head.
#pragma once
#include "engine.hpp"

namespace hs {

// Sum of squares over n floats: lanes first, in order.
inline float squares(const float* x, int n) {
    F s{};
    for (int i = 0; i < n; i += LANES) {
        F v = load(x + i, n - i);
        s = fma(v, v, s);
    }
    return sum(s);
}

// The step's input row after its form; `into` holds `width` floats, unused for PASS.
inline const float* Run::formed(const Step& s, int row, float* into) const {
    const float *a = at(row, s.a), *b = at(row, s.b);
    const int width = s.width;
    switch (s.form) {
        case PASS: return a;
        case NORM: {
            const float* w = e.vectors[(size_t)s.vector].data();
            F r = splat(1.0f / std::sqrt(squares(a, width) / (float)width + s.f[0]));
            for (int i = 0; i < width; i += LANES) store(into + i, load(a + i, width - i) * r * load(w + i, width - i), width - i);
            return into;
        }
        case SILU_MUL:
            for (int i = 0; i < width; i += LANES) store(into + i, silu(load(a + i, width - i)) * load(b + i, width - i), width - i);
            return into;
        case RELU2:
            for (int i = 0; i < width; i += LANES) {
                F v = max(load(a + i, width - i), F{});
                store(into + i, v * v, width - i);
            }
            return into;
        case GATED: {
            const float* w = e.vectors[(size_t)s.vector].data();
            const int part = width / s.groups;
            for (int g = 0; g < width; g += part) {
                for (int i = g; i < g + part; i += LANES) store(into + i, load(a + i, g + part - i) * silu(load(b + i, g + part - i)), g + part - i);
                F r = splat(1.0f / std::sqrt(squares(into + g, part) / (float)part + s.f[0]));
                for (int i = g; i < g + part; i += LANES) store(into + i, load(into + i, g + part - i) * r * load(w + i, g + part - i), g + part - i);
            }
            return into;
        }
        case ADD:
            for (int i = 0; i < width; i += LANES) store(into + i, load(a + i, width - i) + load(b + i, width - i), width - i);
            return into;
        default:
            memcpy(into, a, (size_t)(width - s.wide_b) * 4);
            memcpy(into + width - s.wide_b, b, (size_t)s.wide_b * 4);
            return into;
    }
}

inline void Run::embed(const Step& s) {
    const Matrix& m = e.matrices[(size_t)s.p[0]];
    each_row(c.rows, [&](int r, int) { unpack_row(m, c.tokens[r], at(r, s.out)); });
}

inline void Run::map(const Step& s) {
    each_row(c.rows, [&](int r, int) {
        float* out = at(r, s.out);
        const float* x = formed(s, r, out);
        if (x != out) memcpy(out, x, (size_t)s.width * 4);
    });
}

// Sixteen outputs of one row: bias, activation, residual; `second` is the up half of a gated pair.
inline void Run::finish(const Segment& s, const float* row, float* to, int64_t block, int64_t outs, F y, F second) const {
    const int64_t col = block * 16;
    const int left = (int)(outs - col);
    if (s.bias >= 0) y += load(e.vectors[(size_t)s.bias].data() + col, left);
    if (s.act == ACT_RELU2) {
        y = max(y, F{});
        y *= y;
    } else if (s.act == ACT_SILU_MUL) {
        y = silu(y) * second;
    }
    if (s.residual >= 0) y = load(row + s.residual + col, left) + y;
    store(to + col, y, left);
}

// Integer activations. Several rows are formed and quantized once, in pieces; a single one by every thread for itself, which is
// cheaper than a phase of its own.
inline void Run::linear_rows(const Step& s, const int32_t* rows, int count) {
    const int64_t k = s.width, wide = (k + 15) / 16 * 16;
    const int group = s.p[1];
    const size_t bytes = Row::bytes(k);
    auto form = [&](int i, float* into, uint8_t* packed) {
        const float* x = formed(s, rows ? rows[i] : i, into);
        const Row made = Row::at(packed, k, x);
        if (group) quantize(x, k, group, e.fine, made);
        return made;
    };
    std::vector<Row>& made = e.rows;
    std::vector<const Row*>& point = e.points;
    if (count > 1) {
        made.resize((size_t)count);
        point.resize((size_t)count);
        each_row(count, [&](int i, int) {
            made[(size_t)i] = form(i, e.shared.data + i * wide, e.row_bytes.data + (size_t)i * bytes);
            point[(size_t)i] = &made[(size_t)i];
        });
    }
    int64_t all = 0;
    for (int g = 0; g < s.segments; g++) all += e.matrices[(size_t)s.segment[g].weight].blocks;
    const int64_t parts = pieces(all);
    e.pool.split(parts, [&](int piece, int thread) {
        const Row* const* mine = point.data();
        Engine::Local& local = e.local[(size_t)thread];
        if (count == 1) {
            if (local.formed != e.pool.phase()) {
                local.row = form(0, local.floats.need((size_t)wide), local.bytes.need(bytes));
                local.formed = e.pool.phase();
            }
            local.point = &local.row;
            mine = &local.point;
        }
        linear_part(s, rows, count, mine, all * piece / parts, all * (piece + 1) / parts);
    });
}

// Blocks from `from` up to `to` of a linear step's segments laid end to end.
inline void Run::linear_part(const Step& s, const int32_t* rows, int count, const Row* const* point, int64_t from, int64_t to) const {
    int64_t base = 0;
    F y[16], second[16];
    for (int g = 0; g < s.segments; g++) {
        const Segment& seg = s.segment[g];
        const Matrix& m = e.matrices[(size_t)seg.weight];
        const Matrix* up = seg.second >= 0 ? &e.matrices[(size_t)seg.second] : nullptr;
        for (int64_t b = std::max<int64_t>(from - base, 0); b < std::min(m.blocks, to - base); b++)
            for (int r = 0; r < count; r += 16) {
                const int some = std::min(16, count - r);
                block_rows(m.block(0, b), m, point + r, some, e.fine, y);
                if (up) block_rows(up->block(0, b), *up, point + r, some, e.fine, second);
                for (int i = 0; i < some; i++) {
                    const int row = rows ? rows[r + i] : r + i;
                    float* out = s.kind == HEAD ? e.logits.data + (int64_t)(r + i) * p.vocab : at(row, seg.out);
                    finish(seg, at(row, 0), out, b, m.n, y[i], up ? second[i] : F{});
                }
            }
        base += m.blocks;
    }
}

// Prompt rows: elements of all rows first, then panels of 32 outputs.
inline void Run::linear_tiles(const Step& s, int count) {
    const int64_t k = s.width, wide = row_elements(k);
    Element* elements = (Element*)e.row_bytes.data;
    std::vector<const Element*>& point = e.elements;
    point.resize((size_t)count);
    each_row(count, [&](int i, int thread) {
        to_elements(formed(s, i, e.local[(size_t)thread].floats.need((size_t)(k + 16))), k, elements + i * wide);
        point[(size_t)i] = elements + i * wide;
    });
    int64_t all = 0;
    for (int g = 0; g < s.segments; g++) all += units(s.segment[g]);
    e.pool.split(all, [&](int unit, int thread) {
        int g = 0;
        for (; unit >= units(s.segment[g]); g++) unit -= (int)units(s.segment[g]);
        const Segment& seg = s.segment[g];
        const Matrix& m = e.matrices[(size_t)seg.weight];
        const Matrix* up = seg.second >= 0 ? &e.matrices[(size_t)seg.second] : nullptr;
        const int64_t b = up ? unit : 2 * unit;
        const bool pair = !up && b + 1 < m.blocks;
        Element* panel = e.local[(size_t)thread].panel.need(panel_bytes(k) / sizeof(Element));
        fill_panel(m.block(0, b), m, panel, 0);
        if (up) fill_panel(up->block(0, b), *up, panel, 1);
        if (pair) fill_panel(m.block(0, b + 1), m, panel, 1);
        panel_all(panel, k, point.data(), count, [&](int i, const F* y) {
            finish(seg, at(i, 0), at(i, seg.out), b, m.n, y[0], y[1]);
            if (pair) finish(seg, at(i, 0), at(i, seg.out), b + 1, m.n, y[1], F{});
        });
    });
}

// Panels of a segment: two blocks of 16 outputs, or a block of each half of a gated pair.
inline int64_t Run::units(const Segment& s) const {
    const int64_t blocks = e.matrices[(size_t)s.weight].blocks;
    return s.second >= 0 ? blocks : (blocks + 1) / 2;
}

inline void Run::head(const Step& s) {
    if (!c.draws) return;
    linear_rows(s, c.draw_rows, c.draws);
    for (int i = 0; i < c.draws; i++) draw_one(e.logits.data + (int64_t)i * p.vocab, c.draw[i], c.drawn[i]);
}

inline void Run::draw_one(const float* raw, const Draw& d, Drawn& out) {
    Drawer drawer(e.pool, e.drawing, p.vocab);
    Peak top = drawer.peak(raw);
    const float* x = raw;
    if (!top.nan && (d.biases || d.mask)) {
        float* shaped = e.shared.data;
        memcpy(shaped, raw, (size_t)p.vocab * 4);
        for (int i = 0; i < d.biases; i++) shaped[d.bias_ids[i]] += d.bias_values[i];
        if (d.mask)
            for (int64_t i = 0; i < p.vocab; i++)
                if (!(d.mask[i >> 3] >> (i & 7) & 1)) shaped[i] = -INFINITY;
        x = shaped;
        top = drawer.peak(x);
    }
    out.top = 0;
    out.logprob = 0;
    out.fault = top.nan ? FAULT_NAN : std::isfinite(top.value) ? FAULT_NONE : FAULT_EMPTY;
    if (out.fault) return;
    out.token = (int32_t)drawer.draw(x, d, top);
    if (d.logprobs) drawer.logprobs(raw, out.token, d.logprobs, out);
}

}  // namespace hs
