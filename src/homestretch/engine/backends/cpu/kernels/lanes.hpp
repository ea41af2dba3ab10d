// Sixteen lanes of float32 or int32, and the product of bytes with signed bytes that everything rests on.
//
// One vocabulary for every processor: the compiler lowers the 64-byte vectors to what it has (one AVX-512 register, two AVX2,
// four NEON); only what it would lower badly is written out. Built with -ffp-contract=off: a fused product is asked for by name.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace hs {

typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef float Funaligned __attribute__((vector_size(64), aligned(4)));
typedef uint16_t H __attribute__((vector_size(32), aligned(2)));
constexpr int LANES = 16;

#define HS_INLINE inline __attribute__((always_inline))

HS_INLINE F splat(float x) { return F{} + x; }
HS_INLINE I splat(int32_t x) { return I{} + x; }
HS_INLINE F load(const float* p) { return *(const Funaligned*)p; }
HS_INLINE void store(float* p, F v) { *(Funaligned*)p = v; }
HS_INLINE F to_float(I v) { return __builtin_convertvector(v, F); }

// The first n of sixteen lanes, zeros after them.
HS_INLINE F load(const float* p, int n) {
    if (n >= LANES) return load(p);
#if defined(__AVX512F__)
    return (F)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    F v{};
    memcpy(&v, p, (size_t)n * 4);
    return v;
#endif
}
HS_INLINE void store(float* p, F v, int n) {
    if (n >= LANES) return store(p, v);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    memcpy(p, &v, (size_t)n * 4);
#endif
}

HS_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    F r;
    for (int i = 0; i < 2; i++) ((__m256*)&r)[i] = _mm256_fmadd_ps(((__m256*)&a)[i], ((__m256*)&b)[i], ((__m256*)&c)[i]);
    return r;
#elif defined(__ARM_NEON)
    F r;
    for (int i = 0; i < 4; i++) ((float32x4_t*)&r)[i] = vfmaq_f32(((float32x4_t*)&c)[i], ((float32x4_t*)&a)[i], ((float32x4_t*)&b)[i]);
    return r;
#else
    return a * b + c;
#endif
}
HS_INLINE F max(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}
HS_INLINE F abs(F a) { return (F)((I)a & 0x7fffffff); }

// Sum and maximum over the lanes, by halves.
HS_INLINE float sum(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float a[LANES];
    memcpy(a, &v, 64);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a[i] += a[i + h];
    return a[0];
#endif
}
HS_INLINE int32_t sum(I v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t a[LANES], s = 0;
    memcpy(a, &v, 64);
    for (int i = 0; i < LANES; i++) s += a[i];
    return s;
#endif
}
HS_INLINE float largest(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float a[LANES];
    memcpy(a, &v, 64);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) a[i] = a[i] > a[i + h] ? a[i] : a[i + h];
    return a[0];
#endif
}

// Nearest integer, halves to even; exact for |x| < 2^22.
HS_INLINE I nearest(F x) {
#if defined(__AVX512F__)
    return (I)_mm512_cvtps_epi32((__m512)x);
#else
    const F magic = splat(12582912.0f);
    return (I)(x + magic) - (I)magic;
#endif
}

// e^x by 2^n * e^r with |r| <= ln2/2 and the Taylor polynomial of degree 7; relative error below 2e-7; 0 below -87.
HS_INLINE F exp(F x) {
    const F low = splat(-87.0f), high = splat(88.0f);
#if defined(__AVX512F__)
    // max and min return their second operand for NaN, which must stay one.
    F c = (F)_mm512_min_ps((__m512)high, _mm512_max_ps((__m512)low, (__m512)x));
#else
    F c = x < low ? low : x > high ? high : x;
#endif
    I n = nearest(c * splat(1.44269504088896f));
    F f = to_float(n);
    F r = fma(f, splat(-0.693359375f), c);
    r = fma(f, splat(2.12194440e-4f), r);
    F p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    F y = p * (F)((n + 127) << 23);
#if defined(__AVX512F__)
    return (F)_mm512_mask_mov_ps((__m512)y, _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_LT_OQ), _mm512_setzero_ps());
#else
    return x < low ? F{} : y;
#endif
}
HS_INLINE F sigmoid(F x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }
HS_INLINE F silu(F x) { return x / (splat(1.0f) + exp(-x)); }

// 16-bit floats.
HS_INLINE float from_bf16(uint16_t v) {
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
HS_INLINE uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
HS_INLINE F from_bf16(const uint16_t* p) { return (F)(__builtin_convertvector(*(const H*)p, I) << 16); }

HS_INLINE F from_half(const uint16_t* p) {
#if defined(__AVX512F__)
    return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    F r;
    for (int i = 0; i < 2; i++) ((__m256*)&r)[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8 * i)));
    return r;
#elif defined(__ARM_NEON)
    F r;
    for (int i = 0; i < 4; i++) ((float32x4_t*)&r)[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
#else
    // Shift the half's exponent and mantissa into place and let a product rebias it; also right for subnormals.
    I u = __builtin_convertvector(*(const H*)p, I);
    F m = (F)((u & 0x7fff) << 13) * splat(5.192296858534828e33f);  // 2^112
    F inf = (F)(((u & 0x7fff) << 13) | 0x7f800000);
    m = (u & 0x7c00) == splat(0x7c00) ? inf : m;
    return (F)((I)m | ((u & 0x8000) << 16));
#endif
}
HS_INLINE uint16_t to_half(float f) {
#if defined(__F16C__) || defined(__AVX512F__)
    return (uint16_t)_cvtss_sh(f, 0);
#elif defined(__ARM_NEON)
    __fp16 h = (__fp16)f;
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
#else
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a >= 0x7f800000) return (uint16_t)(sign | (a > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) {  // subnormal half: an integer number of 2^-24
        float m;
        memcpy(&m, &a, 4);
        return (uint16_t)(sign | (uint32_t)nearbyintf(m * 16777216.0f));
    }
    a += 0xfff + ((a >> 13) & 1);
    return (uint16_t)(sign | ((a - 0x38000000) >> 13));
#endif
}

// acc[lane] += sum over 4 of w[4 lane + i] * x[i]: w are 64 unsigned bytes, x four signed bytes. TWICE: w is below 128.
template <bool SMALL>
HS_INLINE I dot4(I acc, I w, const int8_t* x) {
    int32_t four;
    memcpy(&four, x, 4);
#if defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
    I r = acc;
    for (int i = 0; i < 2; i++) {
        __m256i v = ((__m256i*)&w)[i], b = _mm256_set1_epi32(four), *out = (__m256i*)&r + i;
#if defined(__AVXVNNI__)
        *out = _mm256_dpbusd_avx_epi32(*out, v, b);
#else
        if (SMALL) {  // 2 * 15 * 127 fits 16 bits
            *out = _mm256_add_epi32(*out, _mm256_madd_epi16(_mm256_maddubs_epi16(v, b), _mm256_set1_epi16(1)));
        } else {  // even and odd bytes apart, widened: 255 * 127 * 2 does not fit 16 bits
            const __m256i even = _mm256_set1_epi16(0xff);
            __m256i xe = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), xo = _mm256_srai_epi16(b, 8);
            *out = _mm256_add_epi32(*out, _mm256_madd_epi16(_mm256_and_si256(v, even), xe));
            *out = _mm256_add_epi32(*out, _mm256_madd_epi16(_mm256_srli_epi16(v, 8), xo));
        }
#endif
    }
    return r;
#elif defined(__ARM_FEATURE_DOTPROD)
    I r = acc;
    int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int i = 0; i < 4; i++) {
        int32x4_t* out = (int32x4_t*)&r + i;
        uint8x16_t v = ((uint8x16_t*)&w)[i];
        if (SMALL) {
            *out = vdotq_s32(*out, vreinterpretq_s8_u8(v), b);
        } else {  // w = (w - 128) + 128, the bytes as signed ones
            int8x16_t centred = vreinterpretq_s8_u8(veorq_u8(v, vdupq_n_u8(128)));
            *out = vdotq_s32(*out, centred, b);
            *out = vaddq_s32(*out, vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), b), 7));
        }
    }
    return r;
#else
    uint8_t b[64];
    int32_t a[LANES];
    memcpy(b, &w, 64);
    memcpy(a, &acc, 64);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) a[i] += b[4 * i + j] * x[j];
    memcpy(&acc, a, 64);
    return acc;
#endif
}

}  // namespace hs
