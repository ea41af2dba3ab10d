// Attention over KV pages with grouped heads, in chunks of one page at absolute positions.
//
// A page holds 128 tokens. Per slot and KV head: keys transposed, head_dim x 128, so that 16 tokens' scores grow in the lanes;
// values 128 x head_dim (padded to 16); both as 16-bit integers with a float32 scale a token (seven times closer than halves, at the
// same speed); then the scales of the keys and of the values. A chunk gives each query (largest score, sum, weighted values);
// chunks are joined in order. A query's arithmetic is its own: how many share the call changes nothing.
#pragma once
#include "lanes.hpp"

namespace hs {

constexpr int PAGE = 128;

struct KvShape {
    int heads, kv_heads, head_dim, padded;  // padded: head_dim up to a multiple of 16
    float scale;
    int64_t head_words() const { return (int64_t)PAGE * (head_dim + padded + 4); }  // 16 bits each
};

HS_INLINE F from_word(const int16_t* p) {
#if defined(__AVX512F__)
    return (F)_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p)));
#else
    typedef int16_t W __attribute__((vector_size(32), aligned(2)));
    return __builtin_convertvector(*(const W*)p, F);
#endif
}

// One head's keys and values in a page.
struct Chunk {
    int16_t *k, *v;
    float *k_scale, *v_scale;
    Chunk(int16_t* head, const KvShape& s)
        : k(head), v(k + (int64_t)PAGE * s.head_dim), k_scale((float*)(v + (int64_t)PAGE * s.padded)), v_scale(k_scale + PAGE) {}
    HS_INLINE F key(int64_t at) const { return from_word(k + at); }
    HS_INLINE F value(int64_t at) const { return from_word(v + at); }
};
// The same widened once for many queries; the scales stay apart.
struct WideChunk {
    const float *k, *v, *k_scale, *v_scale;
    HS_INLINE F key(int64_t at) const { return load(k + at); }
    HS_INLINE F value(int64_t at) const { return load(v + at); }
};

inline float word_scale(const float* x, int n) {
    F big{};
    for (int i = 0; i < n; i += LANES) big = max(big, abs(load(x + i, n - i)));
    return largest(big) / 32767.0f;
}
inline void write_kv(const Chunk& c, const KvShape& s, int token, const float* k, const float* v) {
    const float ks = word_scale(k, s.head_dim), vs = word_scale(v, s.head_dim);
    const F ki = splat(ks > 0 ? 1.0f / ks : 0.0f), vi = splat(vs > 0 ? 1.0f / vs : 0.0f);
    int16_t* values = c.v + (int64_t)token * s.padded;
    for (int i = 0; i < s.head_dim; i += LANES) {
        const I kq = nearest(load(k + i, s.head_dim - i) * ki), vq = nearest(load(v + i, s.head_dim - i) * vi);
        for (int j = 0; j < LANES && i + j < s.head_dim; j++) c.k[(i + j) * PAGE + token] = (int16_t)kq[j];
        for (int j = 0; j < LANES; j++) values[i + j] = (int16_t)vq[j];
    }
    c.k_scale[token] = ks;
    c.v_scale[token] = vs;
}

// scores[q][token] = scale * q . k for Q queries and 16 * W tokens from `token` on.
template <int Q, int W, class C>
inline void score_block(const C& c, const KvShape& s, const float* const* q, int token, float* scores) {
    F acc[Q][W];
    for (int i = 0; i < Q; i++)
        for (int w = 0; w < W; w++) acc[i][w] = F{};
    for (int d = 0; d < s.head_dim; d++) {
        F key[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) key[w] = c.key((int64_t)d * PAGE + token + 16 * w);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            F x = splat(q[i][d]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[i][w] = fma(key[w], x, acc[i][w]);
        }
    }
    for (int i = 0; i < Q; i++)
        for (int w = 0; w < W; w++) store(scores + i * PAGE + token + 16 * w, acc[i][w] * (load(c.k_scale + token + 16 * w) * splat(s.scale)));
}

// out[q][dims] = sum over tokens of p[q][token] * v[token], W * 16 dims from `dim` on.
template <int Q, int W, class C>
inline void value_block(const C& c, const KvShape& s, const float* p, int tokens, int dim, float* const* out) {
    F acc[Q][W];
    for (int i = 0; i < Q; i++)
        for (int w = 0; w < W; w++) acc[i][w] = F{};
    for (int t = 0; t < tokens; t++) {
        F value[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) value[w] = c.value((int64_t)t * s.padded + dim + 16 * w);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            F x = splat(p[i * PAGE + t]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[i][w] = fma(value[w], x, acc[i][w]);
        }
    }
    for (int i = 0; i < Q; i++)
        for (int w = 0; w < W; w++) store(out[i] + dim + 16 * w, acc[i][w]);
}

// Which tokens of a chunk are in a query's past: from low up to, not including, high; at least one.
struct Span {
    int low, high;
};

// Softmax numerators of one query over its span, in place, zeros elsewhere up to the end of the last vector.
struct Part {
    float peak, sum;
};
inline Part soften(float* scores, Span span, int vectors) {
    const F none = splat(-INFINITY);
    static const I lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    F peak = none;
    for (int w = 0; w < vectors; w++) {
        F v = load(scores + 16 * w);
        if (span.low > 16 * w || span.high < 16 * w + 16) {
            const I token = lane + 16 * w;
            v = ((token < splat(span.high)) & (token >= splat(span.low))) ? v : none;
            store(scores + 16 * w, v);
        }
        peak = max(peak, v);
    }
    const float top = largest(peak);
    const F shift = splat(top);
    F total{};
    for (int w = 0; w < vectors; w++) {
        const F e = exp(load(scores + 16 * w) - shift);
        store(scores + 16 * w, e);
        total += e;
    }
    return Part{top, sum(total)};
}

// One chunk for Q queries: numerators, sums and weighted values. 
template <int Q, class C>
inline void chunk_queries(const C& c, const KvShape& s, const float* const* q, const Span* spans, Part* parts, float* const* out) {
    alignas(64) float scores[Q * PAGE];
    int longest = 0;
    for (int i = 0; i < Q; i++) longest = spans[i].high > longest ? spans[i].high : longest;
    int vectors = (longest + 15) / 16, w = 0;
    for (; w + 4 <= vectors; w += 4) score_block<Q, 4>(c, s, q, 16 * w, scores);
    for (; w < vectors; w++) score_block<Q, 1>(c, s, q, 16 * w, scores);
    for (int i = 0; i < Q; i++) {
        parts[i] = soften(scores + i * PAGE, spans[i], vectors);
        for (w = 0; w < vectors; w++) {
            float* p = scores + i * PAGE + 16 * w;
            const F share = load(p);  // a token outside the span may hold anything, so zero is kept, not multiplied
            store(p, share > F{} ? share * load(c.v_scale + 16 * w) : F{});
        }
    }
    int dim = 0;
    for (; dim + 64 <= s.padded; dim += 64) value_block<Q, 4>(c, s, scores, longest, dim, out);
    for (; dim < s.padded; dim += 16) value_block<Q, 1>(c, s, scores, longest, dim, out);
}

template <class C>
inline void chunk_all(const C& c, const KvShape& s, const float* const* q, const Span* spans, int count, Part* parts, float* const* out) {
    int i = 0;
    for (; i + 4 <= count; i += 4) chunk_queries<4>(c, s, q + i, spans + i, parts + i, out + i);
    switch (count - i) {
        case 3: chunk_queries<3>(c, s, q + i, spans + i, parts + i, out + i); break;
        case 2: chunk_queries<2>(c, s, q + i, spans + i, parts + i, out + i); break;
        case 1: chunk_queries<1>(c, s, q + i, spans + i, parts + i, out + i); break;
        default: break;
    }
}

// Take a chunk's part into the running one: (peak, sum, values) <- both, rescaled to the larger peak. Padded dims are carried along.
inline void join(Part& to, float* values, const Part& part, const float* more, int padded) {
    if (part.peak <= to.peak) {
        F f = exp(splat(part.peak - to.peak));
        to.sum = std::fma(part.sum, f[0], to.sum);
        for (int d = 0; d < padded; d += 16) store(values + d, fma(load(more + d), f, load(values + d)));
    } else {
        F f = exp(splat(to.peak - part.peak));
        to.sum = std::fma(to.sum, f[0], part.sum);
        to.peak = part.peak;
        for (int d = 0; d < padded; d += 16) store(values + d, fma(load(values + d), f, load(more + d)));
    }
}

// The weighted mean: values / sum.
inline void settle(float* out, const float* values, float sum, int dim) {
    const F inverse = splat(1.0f / sum);
    for (int d = 0; d < dim; d += LANES) store(out + d, load(values + d) * inverse, dim - d);
}

// Rotate one head in place by the angles of a position; turn: cos then sin, dims / 2 each.
inline void rotate(float* x, const float* turn, int dims, bool interleaved) {
    int half = dims / 2;
    for (int i = 0; i < half; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        float c = turn[i], s = turn[half + i], xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xb * c + xa * s;
    }
}

}  // namespace hs
