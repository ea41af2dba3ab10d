"""Lowerings of what a hybrid adds: convolution, SSM scan and step, gated norm, router, experts, concatenation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from homestretch.engine.backends.reference.dense import Values, attrs_of
from homestretch.engine.backends.reference.lowering import Rows, lowers
from homestretch.engine.program import Concat, Conv, Experts, GatedNorm, Op, Router, Ssm

EXPERT_TILE = 16
"""Rows in one product of an expert: prompts fill them up with zeros, so that the shape says nothing about other rows."""


def _before(op: Op, rows: Rows) -> torch.Tensor:
    """The recurrent state that this call starts from."""
    if op.slot is None:
        raise ValueError(f"{op.kind.__name__} needs a slot")
    state = rows.memory.recurrent[op.slot]
    return state.committed if rows.tile else state.before(rows.row)


def _after(op: Op, rows: Rows, made: torch.Tensor) -> None:
    """Keep the state that this call leaves: at once after a tile, until the window commits after a row."""
    if op.slot is None:
        raise ValueError(f"{op.kind.__name__} needs a slot")
    state = rows.memory.recurrent[op.slot]
    if rows.tile:
        state.replace(made)
    else:
        state.after(rows.row, made)


@lowers(Concat)
def concat(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    return (torch.cat(tuple(ins), dim=-1),)


@lowers(Conv)
def conv(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Taps are added oldest first, after the bias, in a tile as in a row."""
    a, weight = attrs_of(op, Conv), rows.weights[op.weights[0]]
    seen = torch.cat((_before(op, rows), ins[0]))
    count = ins[0].shape[0]
    y = rows.weights[op.weights[1]] if len(op.weights) > 1 else torch.zeros((), device=seen.device)
    for tap in range(a.kernel):
        y = y + seen[tap : tap + count] * weight[:, tap]
    _after(op, rows, seen[rows.count : rows.count + a.kernel - 1].clone())
    return (functional.silu(y),)


@lowers(Ssm)
def ssm(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """The recurrence of one row, or of a tile at once in its chunked form (one chunk a tile)."""
    a = attrs_of(op, Ssm)
    a_log, skip, dt_bias = (rows.weights[name] for name in op.weights)
    count, share = ins[0].shape[0], a.heads // a.groups
    x, b, c = torch.split(ins[0], [a.heads * a.head_dim, a.groups * a.state, a.groups * a.state], dim=-1)
    x = x.reshape(count, a.groups, share, a.head_dim)
    b, c = b.reshape(count, a.groups, a.state), c.reshape(count, a.groups, a.state)
    dt = functional.softplus(ins[1] + dt_bias).clamp(a.dt_min, a.dt_max)
    if rows.tile:
        # A padding row takes no step: it neither decays the state nor adds to it.
        dt = dt * (torch.arange(count, device=dt.device) < rows.count)[:, None]
    dt = dt.reshape(count, a.groups, share)
    rate = -a_log.exp().reshape(a.groups, share)
    state = _before(op, rows).reshape(a.groups, share, a.head_dim, a.state)
    y, state = (_scan if rows.tile else _step)(x, b, c, dt, rate, state)
    _after(op, rows, state.reshape(a.heads, a.head_dim, a.state))
    y = y + x * skip.reshape(a.groups, share, 1)
    return (y.reshape(count, -1),)


def _step(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, dt: torch.Tensor, rate: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """S <- exp(dt A) S + dt x B^T; y = S C.

    x (1, g, r, p), b and c (1, g, n), dt (1, g, r), rate (g, r), state (g, r, p, n): g groups of r heads.
    """
    decay = (dt[0] * rate).exp()[..., None, None]
    state = state * decay + (x[0] * dt[0][..., None])[..., None] * b[0][:, None, None, :]
    return (state * c[0][:, None, None, :]).sum(-1)[None], state


def _scan(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, dt: torch.Tensor, rate: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same recurrence over t rows at once: within the tile y_i = sum over j <= i of exp(l_i - l_j) (c_i b_j) dt_j x_j,
    l the running sum of dt A (kept in fp64, its differences matter), plus exp(l_i) C_i S from before the tile."""
    count = x.shape[0]
    log = (dt * rate).double().cumsum(0).permute(1, 2, 0)  # g r t
    gap = log[..., :, None] - log[..., None, :]
    later = torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1)
    weight = gap.masked_fill(later, -torch.inf).exp().float()  # g r i j
    b, c = b.permute(1, 0, 2), c.permute(1, 0, 2)  # g t n
    moved = (x * dt[..., None]).permute(1, 2, 0, 3)  # g r t p
    y = torch.matmul(weight * torch.matmul(c, b.transpose(1, 2))[:, None], moved)
    y = y + torch.matmul(c[:, None], state.transpose(-1, -2)) * log.exp().float()[..., None]
    left = (log[..., -1:] - log).exp().float()[..., None]
    made = torch.matmul((moved * left).transpose(-1, -2), b[:, None])
    return y.permute(2, 0, 1, 3), state * log[..., -1].exp().float()[..., None, None] + made


@lowers(GatedNorm)
def gated_norm(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    a = attrs_of(op, GatedNorm)
    gated = ins[0] * functional.silu(ins[1])
    parts = gated.reshape(gated.shape[0], a.groups, -1)
    parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + a.eps)
    return (parts.reshape(gated.shape) * rows.weights[op.weights[0]],)


@lowers(Router)
def router(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Stable sorts, so that equal scores go to the lower id."""
    a = attrs_of(op, Router)
    gate, bias = (rows.weights[name] for name in op.weights)
    scores = torch.sigmoid(functional.linear(ins[0], gate))
    chosen = scores + bias
    if a.groups > 1:
        parts = chosen.reshape(-1, a.groups, a.experts // a.groups)
        best = parts.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True, stable=True).indices[:, : a.top_groups]
        open_groups = torch.zeros(parts.shape[:2], dtype=torch.bool, device=parts.device).scatter_(1, best, True)
        chosen = parts.masked_fill(~open_groups[..., None], -torch.inf).reshape(chosen.shape)
    ids = chosen.sort(dim=-1, descending=True, stable=True).indices[:, : a.top].sort(dim=-1).values
    shares = scores.gather(1, ids)
    if a.normalise:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return ids, shares * a.scale


@lowers(Experts)
def experts(op: Op, ins: Sequence[torch.Tensor], rows: Rows) -> Values:
    """Expert by expert in ascending order, so that a row's sum has one order."""
    x, ids, shares = ins
    first, second = (rows.weights[name] for name in op.weights)
    out = torch.zeros((x.shape[0], second.shape[1]), device=x.device)
    for expert in torch.unique(ids).tolist():
        at, place = (ids == expert).nonzero(as_tuple=True)
        for some in range(0, len(at), EXPERT_TILE):
            mine = at[some : some + EXPERT_TILE]
            tile = x[mine]
            if rows.tile:
                tile = functional.pad(tile, (0, 0, 0, EXPERT_TILE - len(mine)))
            inner = functional.relu(functional.linear(tile, first[expert])).square()
            made = functional.linear(inner, second[expert])[: len(mine)]
            out[mine] += made * shares[mine, place[some : some + EXPERT_TILE], None]
    return (out,)
