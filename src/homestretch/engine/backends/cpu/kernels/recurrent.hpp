// Convolution and the Mamba-2 recurrence over a stream's state: committed by replaying the rows of the last window that stand.
//
// A stream keeps its committed state and the inputs of its last window's rows, in two buffers that take turns: a step first takes the
// kept rows of the old one into the state, then runs its own rows from there without changing it. A prompt piece changes the state.
// SSM states lie transposed, state x head_dim (padded to 16): a row's outputs grow in the lanes. Formula: program.Ssm.
#pragma once
#include "engine.hpp"

namespace hs {

struct ConvStep {
    int in, out, channels, kernel, bias;
    int64_t state, replay;
    const float* weights;  // kernel x channels, oldest first
    ConvStep(const Step& s, const Engine& e)
        : in(s.a), out(s.out), channels(s.p[0]), kernel(s.p[1]), bias(s.p[2]), state(s.p[3]), replay(s.p[4]), weights(e.vectors[(size_t)s.vector].data()) {}
};

// Input `back` rows before row r of a window or piece: one of its own, or one of the kernel - 1 in the state.
inline const float* Run::conv_input(const ConvStep& s, const Window& w, int r) const {
    return r >= 0 ? at(w.first + r, s.in) : w.stream->state.data() + s.state + (int64_t)(s.kernel - 1 + r) * s.channels;
}

// Shift `count` inputs into the state; input(i) gives the i-th.
template <class Input>
static void shift_in(float* state, int kernel, int channels, int count, Input input) {
    for (int i = 0; i < kernel - 1; i++) {
        const int from = count - (kernel - 1) + i;
        memcpy(state + (int64_t)i * channels, from >= 0 ? input(from) : state + (int64_t)(i + count) * channels, (size_t)channels * 4);
    }
}

inline void Run::conv(const Step& step) {
    const ConvStep s(step, e);
    if (!c.prompt)
        for (int i = 0; i < c.windows; i++) {
            const Window& w = c.window[i];
            const float* old = w.stream->replay[w.stream->turn ^ 1].data() + s.replay;
            shift_in(w.stream->state.data() + s.state, s.kernel, s.channels, w.kept, [&](int r) { return old + (int64_t)r * s.channels; });
        }
    const float* bias = s.bias >= 0 ? e.vectors[(size_t)s.bias].data() : nullptr;
    for (int i = 0; i < c.windows; i++) {
        const Window& w = c.window[i];
        each_row(w.rows, [&](int r, int) {
            float* out = at(w.first + r, s.out);
            for (int ch = 0; ch < s.channels; ch += LANES) {
                const int left = s.channels - ch;
                F y = bias ? load(bias + ch, left) : F{};
                for (int tap = 0; tap < s.kernel; tap++)
                    y = fma(load(conv_input(s, w, r - (s.kernel - 1) + tap) + ch, left), load(s.weights + (int64_t)tap * s.channels + ch, left), y);
                store(out + ch, silu(y), left);
            }
            if (!c.prompt) memcpy(w.stream->replay[w.stream->turn].data() + s.replay + (int64_t)r * s.channels, at(w.first + r, s.in), (size_t)s.channels * 4);
        });
        if (c.prompt) shift_in(w.stream->state.data() + s.state, s.kernel, s.channels, w.rows, [&](int r) { return at(w.first + r, s.in); });
    }
}

struct SsmStep {
    int in, dt, out, heads, head_dim, groups, state, padded, channels;
    int64_t at, replay;
    const float *rate, *skip, *bias;
    float dt_min, dt_max;
    SsmStep(const Step& s, const Engine& e)
        : in(s.a),
          dt(s.b),
          out(s.out),
          heads(s.p[0]),
          head_dim(s.p[1]),
          groups(s.p[2]),
          state(s.p[3]),
          padded((s.p[1] + 15) / 16 * 16),
          channels(s.p[0] * s.p[1] + 2 * s.p[2] * s.p[3]),
          at(s.p[4]),
          replay(s.p[5]),
          rate(e.vectors[(size_t)s.p[6]].data()),
          skip(e.vectors[(size_t)s.p[7]].data()),
          bias(e.vectors[(size_t)s.p[8]].data()),
          dt_min(s.f[0]),
          dt_max(s.f[1]) {}
    int64_t head_floats() const { return (int64_t)state * padded; }
    int64_t row_floats() const { return channels + heads; }
};

// Step size and decay of one row of one head.
struct SsmPace {
    float d;
    F decay;
    SsmPace(const SsmStep& s, int h, float dt) {
        const float raw = dt + s.bias[h], soft = raw > 20.0f ? raw : std::log1p(std::exp(raw));
        d = std::min(std::max(soft, s.dt_min), s.dt_max);
        decay = splat(std::exp(s.rate[h] * d));
    }
};

// W vectors of head_dim from lane `at` on: from -> to (the same, or null: the new state is not wanted), and y unless null.
template <int W>
inline void ssm_lanes(const SsmStep& s, int h, const float* xbc, const SsmPace& pace, int at, const float* from, float* to, float* y) {
    const int group = h / (s.heads / s.groups);
    const float *b = xbc + s.heads * s.head_dim + group * s.state, *cc = b + s.groups * s.state, *x = xbc + h * s.head_dim + at;
    F in[W], moved[W], sum[W];
    for (int w = 0; w < W; w++) {
        in[w] = load(x + 16 * w, s.head_dim - at - 16 * w);
        moved[w] = in[w] * splat(pace.d);
        sum[w] = F{};
    }
    for (int n = 0; n < s.state; n++) {
        const F bn = splat(b[n]), cn = splat(cc[n]);
        const int64_t place = (int64_t)n * s.padded + at;
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            const F v = fma(moved[w], bn, load(from + place + 16 * w) * pace.decay);
            if (to) store(to + place + 16 * w, v);
            sum[w] = fma(v, cn, sum[w]);
        }
    }
    if (!y) return;
    for (int w = 0; w < W; w++) store(y + at + 16 * w, fma(in[w], splat(s.skip[h]), sum[w]), s.head_dim - at - 16 * w);
}

inline void ssm_row(const SsmStep& s, int h, const float* xbc, float dt, const float* from, float* to, float* y) {
    const SsmPace pace(s, h, dt);
    int at = 0;
    for (; at + 64 <= s.padded; at += 64) ssm_lanes<4>(s, h, xbc, pace, at, from, to, y);
    for (; at < s.padded; at += 16) ssm_lanes<1>(s, h, xbc, pace, at, from, to, y);
}

inline void Run::ssm(const Step& step) {
    const SsmStep s(step, e);
    for (int i = 0; i < c.windows && !c.prompt; i++) {  // for the next commit
        const Window& w = c.window[i];
        for (int r = 0; r < w.rows; r++) {
            float* keep = w.stream->replay[w.stream->turn].data() + s.replay + (int64_t)r * s.row_floats();
            memcpy(keep, at(w.first + r, s.in), (size_t)s.channels * 4);
            memcpy(keep + s.channels, at(w.first + r, s.dt), (size_t)s.heads * 4);
        }
    }
    const int64_t tasks = (int64_t)c.windows * s.heads, parts = pieces(tasks);
    e.pool.split(parts, [&](int piece, int thread) {
        for (int64_t task = tasks * piece / parts; task < tasks * (piece + 1) / parts; task++) {
            const Window& w = c.window[task / s.heads];
            const int h = (int)(task % s.heads);
            float* state = w.stream->state.data() + s.at + h * s.head_floats();
            if (c.prompt) {
                for (int r = 0; r < w.rows; r++)
                    ssm_row(s, h, at(r, s.in), at(r, s.dt)[h], state, state, at(r, s.out) + h * s.head_dim);
                continue;
            }
            const float* old = w.stream->replay[w.stream->turn ^ 1].data() + s.replay;
            for (int r = 0; r < w.kept; r++, old += s.row_floats()) ssm_row(s, h, old, old[s.channels + h], state, state, nullptr);
            float* ahead = w.rows > 1 ? e.local[(size_t)thread].floats.need((size_t)s.head_floats()) : nullptr;
            for (int r = 0; r < w.rows; r++)
                ssm_row(s, h, at(w.first + r, s.in), at(w.first + r, s.dt)[h], r ? ahead : state, r + 1 < w.rows ? ahead : nullptr, at(w.first + r, s.out) + h * s.head_dim);
        }
    });
}

}  // namespace hs
