"""Every Triton kernel against a plain torch transcription, in Triton's interpreter: odd sizes, negative scales, one row and many.

Row invariance is checked bit by bit: a row alone, first, last, and among sixteen others gives the same float32.
"""

# ruff: noqa: E402 - Triton must see whether it is interpreted before it is imported
from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

DEVICE = os.environ.get("HOMESTRETCH_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is switched on by `make test-triton`", allow_module_level=True)
pytest.importorskip("triton")

import numpy as np
import torch

from homestretch.engine.backends.cuda import weights
from homestretch.engine.backends.cuda.kernels import affine, attention, dense, pointwise, recurrent, router
from homestretch.engine.checkpoint import Affine
from homestretch.engine.checkpoint.affine import dequantize, pack

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
PLACE = torch.device(DEVICE)


@pytest.fixture(autouse=True)
def on_the_device() -> Iterator[None]:
    """Tensors of these tests are made where the kernels run: on the CPU in the interpreter, else on the device."""
    with PLACE:
        yield


def generator(seed: int) -> torch.Generator:
    return torch.Generator(device=PLACE).manual_seed(seed)


@pytest.fixture(autouse=True)
def fixed_order_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies with BLAS, whose order of sums depends on a row's place; a device's tensor cores do not."""
    if DEVICE != "cpu":
        return
    from triton.runtime import interpreter

    def dot(self: object, a: object, b: object, d: object, *_: object) -> object:
        product = np.einsum("ik,kj->ij", a.data.astype(np.float32), b.data.astype(np.float32))  # type: ignore[attr-defined]
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)  # type: ignore[attr-defined]

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def packed_words(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Bit streams are made on the CPU, as at load."""
    with torch.device("cpu"):
        return pack(q.cpu(), bits).to(PLACE)


def values(w: Affine) -> torch.Tensor:
    """The matrix that `w` stands for."""
    with torch.device("cpu"):
        plain = Affine(words=w.words.cpu(), scales=w.scales.cpu(), biases=w.biases.cpu(), bits=w.bits, group=w.group)
        return dequantize(plain).to(PLACE)


def matrix(generator: torch.Generator, *shape: int, bits: int = 4, group: int = 64) -> Affine:
    """A random affine matrix; half of the scales are negative."""
    q = torch.randint(0, 1 << bits, shape, generator=generator)
    grid = (*shape[:-1], shape[-1] // group)
    scales = (torch.rand(grid, generator=generator) + 0.1) * (torch.randint(0, 2, grid, generator=generator) * 2 - 1) / (1 << bits)
    return Affine(
        words=packed_words(q, bits), scales=scales, biases=torch.randn(grid, generator=generator) * 0.3, bits=bits, group=group
    )


def prepared(x: torch.Tensor, group: int) -> torch.Tensor:
    return x.reshape(x.shape[0], -1, group).sum(-1).contiguous()


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() <= tolerance * want.abs().max().clamp_min(1e-6)


def rows_product(x: torch.Tensor, packed: weights.Packed) -> torch.Tensor:
    y = torch.full((x.shape[0], packed.n), float("nan"))
    sums = prepared(x, packed.group)
    grid = (packed.blocks, math.ceil(x.shape[0] / 16))
    affine.affine_rows[grid](
        x, sums, packed.words, packed.scales, packed.biases, y, x.shape[0], packed.n, packed.k, packed.n,
        K=packed.k, BN=packed.bn, GROUP=packed.group, BITS=packed.bits,
    )  # fmt: skip
    return y


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_affine_rows_and_tiles(bits: int, group: int) -> None:
    g = generator(bits * 1000 + group)
    n = 37 + bits
    w = matrix(g, n, 2 * group, bits=bits, group=group)
    packed = weights.pack([w], PLACE)
    x = torch.randn(19, 2 * group, generator=g)
    want = x @ values(w).T
    close(rows_product(x, packed), want)
    y = torch.full((19, n), float("nan"))
    affine.affine_tiles[(2, packed.blocks * packed.bn // 128)](
        x, packed.words, packed.scales, packed.biases, y, 19, n, packed.k, n,
        K=packed.k, BM=16, BN=packed.bn, BT=128, GROUP=group, BITS=bits,
    )  # fmt: skip
    close(y, want)


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 33])
def test_a_row_does_not_see_the_others(rows: int) -> None:
    g = generator(rows)
    packed = weights.pack([matrix(g, 50, 192)], PLACE)
    x = torch.randn(rows, 192, generator=g)
    together = rows_product(x, packed)
    for r in {0, rows // 2, rows - 1}:
        assert torch.equal(together[r : r + 1], rows_product(x[r : r + 1].contiguous(), packed))


def test_joined_matrices_are_the_matrices() -> None:
    g = generator(3)
    parts = [matrix(g, n, 128) for n in (24, 8, 40)]
    x = torch.randn(3, 128, generator=g)
    close(rows_product(x, weights.pack(parts, PLACE)), torch.cat([x @ values(p).T for p in parts], dim=1))


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_affine_embed(bits: int) -> None:
    g = generator(bits)
    w = matrix(g, 61, 128, bits=bits)
    packed = weights.pack([w], PLACE)
    tokens = torch.tensor([0, 60, 17, 17], dtype=torch.int64)
    y = torch.empty(4, 128)
    affine.affine_embed[(4, 2)](tokens, packed.words, packed.scales, packed.biases, y, K=128, BN=packed.bn, GROUP=64, BITS=bits)
    assert torch.equal(y, values(w)[tokens])


def test_expert_pairs_and_groups() -> None:
    g = generator(5)
    experts, top, rows, n, k = 7, 3, 11, 44, 128
    w = matrix(g, experts, n, k)
    packed = weights.pack([w], PLACE)
    full = values(w)
    x = torch.randn(rows, k, generator=g)
    ids = torch.stack([torch.randperm(experts, generator=g)[:top].sort().values for _ in range(rows)]).to(torch.int32)
    want = torch.stack([full[ids[r, t]] @ x[r] for r in range(rows) for t in range(top)])
    y = torch.full((rows * top, n), float("nan"))
    common = {"K": k, "BN": packed.bn, "GROUP": 64, "BITS": 4, "BLOCKS": packed.blocks}
    affine.affine_pairs[(packed.blocks, rows * top)](
        x, prepared(x, 64), ids, packed.words, packed.scales, packed.biases, y, rows * top, n, k, n, top, **common
    )
    close(y, want)
    flat = ids.flatten().long()
    order = torch.argsort(flat, stable=True).to(torch.int32)
    counts = torch.bincount(flat, minlength=experts)
    block, start, expert, count = 16, 0, [], []
    starts = []
    for e in range(experts):
        left, at = int(counts[e]), start
        while left > 0:
            expert.append(e), starts.append(at), count.append(min(left, block))
            at, left = at + block, left - block
        start += int(counts[e])
    expert.append(0), starts.append(0), count.append(0)
    y2 = torch.full((rows * top, n), float("nan"))
    affine.affine_grouped[(len(expert), packed.blocks * packed.bn // 128)](
        x, order, *(torch.tensor(values, dtype=torch.int32) for values in (expert, starts, count)),
        packed.words, packed.scales, packed.biases, y2, n, k, n, top, BM=block, BT=128, **common,
    )  # fmt: skip
    close(y2, want)
    shares = torch.rand(rows, top, generator=g)
    total = torch.empty(rows, n)
    pointwise.combine[(rows, 1)](total, y, shares, n, BK=64, TOP=top)
    close(total, (y.reshape(rows, top, n) * shares[..., None]).sum(1))


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 5, 40), (18, 33, 100)])
def test_dense(rows: int, n: int, k: int) -> None:
    g = generator(n)
    x, w, bias = torch.randn(rows, k, generator=g), torch.randn(n, k, generator=g), torch.randn(n, generator=g)
    y = torch.empty(rows, n)
    dense.dense_rows[(math.ceil(n / 16), math.ceil(rows / 16))](x, w, bias, y, rows, n, k, k, n, BN=16, BK=32, BIAS=True)
    close(y, x @ w.T + bias)
    tokens = torch.tensor([n - 1, 0], dtype=torch.int64)
    e = torch.empty(2, k)
    dense.dense_embed[(2, math.ceil(k / 64))](tokens, w, e, k, BK=64)
    assert torch.equal(e, w[tokens])


@pytest.mark.parametrize("k", [64, 192, 576])
def test_norms_and_activations(k: int) -> None:
    g = generator(k)
    a, b, w = torch.randn(3, k, generator=g), torch.randn(3, k, generator=g), torch.rand(k, generator=g) + 0.5
    bk = 1 << (k - 1).bit_length()
    s, y, x, sums = torch.empty(3, k), torch.empty(3, k), torch.empty(3, k), torch.empty(3, k // 64)
    c = torch.randn(3, k, generator=g)
    pointwise.add_norm[(3,)](a, b, c, w, s, y, x, sums, 1e-5, K=k, BK=bk, GROUP=64, ADD=2, PREPARE=True, PLAIN=True)
    assert torch.equal(s, a + (b + c))
    pointwise.add_norm[(3,)](a, b, c, w, s, y, x, sums, 1e-5, K=k, BK=bk, GROUP=64, ADD=1, PREPARE=True, PLAIN=True)
    total = a + b
    want = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * w
    assert torch.equal(s, total)
    close(y, want)
    assert torch.equal(x, y)
    close(sums, y.reshape(3, -1, 64).sum(-1))
    for kind, value in ((0, a), (1, torch.nn.functional.silu(a) * b), (2, torch.relu(a).square())):
        pointwise.activate[(3,)](a, b, y, x, sums, k, k, K=k, BK=bk, GROUP=64, KIND=kind, PREPARE=True, PLAIN=True)
        close(y, value)
        close(sums, value.reshape(3, -1, 64).sum(-1))
    parts = 3 if k % 3 == 0 and k // 3 % 64 == 0 else 1
    pointwise.gated_norm[(3, parts)](
        a, b, w, y, x, sums, 1e-5, k, k, K=k, PARTS=parts, BP=1 << (k // parts - 1).bit_length(), GROUP=64, PREPARE=True, PLAIN=True
    )
    v = (a * torch.nn.functional.silu(b)).reshape(3, parts, -1)
    want = (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-5)).reshape(3, k) * w
    close(y, want)
    assert torch.equal(x, y)
    close(sums, want.reshape(3, -1, 64).sum(-1))


def test_router_scores() -> None:
    g = generator(2)
    x, gate, logits = torch.randn(3, 600, generator=g), torch.randn(10, 600, generator=g), torch.full((3, 10), float("nan"))
    router.scores[(3, 3)](x, gate, logits, 600, 10, K=600, BE=4, BK=512)
    close(logits, x @ gate.T)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("d", "dims"), [(64, 64), (24, 16)])
def test_rotary(interleaved: bool, d: int, dims: int) -> None:
    g = generator(d)
    x = torch.randn(3, 2 * d, generator=g)
    positions = torch.tensor([0, 7, 1000], dtype=torch.int32)
    inverse = 10_000.0 ** (-torch.arange(0, dims, 2) / dims)
    y = torch.empty(3, 2 * d)
    pointwise.rotary[(3, 2)](
        x, positions, inverse, y, 2 * d, 2, D=d, BD=1 << (d - 1).bit_length(), DIMS=dims, INTERLEAVED=interleaved
    )
    heads = x.reshape(3, 2, d)
    angle = positions[:, None, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    want = heads.clone()
    i = torch.arange(dims // 2)
    first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + dims // 2)
    want[..., first] = heads[..., first] * cos - heads[..., second] * sin
    want[..., second] = heads[..., second] * cos + heads[..., first] * sin
    close(y, want.reshape(3, -1), 1e-4)


@pytest.mark.parametrize(("groups", "top_groups", "normalise"), [(1, 1, True), (4, 2, True), (4, 2, False)])
def test_router(groups: int, top_groups: int, normalise: bool) -> None:
    g = generator(groups)
    rows, experts, top = 9, 16, 5
    logits = torch.randn(rows, experts, generator=g)
    logits[0] = 0.25
    bias = torch.randn(experts, generator=g) * 0.2
    bias[8:] = bias[:8]
    ids, shares = torch.empty(rows, top, dtype=torch.int32), torch.empty(rows, top)
    router.select[(rows,)](
        logits, bias, ids, shares, 2.5, E=experts, BE=16, TOP=top, GROUPS=groups, TOP_GROUPS=top_groups, NORMALISE=normalise
    )
    for r in range(rows):
        score = torch.sigmoid(logits[r])
        biased = (score + bias).tolist()
        size = experts // groups
        worth = [sum(sorted(biased[i * size : (i + 1) * size])[-2:]) for i in range(groups)]
        allowed = sorted(range(groups), key=lambda i: (-worth[i], i))[:top_groups]
        pool = [e for e in range(experts) if e // size in allowed]
        chosen = sorted(sorted(pool, key=lambda e: (-biased[e], e))[:top])
        assert ids[r].tolist() == chosen
        want = score[chosen] / (score[chosen].sum() if normalise else 1.0) * 2.5
        close(shares[r], want)


def page_pool(g: torch.Generator, pages: int, kv: int, d: int, page: int) -> torch.Tensor:
    return torch.randn(pages, 2, kv, page, d, generator=g)


@pytest.mark.parametrize(("heads", "kv", "d", "low"), [(4, 2, 64, 0), (3, 1, 24, 0), (2, 2, 32, 41)])
def test_attention_rows_and_tiles(heads: int, kv: int, d: int, low: int) -> None:
    g = generator(heads)
    page, length = 32, 75
    pool = page_pool(g, 9, kv, d, page)
    table = torch.tensor([[0, 0, 0, 0], [5, 2, 8, 1]], dtype=torch.int32)
    keys, values = torch.randn(length, kv * d, generator=g), torch.randn(length, kv * d, generator=g)
    slots, positions = torch.ones(length, dtype=torch.int32), torch.arange(length, dtype=torch.int32)
    bd = 1 << (d - 1).bit_length()
    attention.store_kv[(length, kv)](keys, values, pool, table, slots, positions, kv * d, kv * d, 4, KV=kv, D=d, BD=bd, PAGE=page)
    q = torch.randn(length, heads * d, generator=g)
    wide_k = keys.reshape(length, kv, d).repeat_interleave(heads // kv, 1).transpose(0, 1)
    wide_v = values.reshape(length, kv, d).repeat_interleave(heads // kv, 1).transpose(0, 1)
    seen = torch.ones(length, length, dtype=torch.bool).tril() & (torch.arange(length) >= low)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.reshape(length, heads, d).transpose(0, 1)[None], wide_k[None], wide_v[None], attn_mask=seen, scale=0.2
    )[0].transpose(0, 1).reshape(length, -1)  # fmt: skip
    picked = torch.tensor([p for p in (0, 31, 32, 41, 63, 64, 74) if p >= low])
    chunks = 3
    firsts = torch.tensor([0, low], dtype=torch.int32)
    part = torch.full((len(picked), kv, chunks, 16, d), float("nan"))
    stats = torch.full((len(picked), kv, chunks, 2, 16), float("nan"))
    y = torch.empty(len(picked), heads * d)
    qs, ps = q[picked].contiguous(), positions[picked].contiguous()
    attention.attend_rows[(len(picked), kv, chunks)](
        qs, pool, table, slots, ps, firsts, part, stats, 0.2, heads * d, 4, chunks,
        HEADS=heads, KV=kv, D=d, BD=bd, BH=16, PAGE=page, CHUNK=32, BLOCK=16,
    )  # fmt: skip
    attention.merge_rows[(len(picked), kv)](
        part, stats, slots, ps, firsts, y, chunks, HEADS=heads, KV=kv, D=d, BD=bd, BH=16, CHUNK=32
    )
    close(y, want[picked])
    start = 64
    z = torch.empty(length - start, heads * d)
    attention.attend_tiles[(math.ceil((length - start) / 16), heads)](
        q[start:].contiguous(), pool, table[1], z, 0.2, start, length - start, low, heads * d,
        HEADS=heads, KV=kv, D=d, BD=bd, PAGE=page, BQ=16, BLOCK=16,
    )  # fmt: skip
    close(z, want[start:])


def mamba_serial(
    x: torch.Tensor, dt: torch.Tensor, w: dict[str, torch.Tensor], shape: tuple[int, int, int, int]
) -> tuple[torch.Tensor, ...]:
    """Convolution and recurrence token by token: (conv outputs, y, state after every token)."""
    heads, p, groups, n = shape
    taps = w["conv"].shape[1]
    padded = torch.cat([torch.zeros(taps - 1, x.shape[1]), x])
    conv = torch.stack([torch.nn.functional.silu((padded[t : t + taps] * w["conv"].T).sum(0) + w["bias"]) for t in range(len(x))])
    state, ys, states = torch.zeros(heads, p, n), [], []
    for t in range(len(x)):
        u, b, c = conv[t].split([heads * p, groups * n, groups * n])
        u = u.reshape(heads, p)
        b, c = (v.reshape(groups, n).repeat_interleave(heads // groups, 0) for v in (b, c))
        d = torch.nn.functional.softplus(dt[t] + w["dt_bias"]).clamp(0.001, 0.5)
        state = state * torch.exp(-torch.exp(w["a_log"]) * d)[:, None, None] + (d[:, None] * u)[..., None] * b[:, None]
        ys.append(((state * c[:, None]).sum(-1) + w["d"][:, None] * u).flatten())
        states.append(state)
    return conv, torch.stack(ys), torch.stack(states)


def test_recurrent_windows_commit_and_tiles_agree() -> None:
    g = generator(11)
    heads, p, groups, n, taps, most, slots = 4, 32, 2, 16, 4, 16, 3
    width = heads * p + 2 * groups * n
    w = {
        "conv": torch.randn(width, taps, generator=g) * 0.5, "bias": torch.randn(width, generator=g) * 0.1,
        "a_log": torch.randn(heads, generator=g), "d": torch.randn(heads, generator=g), "dt_bias": torch.randn(heads, generator=g),
    }  # fmt: skip
    length = 60
    x, dt = torch.randn(length, width, generator=g), torch.randn(length, heads, generator=g)
    conv_want, y_want, states = mamba_serial(x, dt, w, (heads, p, groups, n))
    slot, prompt = 2, 37
    conv_state, ssm_state = torch.zeros(slots, taps - 1, width), torch.zeros(slots, heads, p, n)
    conv = torch.empty(prompt, width)
    recurrent.conv_tiles[(math.ceil(prompt / 16), math.ceil(width / 64))](
        x, w["conv"], w["bias"], conv_state[slot], conv, prompt, width, C=width, TAPS=taps, BT=16, BC=64
    )
    close(conv, conv_want[:prompt])
    y = torch.empty(prompt, heads * p)
    recurrent.ssd_tiles[(heads, 2)](
        conv, dt, w["a_log"], w["d"], w["dt_bias"], ssm_state[slot], y, prompt, heads, 0.001, 0.5,
        HEADS=heads, P=p, BP=16, GROUPS=groups, N=n, BN=16, Q=16, NARROW=False,
    )  # fmt: skip
    close(y, y_want[:prompt], 1e-4)
    close(ssm_state[slot], states[prompt - 1], 1e-4)
    conv_state[slot] = x[prompt - taps + 1 : prompt]
    saved_raw = torch.full((2, slots, most, width), float("nan"))
    saved_x, saved_dt = saved_raw.clone(), torch.full((2, slots, most, heads), float("nan"))
    position, kept, phase = prompt, 0, 0
    for rows, stand in ((4, 1), (3, 3), (1, 1), (5, 2), (2, 2)):
        draft = x[position : position + rows].clone()
        draft[stand:] = torch.randn(rows - stand, width, generator=g)
        starts = torch.tensor([0, rows, rows], dtype=torch.int32)
        meta = [torch.tensor([v, 0], dtype=torch.int32) for v in (slot, kept, phase)]
        out = torch.empty(rows, width)
        recurrent.conv_rows[(2, math.ceil(width / 64))](
            draft,
            w["conv"],
            w["bias"],
            conv_state,
            saved_raw,
            out,
            starts,
            *meta,
            width,
            slots,
            C=width,
            TAPS=taps,
            BC=64,
            BT=4,
            MOST=most,
        )
        close(out[:stand], conv_want[position : position + stand])
        y = torch.empty(rows, heads * p)
        recurrent.ssm_rows[(2, heads, 2)](
            out, dt[position : position + rows].contiguous(), w["a_log"], w["d"], w["dt_bias"], ssm_state, saved_x, saved_dt, y,
            starts, *meta, heads, 0.001, 0.5, slots, HEADS=heads, P=p, BP=16, GROUPS=groups, N=n, BN=16, MOST=most,
        )  # fmt: skip
        close(y[:stand], y_want[position : position + stand], 1e-4)
        position, kept, phase = position + stand, stand, 1 - phase


@pytest.mark.parametrize("seed", range(4))
def test_draws_follow_the_reference(seed: int) -> None:
    from homestretch.engine import draws as reference
    from homestretch.engine.backends.cuda.drawing import Drawer
    from homestretch.engine.types import Draw

    g = generator(seed)
    vocab = 5003
    logits = torch.randn(6, vocab, generator=g) * 4
    logits[1] = logits[1].round()
    logits[2, 100:200] = logits[2].max()
    settings = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 20, 0.95, 0.0),
        (0.7, 50, 0.5, 0.0),
        (1.0, 0, 0.95, 0.05),
        (1.3, 0, 1.0, 0.0),
        (0.7, 7, 1.0, 0.1),
    ]
    for shift in range(6):
        rows = [
            Draw(seed=seed * 77 + r, position=900 + r + shift, temperature=t, top_k=k, top_p=p, min_p=m)
            for r, (t, k, p, m) in enumerate(settings[shift:] + settings[:shift])
        ]
        tokens = Drawer(vocab=vocab, rows=8, device=PLACE).draw(logits, rows)
        assert tokens[: len(rows)].tolist() == [reference.draw(logits[r], row).token for r, row in enumerate(rows)]
        alone = [int(Drawer(vocab=vocab, rows=8, device=PLACE).draw(logits[r : r + 1].contiguous(), [rows[r]])[0]) for r in (0, 5)]
        assert alone == [int(tokens[0]), int(tokens[5])]
