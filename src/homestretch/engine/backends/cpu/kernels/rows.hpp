// Rows of a window: activations as 16-bit integers (or 8), a block of 16 outputs for 1 to 8 rows at a time.
//
// Integer sums are exact in any order and the groups are added up in one float order, so a row's bits do not depend on how
// many rows share the call or on threads. 16 bits: q = 256 hi + lo, hi in -127..127, lo in -128..127; value = scale * q.
#pragma once
#include "matrix.hpp"

namespace hs {

// One row as a matrix wants it. hi, lo: k bytes; scale and total (scale * sum of q) per group; x: the float32 row, for dense weights.
struct Row {
    int8_t *hi, *lo;
    float *scale, *total;
    const float* x;

    static size_t bytes(int64_t k) { return (size_t)(2 * ((k + 63) / 64 * 64) + 2 * ((k / 32 + 16) / 16 * 16) * 4); }
    static Row at(uint8_t* p, int64_t k, const float* x) {
        int64_t wide = (k + 63) / 64 * 64, groups = (k / 32 + 16) / 16 * 16;
        float* f = (float*)(p + 2 * wide);
        return Row{(int8_t*)p, (int8_t*)p + wide, f, f + groups, x};
    }
};

// Group by group: scale = largest / 32639 (or 127), q = x / scale to the nearest integer. k is a multiple of group, group of 32.
inline void quantize(const float* x, int64_t k, int group, bool fine, const Row& to) {
    const float top = fine ? 32639.0f : 127.0f;
    for (int64_t g = 0; g < k / group; g++) {
        const float* p = x + g * group;
        F m{};
        for (int i = 0; i < group; i += LANES) m = max(m, abs(load(p + i)));
        float big = largest(m), inverse = big > 0 ? top / big : 0;
        I all{};
        for (int i = 0; i < group; i += LANES) {
            I q = nearest(load(p + i) * splat(inverse)), hi = q, lo{};
            if (fine) {
                hi = (q + 128) >> 8;
                lo = q - (hi << 8);
            }
            all += q;
#if defined(__AVX512F__)
            _mm_storeu_si128((__m128i*)(to.hi + g * group + i), _mm512_cvtepi32_epi8((__m512i)hi));
            _mm_storeu_si128((__m128i*)(to.lo + g * group + i), _mm512_cvtepi32_epi8((__m512i)lo));
#else
            for (int j = 0; j < LANES; j++) {
                to.hi[g * group + i + j] = (int8_t)hi[j];
                to.lo[g * group + i + j] = (int8_t)lo[j];
            }
#endif
        }
        to.scale[g] = big / top;
        to.total[g] = big / top * (float)sum(all);
    }
}

template <int M, int BITS, bool FINE>
inline void affine_rows(const uint8_t* p, const Matrix& m, const Row* const* rows, F* out) {
    F acc[M];
    for (int r = 0; r < M; r++) acc[r] = F{};
    const int64_t groups = m.groups(), scale_bytes = m.scale_bytes();
    const int units = m.group / 32;
    const int32_t kind = m.scales;
    int64_t at = 0;
    for (int64_t g = 0; g < groups; g++) {
        I high[M], low[M];
        for (int r = 0; r < M; r++) high[r] = low[r] = I{};
        for (int u = 0; u < units; u++, at += 32) {
            __builtin_prefetch(p + 2560);
            __builtin_prefetch(p + 2560 + 64);
            __builtin_prefetch(p + 2560 + 128);
            __builtin_prefetch(p + 2560 + 192);
            if (BITS == 4) {
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++, p += 64) {
                    I v = *(const I*)p, a = v & 0x0f0f0f0f, b = (I)((v >> 4) & 0x0f0f0f0f);
#pragma GCC unroll 8
                    for (int r = 0; r < M; r++) {
                        high[r] = dot4<true>(high[r], a, rows[r]->hi + at + 8 * j);
                        if (FINE) low[r] = dot4<true>(low[r], a, rows[r]->lo + at + 8 * j);
                        high[r] = dot4<true>(high[r], b, rows[r]->hi + at + 8 * j + 4);
                        if (FINE) low[r] = dot4<true>(low[r], b, rows[r]->lo + at + 8 * j + 4);
                    }
                }
            } else {
                __builtin_prefetch(p + 2560 + 256);
                __builtin_prefetch(p + 2560 + 320);
                __builtin_prefetch(p + 2560 + 384);
                __builtin_prefetch(p + 2560 + 448);
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++, p += 64) {
                    I v = *(const I*)p;
#pragma GCC unroll 8
                    for (int r = 0; r < M; r++) {
                        high[r] = dot4<false>(high[r], v, rows[r]->hi + at + 4 * j);
                        if (FINE) low[r] = dot4<false>(low[r], v, rows[r]->lo + at + 4 * j);
                    }
                }
            }
        }
        F scale = load_scales(p, kind), bias = load_scales(p + scale_bytes, kind);
        p += 2 * scale_bytes;
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            I q = FINE ? (high[r] << 8) + low[r] : high[r];
            acc[r] = fma(to_float(q) * splat(rows[r]->scale[g]), scale, acc[r]);
            acc[r] = fma(bias, splat(rows[r]->total[g]), acc[r]);
        }
    }
    for (int r = 0; r < M; r++) out[r] = acc[r];
}

template <int M>
inline void dense_rows(const uint8_t* p, const Matrix& m, const Row* const* rows, F* out) {
    F acc[M];
    for (int r = 0; r < M; r++) acc[r] = F{};
    if (m.storage == F32) {
        for (int64_t i = 0; i < m.k; i++, p += 64)
            for (int r = 0; r < M; r++) acc[r] = fma(*(const F*)p, splat(rows[r]->x[i]), acc[r]);
    } else {
        int64_t i = 0;
        for (; i + 1 < m.k; i += 2, p += 64) {
            I v = *(const I*)p;
            F even = (F)(v << 16), odd = (F)(v & (int32_t)0xffff0000);
            for (int r = 0; r < M; r++) {
                acc[r] = fma(even, splat(rows[r]->x[i]), acc[r]);
                acc[r] = fma(odd, splat(rows[r]->x[i + 1]), acc[r]);
            }
        }
        if (i < m.k)
            for (int r = 0; r < M; r++) acc[r] = fma((F)(*(const I*)p << 16), splat(rows[r]->x[i]), acc[r]);
    }
    for (int r = 0; r < M; r++) out[r] = acc[r];
}

template <int M>
inline void block_of(const uint8_t* p, const Matrix& m, const Row* const* rows, bool fine, F* out) {
    if (m.storage == AFFINE4)
        fine ? affine_rows<M, 4, true>(p, m, rows, out) : affine_rows<M, 4, false>(p, m, rows, out);
    else if (m.storage == AFFINE8)
        fine ? affine_rows<M, 8, true>(p, m, rows, out) : affine_rows<M, 8, false>(p, m, rows, out);
    else
        dense_rows<M>(p, m, rows, out);
}

// out[r] = 16 outputs of block p for each of `count` rows.
inline void block_rows(const uint8_t* p, const Matrix& m, const Row* const* rows, int count, bool fine, F* out) {
    int r = 0;
    for (; r + 8 <= count; r += 8) block_of<8>(p, m, rows + r, fine, out + r);
    switch (count - r) {
        case 7: block_of<4>(p, m, rows + r, fine, out + r), r += 4; [[fallthrough]];
        case 3: block_of<3>(p, m, rows + r, fine, out + r); break;
        case 6: block_of<4>(p, m, rows + r, fine, out + r), r += 4; [[fallthrough]];
        case 2: block_of<2>(p, m, rows + r, fine, out + r); break;
        case 5: block_of<4>(p, m, rows + r, fine, out + r), r += 4; [[fallthrough]];
        case 1: block_of<1>(p, m, rows + r, fine, out + r); break;
        case 4: block_of<4>(p, m, rows + r, fine, out + r); break;
        default: break;
    }
}

}  // namespace hs
