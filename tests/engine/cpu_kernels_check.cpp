// Checks the kernels that each instruction set writes out for itself against plain loops in double; built for several targets by
// test_cpu_targets.py. Prints what failed, exits 1.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attention.hpp"
#include "draws.hpp"
#include "prompt_attention.hpp"
#include "rows.hpp"
#include "tiles.hpp"

using namespace hs;

static uint32_t seed = 1;
static double uniform() {
    seed = seed * 1664525 + 1013904223;
    return (double)(seed >> 8) / (1 << 24) * 2 - 1;
}
static int failures = 0;
static void expect(const char* what, double error, double limit) {
    if (!(error <= limit)) {
        printf("%s: error %g above %g\n", what, error, limit);
        failures++;
    }
}

static void products(int storage, int group, int scales, int64_t n, int64_t k) {
    Matrix m{storage, group, scales, 1, n, k, 0, 0, nullptr};
    m.size();
    m.data = (uint8_t*)allocate((size_t)(m.blocks * m.block_bytes) + 8192);
    std::vector<double> wide((size_t)(n * k));
    const bool packed = storage == AFFINE4 || storage == AFFINE8;
    if (packed) {
        const int levels = storage == AFFINE4 ? 16 : 256;
        std::vector<uint8_t> words((size_t)(n * k * storage / 8));
        const size_t item = scales == SCALES_F32 ? 4 : 2, groups = (size_t)(n * k / group);
        std::vector<uint8_t> factors(groups * item), offsets(groups * item);
        std::vector<float> s(groups), b(groups);
        for (size_t i = 0; i < groups; i++) {
            float pair[2] = {(float)uniform() / levels, (float)uniform()};
            for (int j = 0; j < 2; j++) {
                uint8_t* to = (j ? offsets : factors).data() + i * item;
                uint16_t v = scales == SCALES_HALF ? to_half(pair[j]) : to_bf16(pair[j]);
                if (scales == SCALES_F32) memcpy(to, &pair[j], 4);
                else memcpy(to, &v, 2), pair[j] = scales == SCALES_HALF ? (memcpy(&v, to, 2), 0.0f) : from_bf16(v);
                if (scales == SCALES_HALF) {
                    uint16_t many[16] = {v};
                    pair[j] = from_half(many)[0];
                }
            }
            s[i] = pair[0];
            b[i] = pair[1];
        }
        for (int64_t i = 0; i < n * k; i++) {
            const int q = (int)((uniform() + 1) / 2 * levels);
            if (storage == AFFINE8) words[(size_t)i] = (uint8_t)q;
            else words[(size_t)i / 2] |= (uint8_t)(q << (i % 2 * 4));
            wide[(size_t)i] = (double)s[(size_t)(i / group)] * q + b[(size_t)(i / group)];
        }
        for (int64_t x = 0; x < m.blocks; x++) pack_affine(m, x, words.data(), storage, factors.data(), offsets.data());
    } else {
        std::vector<float> f((size_t)(n * k));
        std::vector<uint16_t> h((size_t)(n * k));
        for (int64_t i = 0; i < n * k; i++) {
            f[(size_t)i] = (float)uniform();
            if (storage == BF16) f[(size_t)i] = from_bf16(h[(size_t)i] = to_bf16(f[(size_t)i]));
            wide[(size_t)i] = f[(size_t)i];
        }
        for (int64_t x = 0; x < m.blocks; x++) pack_dense(m, x, storage == BF16 ? (uint8_t*)h.data() : (uint8_t*)f.data());
    }
    constexpr int ROWS = 16;
    std::vector<float> x((size_t)(ROWS * k) + 64);
    for (auto& v : x) v = (float)uniform();
    const size_t bytes = Row::bytes(k);
    uint8_t* memory = (uint8_t*)allocate(ROWS * bytes + 64);
    Row rows[ROWS];
    const Row* at[ROWS];
    std::vector<Element> elements((size_t)(ROWS * row_elements(k)));
    const Element* in[ROWS];
    for (int r = 0; r < ROWS; r++) {
        rows[r] = Row::at(memory + (size_t)r * bytes, k, x.data() + r * k);
        if (packed) quantize(rows[r].x, k, group, true, rows[r]);
        at[r] = &rows[r];
        to_elements(rows[r].x, k, elements.data() + r * row_elements(k));
        in[r] = elements.data() + r * row_elements(k);
    }
    Element* panel = (Element*)allocate(panel_bytes(k) + 64);
    double worst = 0, prompt = 0, size = 0;
    for (int64_t b = 0; b < m.blocks; b++) {
        F all[ROWS], one[1];
        block_rows(m.block(0, b), m, at, ROWS, true, all);
        fill_panel(m.block(0, b), m, panel, 0);
        fill_panel(m.block(0, b), m, panel, 1);
        F tiles[ROWS][2];
        panel_all(panel, k, in, ROWS, [&](int r, const F* y) { tiles[r][0] = y[0], tiles[r][1] = y[1]; });
        for (int r = 0; r < ROWS; r++) {
            for (int count = 1; count < 8; count++) {  // the same bits whatever rows share the call
                if (r + count > ROWS) continue;
                F some[8];
                block_rows(m.block(0, b), m, at + r, count, true, some);
                one[0] = some[0];
                if (memcmp(&one[0], &all[r], 64)) expect("bits of a row among others", 1, 0);
            }
            for (int64_t o = b * 16; o < std::min<int64_t>(n, b * 16 + 16); o++) {
                double truth = 0;
                for (int64_t i = 0; i < k; i++) truth += wide[(size_t)(o * k + i)] * x[(size_t)(r * k + i)];
                worst = std::max(worst, std::abs(truth - all[r][o - b * 16]));
                for (int h = 0; h < 2; h++) prompt = std::max(prompt, std::abs(truth - tiles[r][h][o - b * 16]));
                size = std::max(size, std::abs(truth));
            }
        }
    }
    char name[96];
    snprintf(name, sizeof name, "storage %d group %d scales %d (%ld, %ld)", storage, group, scales, (long)n, (long)k);
    expect(name, worst / size, packed ? 1e-4 : 1e-5);
    expect(name, prompt / size, sizeof(Element) == 2 ? 1.5e-2 : 1e-5);
    free(memory);
    free(panel);
    free(m.data);
}

static void attention(int heads, int dim, int tokens) {
    const KvShape s{heads, 1, dim, (dim + 15) / 16 * 16, 0.3f};
    int16_t* page = (int16_t*)allocate((size_t)s.head_words() * 2);
    memset(page, 0xff, (size_t)s.head_words() * 2);  // what nobody wrote must not be seen
    Chunk chunk(page, s);
    std::vector<float> k((size_t)(tokens * dim) + 64), v(k.size()), q((size_t)(heads * dim) + 64);
    for (auto* x : {&k, &v, &q})
        for (auto& y : *x) y = (float)uniform();
    for (int t = 0; t < tokens; t++) write_kv(chunk, s, t, k.data() + t * dim, v.data() + t * dim);
    std::vector<float> rows((size_t)(heads * s.padded)), tiles(rows.size());
    std::vector<const float*> qs;
    std::vector<float*> outs, tile_outs;
    std::vector<Span> spans;
    std::vector<Part> parts((size_t)heads), tile_parts((size_t)heads);
    const int64_t wide = TileChunk::query_elements(s);
    Element* memory = (Element*)allocate((size_t)(heads * wide + 64 + TileChunk::elements(s)) * sizeof(Element) + 64);
    std::vector<const Element*> queries;
    for (int h = 0; h < heads; h++) {
        qs.push_back(q.data() + h * dim);
        outs.push_back(rows.data() + h * s.padded);
        tile_outs.push_back(tiles.data() + h * s.padded);
        spans.push_back(Span{h % 3, tokens - h % 2});
        put_query(qs.back(), s, memory + h * wide);
        queries.push_back(memory + h * wide);
    }
    TileChunk tile(memory + (heads * wide + 31) / 32 * 32, s);
    tile.fill(chunk, s, tokens);
    chunk_all(chunk, s, qs.data(), spans.data(), heads, parts.data(), outs.data());
    tile_all(tile, s, queries.data(), spans.data(), heads, tile_parts.data(), tile_outs.data());
    double worst = 0, prompt = 0;
    for (int h = 0; h < heads; h++) {
        std::vector<double> e((size_t)tokens), mix((size_t)dim);
        double sum = 0;
        for (int t = spans[(size_t)h].low; t < spans[(size_t)h].high; t++) {
            double dot = 0;
            for (int d = 0; d < dim; d++) dot += (double)q[(size_t)(h * dim + d)] * k[(size_t)(t * dim + d)];
            sum += e[(size_t)t] = std::exp(dot * 0.3);
            for (int d = 0; d < dim; d++) mix[(size_t)d] += e[(size_t)t] * v[(size_t)(t * dim + d)];
        }
        for (int d = 0; d < dim; d++) {
            worst = std::max(worst, std::abs(mix[(size_t)d] / sum - outs[(size_t)h][d] / parts[(size_t)h].sum));
            prompt = std::max(prompt, std::abs(mix[(size_t)d] / sum - tile_outs[(size_t)h][d] / tile_parts[(size_t)h].sum));
        }
    }
    expect("attention rows", worst, 1e-4);
    expect("attention tiles", prompt, sizeof(Element) == 2 ? 1e-2 : 1e-4);
    free(page);
    free(memory);
}

int main() {
    double worst = 0;
    for (double x = -86; x < 87; x += 0.37) worst = std::max(worst, std::abs(exp(splat((float)x))[3] / std::exp((double)(float)x) - 1));
    expect("exp", worst, 5e-7);
    worst = 0;
    for (double x = -699; x <= 0; x += 1.7) {
        const D eight = D{} + x;
        worst = std::max(worst, std::abs(exp64(eight)[5] - exp64(x)));
    }
    expect("exp64, eight at a time as one", worst, 0);
    for (float x : {0.0f, 1.0f, -1.5f, 65504.0f, 6e-8f, 1e-5f, 0.333f}) {
        uint16_t many[16] = {to_half(x)};
        expect("half", std::abs(from_half(many)[0] - x), std::abs(x) * 5e-4 + 3e-8);
    }
    for (int scales : {SCALES_HALF, SCALES_BF16, SCALES_F32})
        for (int storage : {AFFINE4, AFFINE8})
            for (int group : {32, 64, 128}) products(storage, group, scales, 37, 256);
    for (int storage : {BF16, F32})
        for (int64_t k : {33, 64, 100}) products(storage, 0, 0, 37, k);
    for (int dim : {16, 20, 64, 80}) {
        attention(1, dim, 1 + 1);
        attention(7, dim, 77);
        attention(16, dim, 128);
    }
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
