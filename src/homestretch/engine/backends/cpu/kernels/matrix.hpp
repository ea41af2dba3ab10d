// Weight matrices, repacked so that a thread reads them from front to back: blocks of 16 outputs, all inputs of a block together.
//
// Affine (value = scale * q + bias): per group of inputs the q values, four inputs of each of 16 outputs in 64 bytes (for 4 bits the
// low nibbles hold inputs 0-3, the high ones inputs 4-7), then 16 scales and 16 biases in the checkpoint's own float type.
// bfloat16: pairs of inputs, 16 x 2. float32: single inputs, 16.
#pragma once
#include <cstdlib>

#include "lanes.hpp"
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hs {

enum Scales : int32_t { SCALES_HALF = 0, SCALES_BF16 = 1, SCALES_F32 = 2 };
enum Storage : int32_t { AFFINE4 = 4, AFFINE8 = 8, BF16 = 16, F32 = 32 };

inline void* allocate(size_t bytes) {
    size_t huge = (size_t)2 << 20, step = bytes >= huge ? huge : 64;
    void* p = aligned_alloc(step, (bytes + step - 1) / step * step);
#if defined(__linux__)
    if (p && bytes >= huge) madvise(p, (bytes + step - 1) / step * step, MADV_HUGEPAGE);
#endif
    return p;
}

struct Matrix {
    int32_t storage, group, scales, experts;
    int64_t n, k;         // outputs and inputs of one expert
    int64_t blocks;       // of 16 outputs, the last one padded
    int64_t block_bytes;  // all inputs of a block
    uint8_t* data;

    int64_t groups() const { return k / group; }
    int64_t scale_bytes() const { return scales == SCALES_F32 ? 64 : 32; }
    int64_t group_bytes() const { return (int64_t)group * 16 * storage / 8 + 2 * scale_bytes(); }
    const uint8_t* block(int64_t expert, int64_t b) const { return data + (expert * blocks + b) * block_bytes; }

    void size() {
        blocks = (n + 15) / 16;
        if (storage == AFFINE4 || storage == AFFINE8)
            block_bytes = groups() * group_bytes();
        else if (storage == BF16)
            block_bytes = (k + 1) / 2 * 64;
        else
            block_bytes = k * 64;
    }
};

HS_INLINE F load_scales(const uint8_t* p, int32_t kind) {
    if (kind == SCALES_HALF) return from_half((const uint16_t*)p);
    if (kind == SCALES_BF16) return from_bf16((const uint16_t*)p);
    return load((const float*)p);
}

// q values of one row: `bits` wide, a little-endian bit stream.
inline uint32_t bits_at(const uint8_t* row, int64_t index, int bits) {
    int64_t bit = index * bits;
    uint32_t v = row[bit >> 3];
    if ((bit & 7) + bits > 8) v |= (uint32_t)row[(bit >> 3) + 1] << 8;
    return (v >> (bit & 7)) & ((1u << bits) - 1);
}

// Repack one block. words: (experts * n, k * bits / 32); scales, biases: (experts * n, k / group) in the matrix's scale type.
inline void pack_affine(const Matrix& m, int64_t index, const uint8_t* words, int bits, const uint8_t* scales, const uint8_t* biases) {
    int64_t expert = index / m.blocks, b = index % m.blocks, row_bytes = m.k * bits / 8, item = m.scale_bytes() / 16, groups = m.groups();
    uint8_t* out = (uint8_t*)m.block(expert, b);
    memset(out, 0, (size_t)m.block_bytes);
    for (int64_t r = 0; r < 16 && b * 16 + r < m.n; r++) {
        int64_t row = expert * m.n + b * 16 + r;
        const uint8_t* src = words + row * row_bytes;
        for (int64_t g = 0; g < groups; g++) {
            uint8_t* to = out + g * m.group_bytes();
            if (m.storage == AFFINE4 && bits == 4) {
                for (int64_t i = 0; i < m.group; i += 8) {
                    const uint8_t* s = src + (g * m.group + i) / 2;
                    uint8_t* d = to + i * 8 + r * 4;
                    d[0] = (uint8_t)((s[0] & 15) | (s[2] & 15) << 4);
                    d[1] = (uint8_t)(s[0] >> 4 | (s[2] & 0xf0));
                    d[2] = (uint8_t)((s[1] & 15) | (s[3] & 15) << 4);
                    d[3] = (uint8_t)(s[1] >> 4 | (s[3] & 0xf0));
                }
            } else if (m.storage == AFFINE8 && bits == 8) {
                for (int64_t i = 0; i < m.group; i += 4) memcpy(to + i * 16 + r * 4, src + g * m.group + i, 4);
            } else {
                for (int64_t i = 0; i < m.group; i++) {
                    uint32_t q = bits_at(src, g * m.group + i, bits);
                    if (m.storage == AFFINE4)
                        to[(i / 8) * 64 + r * 4 + (i & 3)] |= (uint8_t)(q << (i & 4));
                    else
                        to[(i / 4) * 64 + r * 4 + (i & 3)] = (uint8_t)q;
                }
            }
            uint8_t* s = to + m.group * 16 * m.storage / 8;
            memcpy(s + r * item, scales + (row * groups + g) * item, (size_t)item);
            memcpy(s + m.scale_bytes() + r * item, biases + (row * groups + g) * item, (size_t)item);
        }
    }
}

// Repack one block of a dense matrix: src (experts * n, k) in bf16 or fp32, as the matrix is stored.
inline void pack_dense(const Matrix& m, int64_t index, const uint8_t* src) {
    int64_t expert = index / m.blocks, b = index % m.blocks;
    uint8_t* out = (uint8_t*)m.block(expert, b);
    memset(out, 0, (size_t)m.block_bytes);
    for (int64_t r = 0; r < 16 && b * 16 + r < m.n; r++) {
        int64_t row = expert * m.n + b * 16 + r;
        for (int64_t i = 0; i < m.k; i++) {
            if (m.storage == BF16)
                ((uint16_t*)out)[(i / 2) * 32 + r * 2 + (i & 1)] = ((const uint16_t*)src)[row * m.k + i];
            else
                ((float*)out)[i * 16 + r] = ((const float*)src)[row * m.k + i];
        }
    }
}

// Row `row` as float32 (an embedding).
inline void unpack_row(const Matrix& m, int64_t row, float* out) {
    const uint8_t* p = m.block(0, row / 16);
    int64_t r = row % 16;
    for (int64_t i = 0; i < m.k; i++) {
        if (m.storage == BF16) {
            out[i] = from_bf16(((const uint16_t*)p)[(i / 2) * 32 + r * 2 + (i & 1)]);
        } else if (m.storage == F32) {
            out[i] = ((const float*)p)[i * 16 + r];
        } else {
            int64_t g = i / m.group, j = i % m.group;
            const uint8_t* q = p + g * m.group_bytes();
            const uint8_t* s = q + m.group * 16 * m.storage / 8;
            int v = m.storage == AFFINE4 ? (q[(j / 8) * 64 + r * 4 + (j & 3)] >> (j & 4)) & 15 : q[(j / 4) * 64 + r * 4 + (j & 3)];
            float scale = load_scales(s, m.scales)[r], bias = load_scales(s + m.scale_bytes(), m.scales)[r];
            out[i] = scale * (float)v + bias;
        }
    }
}

}  // namespace hs
