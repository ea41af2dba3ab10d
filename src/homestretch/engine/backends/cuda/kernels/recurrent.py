"""The Mamba-2 mixer's state: causal convolution and SSM recurrence, as rows of a window and as chunks of a prompt.

A window does not change the state. Its inputs are saved, and the next window begins by replaying the rows that were kept, which
is the arithmetic that a serial reply does. Inputs are saved in two halves that take turns (`phase`), so that a replay reads one
half while the window writes the other.
"""

import triton
import triton.language as tl


@triton.jit
def conv_rows(
    x_ptr, weight_ptr, bias_ptr, state_ptr, saved_ptr, y_ptr, starts_ptr, slots_ptr, kept_ptr, phase_ptr, x_stride, SLOTS,
    C: tl.constexpr, TAPS: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """silu(conv + bias) of a window's rows; grid (windows, blocks of BC channels).

    state (slots, TAPS-1, C): inputs before the last window; saved (2, slots, MOST, C): inputs of the last window, raw.
    Channel c of row t: bias[c] + sum_i weight[c, i] * input[t - TAPS + 1 + i].
    """
    window = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    valid = c < C
    first = tl.load(starts_ptr + window)
    end = tl.load(starts_ptr + window + 1)
    if first == end:
        return
    slot = tl.load(slots_ptr + window).to(tl.int64)
    kept = tl.load(kept_ptr + window)
    phase = tl.load(phase_ptr + window)
    old = saved_ptr + (phase * SLOTS + slot) * (MOST * C)
    new = saved_ptr + ((1 - phase) * SLOTS + slot) * (MOST * C)
    state = state_ptr + slot * ((TAPS - 1) * C)
    i = tl.arange(0, BT)
    tap = i < TAPS - 1
    # The last TAPS-1 inputs that stand: position p of [state | kept rows], counted from the end.
    at = kept + i
    from_state = at < TAPS - 1
    carried = tl.load(state + at[:, None] * C + c[None, :], mask=(from_state & tap)[:, None] & valid[None, :], other=0.0)
    replayed = tl.load(
        old + (at - (TAPS - 1))[:, None] * C + c[None, :], mask=(~from_state & tap)[:, None] & valid[None, :], other=0.0
    )
    history = tl.where(from_state[:, None], carried, replayed)
    tl.debug_barrier()
    tl.store(state + i[:, None] * C + c[None, :], history, mask=tap[:, None] & valid[None, :])
    bias = tl.load(bias_ptr + c, mask=valid, other=0.0).to(tl.float32)
    for row in range(first, end):
        x = tl.load(x_ptr + row * x_stride + c, mask=valid, other=0.0)
        tl.store(new + (row - first) * C + c, x, mask=valid)
        total = bias + x * tl.load(weight_ptr + c * TAPS + (TAPS - 1), mask=valid, other=0.0).to(tl.float32)
        for tap_at in tl.static_range(TAPS - 1):
            past = tl.sum(tl.where((i == tap_at)[:, None], history, 0.0), axis=0)
            total += past * tl.load(weight_ptr + c * TAPS + tap_at, mask=valid, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * C + c, total / (1.0 + tl.exp(-total)), mask=valid)
        shifted = tl.zeros((BT, BC), dtype=tl.float32)
        for tap_at in tl.static_range(TAPS - 2):
            moved = tl.sum(tl.where((i == tap_at + 1)[:, None], history, 0.0), axis=0)
            shifted = tl.where((i == tap_at)[:, None], moved[None, :], shifted)
        history = tl.where((i == TAPS - 2)[:, None], x[None, :], shifted)


@triton.jit
def ssm_update(state, x, b, dt, a, dt_bias, dt_min, dt_max):
    """One step of the recurrence: S <- exp(a d) S + d x b^T, with d = clamp(softplus(dt + dt_bias))."""
    raw = dt + dt_bias
    soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    d = tl.minimum(tl.maximum(soft, dt_min), dt_max)
    return state * tl.exp(a * d) + (d * x)[:, None] * b[None, :]


@triton.jit
def ssm_rows(
    x_ptr, dt_ptr, a_log_ptr, d_ptr, dt_bias_ptr, state_ptr, saved_x_ptr, saved_dt_ptr, y_ptr,
    starts_ptr, slots_ptr, kept_ptr, phase_ptr, dt_stride, dt_min, dt_max, SLOTS,
    HEADS: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Replay the kept rows into the state, then run the window's rows from it; grid (windows, HEADS, P // BP).

    x (rows, HEADS*P + 2*GROUPS*N) after the convolution; state (slots, HEADS, P, N); saved_x (2, slots, MOST, width of x),
    saved_dt (2, slots, MOST, HEADS).
    """
    window = tl.program_id(0)
    head = tl.program_id(1)
    p = tl.program_id(2) * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    inside = n < N
    WIDTH: tl.constexpr = HEADS * P + 2 * GROUPS * N
    first = tl.load(starts_ptr + window)
    end = tl.load(starts_ptr + window + 1)
    if first == end:
        return
    slot = tl.load(slots_ptr + window).to(tl.int64)
    kept = tl.load(kept_ptr + window)
    phase = tl.load(phase_ptr + window)
    group = head // (HEADS // GROUPS)
    b_at = HEADS * P + group * N + n
    c_at = b_at + GROUPS * N
    a = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    skip = tl.load(d_ptr + head).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    place = state_ptr + (slot * HEADS + head) * (P * N) + p[:, None] * N + n[None, :]
    state = tl.load(place, mask=tl.broadcast_to(inside[None, :], (BP, BN)), other=0.0)
    old_x = saved_x_ptr + (phase * SLOTS + slot) * (MOST * WIDTH)
    old_dt = saved_dt_ptr + (phase * SLOTS + slot) * (MOST * HEADS)
    for row in tl.range(0, kept, num_stages=1):
        x = tl.load(old_x + row * WIDTH + head * P + p)
        b = tl.load(old_x + row * WIDTH + b_at, mask=inside, other=0.0)
        state = ssm_update(state, x, b, tl.load(old_dt + row * HEADS + head), a, dt_bias, dt_min, dt_max)
    if kept > 0:
        tl.store(place, state, mask=tl.broadcast_to(inside[None, :], (BP, BN)))
    new_x = saved_x_ptr + ((1 - phase) * SLOTS + slot) * (MOST * WIDTH)
    new_dt = saved_dt_ptr + ((1 - phase) * SLOTS + slot) * (MOST * HEADS)
    for row in tl.range(first, end, num_stages=1):
        x = tl.load(x_ptr + row * WIDTH + head * P + p)
        b = tl.load(x_ptr + row * WIDTH + b_at, mask=inside, other=0.0)
        c = tl.load(x_ptr + row * WIDTH + c_at, mask=inside, other=0.0)
        dt = tl.load(dt_ptr + row * dt_stride + head)
        at = row - first
        tl.store(new_x + at * WIDTH + head * P + p, x)
        tl.store(new_x + at * WIDTH + b_at, b, mask=inside)
        tl.store(new_dt + at * HEADS + head, dt)
        state = ssm_update(state, x, b, dt, a, dt_bias, dt_min, dt_max)
        y = tl.sum(state * c[None, :], axis=1) + skip * x
        tl.store(y_ptr + row * (HEADS * P) + head * P + p, y)


@triton.jit(do_not_specialize=["rows"])
def conv_tiles(
    x_ptr, weight_ptr, bias_ptr, state_ptr, y_ptr, rows, x_stride,
    C: tl.constexpr, TAPS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The convolution of a prompt piece; state (TAPS-1, C) of its stream is read only; grid (blocks of BT rows, blocks of BC)."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    valid = c < C
    total = tl.zeros((BT, BC), dtype=tl.float32) + tl.load(bias_ptr + c, mask=valid, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        at = t + (tap - TAPS + 1)
        new = tl.load(
            x_ptr + at[:, None] * x_stride + c[None, :], mask=((at >= 0) & (at < rows))[:, None] & valid[None, :], other=0.0
        )
        old = tl.load(state_ptr + (at + TAPS - 1)[:, None] * C + c[None, :], mask=(at < 0)[:, None] & valid[None, :], other=0.0)
        total += (new + old) * tl.load(weight_ptr + c * TAPS + tap, mask=valid, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + t[:, None] * C + c[None, :], total / (1.0 + tl.exp(-total)), mask=(t < rows)[:, None] & valid[None, :])


@triton.jit
def narrow(x, NARROW: tl.constexpr):
    """A factor of a product in bf16, or as it is."""
    if NARROW:
        return x.to(tl.bfloat16)
    else:
        return x


@triton.jit(do_not_specialize=["rows"])
def ssd_tiles(
    x_ptr, dt_ptr, a_log_ptr, d_ptr, dt_bias_ptr, state_ptr, y_ptr, rows, dt_stride, dt_min, dt_max,
    HEADS: tl.constexpr, P: tl.constexpr, BP: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, Q: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Chunked scan of a prompt piece (Dao and Gu 2024, section 6), chunks of Q in order; grid (HEADS, P // BP).

    state (HEADS, P, N) of its stream is read and written; it stays float32, NARROW multiplies in bf16. Rows past `rows` have d = 0: they neither decay nor add.
    """
    head = tl.program_id(0)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    i = tl.arange(0, Q)
    inside = n < N
    WIDTH: tl.constexpr = HEADS * P + 2 * GROUPS * N
    group = head // (HEADS // GROUPS)
    b_at = HEADS * P + group * N + n
    c_at = b_at + GROUPS * N
    a = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    skip = tl.load(d_ptr + head).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    place = state_ptr + head * (P * N) + p[:, None] * N + n[None, :]
    state = tl.load(place, mask=inside[None, :] & (p >= 0)[:, None], other=0.0)
    for start in tl.range(0, rows, Q, num_stages=1):
        row = start + i
        live = row < rows
        raw = tl.load(dt_ptr + row * dt_stride + head, mask=live, other=0.0) + dt_bias
        soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
        d = tl.where(live, tl.minimum(tl.maximum(soft, dt_min), dt_max), 0.0)
        decay = tl.cumsum(a * d, axis=0)
        whole = tl.sum(a * d, axis=0)
        x = tl.load(x_ptr + row[:, None] * WIDTH + head * P + p[None, :], mask=live[:, None], other=0.0)
        b = tl.load(x_ptr + row[:, None] * WIDTH + b_at[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        c = tl.load(x_ptr + row[:, None] * WIDTH + c_at[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        near = tl.dot(narrow(c, NARROW), tl.trans(narrow(b, NARROW)), input_precision="ieee")
        near = tl.where(i[:, None] >= i[None, :], near * tl.exp(decay[:, None] - decay[None, :]), 0.0)
        dx = x * d[:, None]
        y = tl.dot(narrow(near, NARROW), narrow(dx, NARROW), input_precision="ieee")
        y += tl.dot(narrow(c, NARROW), tl.trans(narrow(state, NARROW)), input_precision="ieee") * tl.exp(decay)[:, None]
        tl.store(y_ptr + row[:, None] * (HEADS * P) + head * P + p[None, :], y + skip * x, mask=live[:, None])
        late = dx * tl.exp(whole - decay)[:, None]
        state = state * tl.exp(whole) + tl.dot(tl.trans(narrow(late, NARROW)), narrow(b, NARROW), input_precision="ieee")
    tl.store(place, state, mask=inside[None, :] & (p >= 0)[:, None])
