// Prompt rows: a panel of 32 outputs is dequantized once, then all rows of the piece run over it.
//
// bfloat16 products with float32 sums where the processor multiplies bfloat16 pairs, float32 elsewhere. A row's sum runs over
// the inputs in one order whatever rows stand beside it, so pieces may be cut anywhere without changing a bit.
#pragma once
#include "matrix.hpp"

namespace hs {

#if defined(__AVX512BF16__)
using Element = uint16_t;  // bfloat16, inputs in pairs
constexpr int PAIR = 2, TILE_ROWS = 12;
constexpr const char* PROMPT_FORM = "bf16";
#elif defined(__AVX512F__)
using Element = float;
constexpr int PAIR = 1, TILE_ROWS = 12;
constexpr const char* PROMPT_FORM = "fp32";
#else
using Element = float;
constexpr int PAIR = 1, TILE_ROWS = 2;
constexpr const char* PROMPT_FORM = "fp32";
#endif

// Elements of a row of k inputs, padded to whole pairs and kept off multiples of 4 KiB.
inline int64_t row_elements(int64_t k) { return (k + 31) / 32 * 32 + 32; }
inline size_t panel_bytes(int64_t k) { return (size_t)((k + 1) / 2 * 2) * 32 * sizeof(Element); }

inline void put_elements(const float* x, int64_t k, Element* out) {
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + LANES <= k; i += LANES) _mm256_storeu_si256((__m256i*)(out + i), (__m256i)_mm512_cvtneps_pbh((__m512)load(x + i)));
    for (; i < k; i++) out[i] = to_bf16(x[i]);
#else
    for (; i < k; i++) out[i] = x[i];
#endif
}
inline void to_elements(const float* x, int64_t k, Element* out) {
    put_elements(x, k, out);
    if (k & 1) out[k] = 0;
}

// Two inputs (f0, f1) of 16 outputs into the panel; step: elements between pairs.
HS_INLINE void put_pair(Element* out, F f0, F f1) {
#if defined(__AVX512BF16__)
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                         17, 1, 16, 0);
    *(I*)out = (I)_mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh((__m512)f1, (__m512)f0));
#else
    store(out, f0);
    store(out + 32, f1);
#endif
}

// Dequantize one block of 16 outputs into half `half` of a panel.
inline void fill_panel(const uint8_t* p, const Matrix& m, Element* panel, int half) {
    Element* out = panel + half * 16 * PAIR;
    constexpr int two = 64;  // elements of two inputs in a panel
    if (m.storage == AFFINE4 || m.storage == AFFINE8) {
        const int64_t scale_bytes = m.scale_bytes();
        const int quarters = m.group / 4;
        for (int64_t g = 0; g < m.groups(); g++) {
            const uint8_t* s = p + (int64_t)m.group * 16 * m.storage / 8;
            F scale = load_scales(s, m.scales), bias = load_scales(s + scale_bytes, m.scales);
            for (int j = 0; j < quarters; j++, out += 2 * two) {
                I v;
                if (m.storage == AFFINE4) {
                    v = *(const I*)(p + j / 2 * 64);
                    v = (j & 1 ? v >> 4 : v) & 0x0f0f0f0f;
                } else {
                    v = *(const I*)(p + j * 64);
                }
                F f0 = fma(to_float(v & 255), scale, bias), f1 = fma(to_float((v >> 8) & 255), scale, bias);
                F f2 = fma(to_float((v >> 16) & 255), scale, bias), f3 = fma(to_float((v >> 24) & 255), scale, bias);
                put_pair(out, f0, f1);
                put_pair(out + two, f2, f3);
            }
            p = s + 2 * scale_bytes;
        }
    } else if (m.storage == BF16) {
        for (int64_t i = 0; i < m.k; i += 2, p += 64, out += two) {
            I v = *(const I*)p;
#if defined(__AVX512BF16__)
            *(I*)out = v;
#else
            put_pair(out, (F)(v << 16), (F)(v & (int32_t)0xffff0000));
#endif
        }
    } else {
        for (int64_t i = 0; i < m.k; i += 2, out += two, p += 128) put_pair(out, *(const F*)p, i + 1 < m.k ? *(const F*)(p + 64) : F{});
    }
}

// acc[r][half] = panel times rows; `rows` point at the elements of each row.
template <int M>
inline void panel_rows(const Element* panel, int64_t k, const Element* const* rows, F (*acc)[2]) {
    F a[M][2];
    for (int r = 0; r < M; r++) a[r][0] = a[r][1] = F{};
    const int64_t pairs = (k + PAIR - 1) / PAIR;
    for (int64_t i = 0; i < pairs; i++, panel += 32 * PAIR) {
#if defined(__AVX512BF16__)
        __m512bh b0 = (__m512bh) * (const __m512i*)panel, b1 = (__m512bh) * (const __m512i*)(panel + 32);
#pragma GCC unroll 12
        for (int r = 0; r < M; r++) {
            int32_t pair;
            memcpy(&pair, rows[r] + 2 * i, 4);
            __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
            a[r][0] = (F)_mm512_dpbf16_ps((__m512)a[r][0], b0, x);
            a[r][1] = (F)_mm512_dpbf16_ps((__m512)a[r][1], b1, x);
        }
#else
        F b0 = load(panel), b1 = load(panel + 16);
#pragma GCC unroll 12
        for (int r = 0; r < M; r++) {
            F x = splat(rows[r][i]);
            a[r][0] = fma(b0, x, a[r][0]);
            a[r][1] = fma(b1, x, a[r][1]);
        }
#endif
    }
    for (int r = 0; r < M; r++) acc[r][0] = a[r][0], acc[r][1] = a[r][1];
}

// Every row over one panel; done(row index, two times 16 outputs).
template <class Done>
inline void panel_all(const Element* panel, int64_t k, const Element* const* rows, int count, Done done) {
    F acc[TILE_ROWS][2];
    int r = 0;
    for (; r + TILE_ROWS <= count; r += TILE_ROWS) {
        panel_rows<TILE_ROWS>(panel, k, rows + r, acc);
        for (int i = 0; i < TILE_ROWS; i++) done(r + i, acc[i]);
    }
    for (; r + 4 <= count; r += 4) {
        panel_rows<4>(panel, k, rows + r, acc);
        for (int i = 0; i < 4; i++) done(r + i, acc[i]);
    }
    for (; r < count; r++) {
        panel_rows<1>(panel, k, rows + r, acc);
        done(r, acc[0]);
    }
}

}  // namespace hs
