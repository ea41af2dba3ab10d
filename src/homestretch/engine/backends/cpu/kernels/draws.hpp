// Keyed draws without sorting the vocabulary: the arithmetic of engine/draws.py, bit for bit, split over threads.
//
// Sums follow draws.total: blocks of 1,024 ids, halved within, added from the first to the last; so any split of the blocks over
// threads gives the same bits. Noise is only evaluated where it could win: it never exceeds 16.64.
#pragma once
#include <algorithm>
#include <vector>

#include "lanes.hpp"
#include "pool.hpp"

namespace hs {

struct Draw {  // mirrors native.Draw
    uint64_t seed;
    int64_t position;
    float temperature, inverse;
    int32_t top_k, biases, logprobs, pad;
    double top_p, min_p;
    const int32_t* bias_ids;
    const float* bias_values;
    const uint8_t* mask;
};
struct Drawn {  // mirrors native.Drawn
    int32_t token, fault, top, pad;
    double logprob;
    int32_t* top_ids;
    double* top_values;
};
enum Fault : int32_t { FAULT_NONE = 0, FAULT_NAN = 1, FAULT_EMPTY = 2 };

constexpr float COLD = 1e-6f;
constexpr int SUM_BLOCK = 1024;
constexpr float LARGEST_NOISE = 16.65f;

inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

inline float log32(float x) {
    static const float poly[] = {-0x1.43b246p-4f, 0x1.02814ep-3f,  -0x1.0a33eap-3f, 0x1.231ce6p-3f,
                                 -0x1.54d03ep-3f, 0x1.999f14p-3f, -0x1.0000cep-2f, 0x1.555554p-2f};
    int32_t bits;
    memcpy(&bits, &x, 4);
    bits -= 0x3F3504F3;
    float exponent = (float)(bits >> 23), m;
    int32_t mantissa = (bits & 0x7FFFFF) + 0x3F3504F3;
    memcpy(&m, &mantissa, 4);
    float f = m - 1.0f, z = f * f, p = poly[0];
    for (int i = 1; i < 8; i++) p = p * f + poly[i];
    float y = (f * p) * z;
    y = y + exponent * -2.12194440e-4f;
    y = y - 0.5f * z;
    y = f + y;
    return y + exponent * 0.693359375f;
}

inline double exp64(double x) {
    if (x < -700.0) return 0.0;
    double k = std::nearbyint(x * 1.4426950408889634);
    double r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    static const double poly[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                                  1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
                                  1.0 / 6.0,          0.5,               1.0,              1.0};
    double p = poly[0];
    for (int i = 1; i < 14; i++) p = p * r + poly[i];
    int64_t bits = ((int64_t)k + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, 8);
    return p * scale;
}

// Eight at a time; the same operations in the same order.
typedef double D __attribute__((vector_size(64)));
typedef int64_t L __attribute__((vector_size(64)));
HS_INLINE D exp64(D x) {
    const D magic = D{} + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, halves to even
    D low = D{} - 700.0, c = x < low ? low : x;
    D t = c * 1.4426950408889634 + magic, k = t - magic;
    L n = (L)t - (L)magic;
    D r = (c - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    D p = D{} + 1.0 / 6227020800.0;
    for (double a : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0,
                     1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0})
        p = p * r + a;
    D scaled = p * (D)((n + 1023) << 52);
    return x < low ? D{} : scaled;
}

inline uint32_t noise_bits(uint64_t key, int64_t id) { return (uint32_t)(mix64(key ^ ((uint64_t)id * 0xD1342543DE82EF95ull)) >> 41); }
inline float noise(uint32_t bits) {
    float u = ((float)bits + 0.5f) * 0x1p-23f;
    return -log32(-log32(u));
}
// The fewest bits whose noise may reach n, less a margin, for n = 0 .. 16: most ids are passed over without a logarithm.
struct NoiseFloor {
    uint32_t bits[18];
    NoiseFloor() {
        for (int n = 0; n < 18; n++) {
            double u = std::exp(-std::exp(-(double)n)) * 8388608.0 - 0.5 - 64.0;
            bits[n] = u < 0 ? 0 : (uint32_t)u;
        }
    }
    uint32_t operator()(float need) const { return need < 0 ? 0 : bits[need > 16 ? 16 : (int)need]; }
};

inline const NoiseFloor& noise_floor() {
    static const NoiseFloor floor;
    return floor;
}

struct Peak {
    float value;
    int64_t id;
    bool nan;
};

// Scratch of a draw; a slice of the vocabulary fills its own entries.
struct Drawing {
    std::vector<Peak> best;
    std::vector<double> blocks, weights;  // of every id, where a sum was asked for
    std::vector<std::vector<uint64_t>> found;
    std::vector<uint64_t> order;  // candidates by rank
};

// Candidate order, logit descending and id ascending, is the order of these integers: the logit's bits, falling, then the id.
HS_INLINE uint64_t rank_of(float logit, int64_t id) {
    const float x = logit + 0.0f;  // -0 is 0
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint64_t)(u & 0x80000000u ? u : ~u & 0x7fffffffu) << 32 | (uint32_t)id;
}
HS_INLINE int64_t id_of(uint64_t rank) { return (int64_t)(uint32_t)rank; }

class Drawer {
    Pool& pool_;
    Drawing& d_;
    const int64_t vocab_, blocks_;
    const int slices_;
    uint64_t key_ = 0;
    float sure_ = 0;  // a noisy value that is reached for sure

    // fn(slice, first id, last id) over the pool; a slice is whole sum blocks.
    template <class Fn>
    void slices(Fn fn) {
        pool_.split(slices_, [&](int s, int) {
            fn((size_t)s, std::min(vocab_, blocks_ * s / slices_ * SUM_BLOCK), std::min(vocab_, blocks_ * (s + 1) / slices_ * SUM_BLOCK));
        });
    }

    // exp(x * inverse - peak) of the 1,024 ids from b on, zeros past the vocabulary.
    void block_weights(const float* x, float inverse, double peak, int64_t b, double* lanes) const {
        int64_t n = std::min<int64_t>(SUM_BLOCK, vocab_ - b), i = 0;
        for (; i + 8 <= n; i += 8) {
            typedef float Eight __attribute__((vector_size(32), aligned(4)));
            Eight v = *(const Eight*)(x + b + i) * inverse;
            *(D*)(lanes + i) = exp64(__builtin_convertvector(v, D) - peak);
        }
        for (; i < n; i++) lanes[i] = exp64((double)(x[b + i] * inverse) - peak);
        for (; i < SUM_BLOCK; i++) lanes[i] = 0.0;
    }

    // Sum of exp(x * inverse - peak) over the ids whose rank is not past `last_rank`, in the fixed order; keeps every weight.
    double total(const float* x, float inverse, double peak, uint64_t last_rank) {
        d_.weights.resize((size_t)(blocks_ * SUM_BLOCK));
        slices([&](size_t, int64_t first, int64_t last) {
            alignas(64) double lanes[SUM_BLOCK];
            for (int64_t b = first; b < last; b += SUM_BLOCK) {
                block_weights(x, inverse, peak, b, lanes);
                memcpy(d_.weights.data() + b, lanes, sizeof lanes);
                if (last_rank != ~0ull)
                    for (int64_t i = b; i < std::min(b + SUM_BLOCK, vocab_); i++)
                        if (rank_of(x[i], i) > last_rank) lanes[i - b] = 0.0;
                for (int w = SUM_BLOCK / 2; w; w /= 2)
                    for (int i = 0; i < w; i++) lanes[i] += lanes[i + w];
                d_.blocks[(size_t)(b / SUM_BLOCK)] = lanes[0];
            }
        });
        double s = 0;
        for (double v : d_.blocks) s += v;
        return s;
    }

    // The ids with x >= threshold into order, not sorted yet.
    void gather(const float* x, float threshold) {
        slices([&](size_t s, int64_t i, int64_t last) {
            auto& mine = d_.found[s];
            mine.clear();
            for (; i + LANES <= last; i += LANES)
                if (largest(load(x + i)) >= threshold)
                    for (int64_t j = i; j < i + LANES; j++)
                        if (x[j] >= threshold) mine.push_back(rank_of(x[j], j));
            for (; i < last; i++)
                if (x[i] >= threshold) mine.push_back(rank_of(x[i], i));
        });
        d_.order.clear();
        for (auto& f : d_.found) d_.order.insert(d_.order.end(), f.begin(), f.end());
    }
    void sort() { std::sort(d_.order.begin(), d_.order.end()); }

    // At least `count` of the first ids in candidate order into order (all that there are, if fewer).
    void first(const float* x, float top, float step, int64_t count) {
        for (float below = step;; below *= 2) {
            const float threshold = below > 1e30f ? -INFINITY : top - below;
            gather(x, threshold);
            if ((int64_t)d_.order.size() >= count || threshold == -INFINITY) return sort();
        }
    }

    // False when none of 16 ids from i on can reach the sure value: judged by their best logit and their largest noise bits.
    HS_INLINE bool hopeful(const float* x, int64_t i, float inverse, float sure) const {
        const float need = sure - largest(load(x)) * inverse;
        if (need > LARGEST_NOISE) return false;
        typedef uint64_t U __attribute__((vector_size(64)));
        const U lane = {0, 1, 2, 3, 4, 5, 6, 7};
        U most{};
        for (int h = 0; h < 2; h++) {
            U v = ((lane + (uint64_t)(i + 8 * h)) * 0xD1342543DE82EF95ull) ^ key_;
            v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
            v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
            v = (v ^ (v >> 31)) >> 41;
            most = v > most ? v : most;
        }
        uint64_t top = 0;
        for (int n = 0; n < 8; n++) top = std::max<uint64_t>(top, most[n]);
        return top >= noise_floor()(need - 0.001f);
    }

    // The best noisy value so far and its id, ties to the lower id.
    struct Race {
        const Drawer& d;
        const float* x;
        const float inverse;
        float sure, best = -INFINITY;
        int64_t id = -1;
        void take(int64_t i) {
            const float scaled = x[i] * inverse, need = sure - scaled;
            if (need > LARGEST_NOISE) return;
            const uint32_t bits = noise_bits(d.key_, i);
            if (bits < noise_floor()(need - 0.001f)) return;
            const float value = scaled + noise(bits);
            if (id < 0 || value > best || (value == best && i < id)) best = value, id = i;
            if (best > sure) sure = best;
        }
    };

    // The noisy argmax over all ids.
    int64_t noisy_all(const float* x, float inverse) {
        slices([&](size_t s, int64_t i, int64_t last) {
            Race race{*this, x, inverse, sure_};
            for (; i + LANES <= last; i += LANES)
                if (hopeful(x + i, i, inverse, race.sure))
                    for (int64_t j = i; j < i + LANES; j++) race.take(j);
            for (; i < last; i++) race.take(i);
            d_.best[s] = Peak{race.best, race.id, false};
        });
        Peak b{-INFINITY, -1, false};
        for (const Peak& o : d_.best)
            if (o.id >= 0 && (b.id < 0 || o.value > b.value)) b = o;
        return b.id;
    }

   public:
    Drawer(Pool& pool, Drawing& d, int64_t vocab)
        : pool_(pool), d_(d), vocab_(vocab), blocks_((vocab + SUM_BLOCK - 1) / SUM_BLOCK), slices_((int)std::min<int64_t>(blocks_, 2 * pool.count())) {
        d_.best.resize((size_t)slices_);
        d_.found.resize((size_t)slices_);
        d_.blocks.resize((size_t)blocks_);
    }

    // The largest logit (lowest id), and whether there is a NaN.
    Peak peak(const float* x) {
        slices([&](size_t s, int64_t first, int64_t last) {
            Peak b{-INFINITY, -1, false};
            F top = splat(-INFINITY);
            I odd{};
            int64_t i = first;
            for (; i + LANES <= last; i += LANES) {
                F v = load(x + i);
                odd |= (I)(v != v);
                top = max(top, v);
            }
            b.value = largest(top);
            b.nan = sum(odd) != 0;
            for (; i < last; i++) {
                b.nan |= std::isnan(x[i]);
                b.value = std::max(b.value, x[i]);
            }
            if (!b.nan)
                for (i = first; i < last && b.id < 0; i++)
                    if (x[i] == b.value) b.id = i;
            d_.best[s] = b;
        });
        Peak b = d_.best[0];
        for (const Peak& o : d_.best) {
            b.nan |= o.nan;
            if (o.id >= 0 && (b.id < 0 || o.value > b.value)) b.value = o.value, b.id = o.id;
        }
        return b;
    }

    // x: the logits with bias and mask applied; top: their peak.
    int64_t draw(const float* x, const Draw& draw, Peak top) {
        if (draw.temperature < COLD) return top.id;
        const float inverse = draw.inverse;
        const double peak = (double)(top.value * inverse);
        bool summed = false;
        auto weight = [&](uint64_t rank) {
            const int64_t i = id_of(rank);
            return summed ? d_.weights[(size_t)i] : exp64((double)(x[i] * inverse) - peak);
        };
        key_ = mix64(draw.seed + 0x9E3779B97F4A7C15ull * (uint64_t)(draw.position + 1));
        sure_ = top.value * inverse + noise(noise_bits(key_, top.id));
        const bool few = draw.top_k > 0 && draw.top_k < vocab_;
        // Every id of positive weight is kept, and none below e^-700 of the largest could win.
        if (!few && draw.top_p >= 1.0 && draw.min_p <= 0.0) return noisy_all(x, inverse);
        int64_t keep = 0;
        if (few) {
            first(x, top.value, 8.0f * draw.temperature, draw.top_k);
            keep = std::min<int64_t>(draw.top_k, (int64_t)d_.order.size());
        }
        if (draw.top_p < 1.0) {
            const double wanted = draw.top_p * total(x, inverse, peak, few ? d_.order[(size_t)keep - 1] : ~0ull);
            summed = true;
            // Lower the threshold until what is above it holds the wanted mass with a margin for the order of the sum; sort only that.
            for (float below = 3.0f * draw.temperature; !few; below += draw.temperature) {
                const float threshold = below > 64.0f * draw.temperature ? -INFINITY : top.value - below;
                gather(x, threshold);
                double mass = 0;
                for (uint64_t rank : d_.order) mass += weight(rank);
                keep = (int64_t)d_.order.size();
                if (mass >= wanted * (1 + 1e-9) || threshold == -INFINITY) break;
            }
            if (!few) sort();
            double mass = 0;
            for (int64_t n = 0; n < keep; n++)
                if ((mass += weight(d_.order[(size_t)n])) >= wanted) keep = n + 1;
        } else if (!few) {  // min-p alone: weight >= min_p means x * inverse - peak >= ln(min_p); gathered with a margin
            gather(x, (float)((peak + std::log(draw.min_p) - 0.001) / inverse) - std::abs(top.value) * 1e-6f);
            keep = (int64_t)d_.order.size();
        }
        Race race{*this, x, inverse, sure_};
        for (int64_t n = 0; n < keep; n++) {
            const double w = weight(d_.order[(size_t)n]);
            if (w > 0.0 && (draw.min_p <= 0.0 || w >= draw.min_p)) race.take(id_of(d_.order[(size_t)n]));
        }
        return race.id;
    }

    // The token's log probability and the largest ones, of the unmodified distribution.
    void logprobs(const float* raw, int64_t token, int32_t count, Drawn& out) {
        const Peak top = peak(raw);
        const double peak = (double)top.value;
        const double ground = peak + std::log(total(raw, 1.0f, peak, ~0ull));
        first(raw, top.value, 8.0f, std::min<int64_t>(count, vocab_));
        out.logprob = (double)raw[token] - ground;
        out.top = (int32_t)std::min<int64_t>(count, (int64_t)d_.order.size());
        for (int32_t i = 0; i < out.top; i++) {
            out.top_ids[i] = (int32_t)id_of(d_.order[(size_t)i]);
            out.top_values[i] = (double)raw[out.top_ids[i]] - ground;
        }
    }
};

}  // namespace hs
