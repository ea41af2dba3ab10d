// A prompt's view of a chunk: widened once for many queries, as bfloat16 pairs where the processor multiplies those, else float32.
#pragma once
#include "attention.hpp"
#include "tiles.hpp"

namespace hs {

#if defined(__AVX512BF16__)

// Keys: pairs of dims for each of 128 tokens; values: pairs of tokens for each dim; scales multiplied in, tokens past `tokens` zero.
struct TileChunk {
    Element *k, *v;
    static int64_t elements(const KvShape& s) { return (int64_t)PAGE * 2 * s.padded; }
    static int64_t query_elements(const KvShape& s) { return s.padded; }
    TileChunk(Element* at, const KvShape& s) : k(at), v(at + (int64_t)PAGE * s.padded) {}

    void fill(const Chunk& from, const KvShape& s, int tokens) {
        static const I lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int t = 0; t < PAGE; t += LANES) {
            const I past = lane + t < splat(tokens);  // all ones where the token is written
            const F scale = (F)((I)load(from.k_scale + t) & past);
            for (int d = 0; d < s.padded; d += 2) {
                const F a = d < s.head_dim ? from.key((int64_t)d * PAGE + t) * scale : F{};
                const F b = d + 1 < s.head_dim ? from.key((int64_t)(d + 1) * PAGE + t) * scale : F{};
                put_pair(k + (int64_t)d * PAGE + 2 * t, a, b);
            }
        }
        for (int t = 0; t < PAGE; t += 2)
            for (int d = 0; d < s.padded; d += LANES) {
                const F a = t < tokens ? from.value((int64_t)t * s.padded + d) * splat(from.v_scale[t]) : F{};
                const F b = t + 1 < tokens ? from.value((int64_t)(t + 1) * s.padded + d) * splat(from.v_scale[t + 1]) : F{};
                put_pair(v + (int64_t)t * s.padded + 2 * d, a, b);
            }
    }
};

inline void put_query(const float* x, const KvShape& s, Element* out) {
    put_elements(x, s.head_dim, out);
    for (int d = s.head_dim; d < s.padded; d++) out[d] = 0;
}

// Q queries over W vectors: out[i][w] = sum over pairs of panel[pair][w] . x[i][pair]; step: elements of a pair in the panel.
template <int Q, int W>
HS_INLINE void pair_products(const Element* panel, int64_t step, int pairs, const Element* const* x, F (&acc)[Q][W]) {
    for (int i = 0; i < Q; i++)
        for (int w = 0; w < W; w++) acc[i][w] = F{};
    for (int p = 0; p < pairs; p++, panel += step) {
        __m512bh b[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) b[w] = (__m512bh)_mm512_loadu_si512(panel + 32 * w);
#pragma GCC unroll 6
        for (int i = 0; i < Q; i++) {
            int32_t pair;
            memcpy(&pair, x[i] + 2 * p, 4);
            const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[i][w] = (F)_mm512_dpbf16_ps((__m512)acc[i][w], b[w], a);
        }
    }
}

template <int Q>
inline void tile_queries(const TileChunk& c, const KvShape& s, const Element* const* q, const Span* spans, Part* parts, float* const* out) {
    alignas(64) float scores[Q * PAGE];
    alignas(64) Element shares[Q * PAGE];
    const Element* p[Q];
    int longest = 0;
    for (int i = 0; i < Q; i++) longest = spans[i].high > longest ? spans[i].high : longest;
    const int vectors = (longest + 15) / 16;
    auto scored = [&](auto& acc, int w, int count) {
        for (int i = 0; i < Q; i++)
            for (int j = 0; j < count; j++) store(scores + i * PAGE + 16 * (w + j), acc[i][j] * splat(s.scale));
    };
    int w = 0;
    for (; w + 4 <= vectors; w += 4) {
        F acc[Q][4];
        pair_products<Q, 4>(c.k + 32 * w, 2 * PAGE, s.padded / 2, q, acc);
        scored(acc, w, 4);
    }
    for (; w < vectors; w++) {
        F acc[Q][1];
        pair_products<Q, 1>(c.k + 32 * w, 2 * PAGE, s.padded / 2, q, acc);
        scored(acc, w, 1);
    }
    for (int i = 0; i < Q; i++) {
        parts[i] = soften(scores + i * PAGE, spans[i], vectors);
        put_elements(scores + i * PAGE, 16 * vectors, shares + i * PAGE);
        p[i] = shares + i * PAGE;
    }
    int dim = 0;
    for (; dim + 64 <= s.padded; dim += 64) {
        F acc[Q][4];
        pair_products<Q, 4>(c.v + 2 * dim, 2 * s.padded, 8 * vectors, p, acc);
        for (int i = 0; i < Q; i++)
            for (int j = 0; j < 4; j++) store(out[i] + dim + 16 * j, acc[i][j]);
    }
    for (; dim < s.padded; dim += 16) {
        F acc[Q][1];
        pair_products<Q, 1>(c.v + 2 * dim, 2 * s.padded, 8 * vectors, p, acc);
        for (int i = 0; i < Q; i++) store(out[i] + dim, acc[i][0]);
    }
}

inline void tile_all(const TileChunk& c, const KvShape& s, const Element* const* q, const Span* spans, int count, Part* parts, float* const* out) {
    int i = 0;
    for (; i + 6 <= count; i += 6) tile_queries<6>(c, s, q + i, spans + i, parts + i, out + i);
    for (; i + 2 <= count; i += 2) tile_queries<2>(c, s, q + i, spans + i, parts + i, out + i);
    for (; i < count; i++) tile_queries<1>(c, s, q + i, spans + i, parts + i, out + i);
}

#else

struct TileChunk {
    float *k, *v;
    const float *k_scale = nullptr, *v_scale = nullptr;
    static int64_t elements(const KvShape& s) { return (int64_t)PAGE * (s.head_dim + s.padded); }
    static int64_t query_elements(const KvShape& s) { return s.head_dim; }
    TileChunk(Element* at, const KvShape& s) : k(at), v(at + (int64_t)PAGE * s.head_dim) {}
    void fill(const Chunk& from, const KvShape& s, int) {
        for (int64_t i = 0; i < elements(s); i += LANES) store(k + i, from_word(from.k + i));
        k_scale = from.k_scale;
        v_scale = from.v_scale;
    }
};
inline void put_query(const float* x, const KvShape& s, Element* out) { memcpy(out, x, (size_t)s.head_dim * 4); }
inline void tile_all(const TileChunk& c, const KvShape& s, const Element* const* q, const Span* spans, int count, Part* parts, float* const* out) {
    chunk_all(WideChunk{c.k, c.v, c.k_scale, c.v_scale}, s, q, spans, count, parts, out);
}

#endif

}  // namespace hs
