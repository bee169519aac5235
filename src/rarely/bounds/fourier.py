"""How much of a uniform law lies beyond a plane, to many digits, however little it is and however many coordinates.

S = sum_i a_i u_i with u_i uniform on [-1, 1], and we want P(S >= t). Tilted by l, Y = S - t is a sum of truncated
exponentials, and P(S >= t) = exp(K(l) - l t) E_l[exp(-l Y); Y >= 0]. The transform of the last factor J is known:

    J = 1 / (2 pi) integral of phi(u) / (l + i u) du,    phi(u) = exp(K(l + i u) - K(l) - i u t).

The trapezoidal sum with step h is, by Poisson's formula, not J but the sum over all integers m of
G(2 pi m / h), G(y) = E_l[exp(-l (Y + y)); Y + y >= 0] >= 0, of which J is the term m = 0. So the sum is an upper bound
as it stands, and a lower one less what the other terms can be. What lies beyond the last node is bounded by
|phi_i(u)|^2 = (1 + sin^2(u a_i) / sinh^2(l a_i)) / (1 + u^2 / l^2), which falls with u once the sine is taken as 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely.bounds.operators import Interval, gamma

# zeta(2 m) / (m pi^(2 m)): log(sinh z / z) = sum over m of (-1)^(m + 1) times these times z^(2 m). Nine are good to
# eps where z < 1/2.
_SERIES = (
    1 / 6, 1 / 180, 1 / 2835, 1 / 37800, 1 / 467775, 691 / 3831077250, 2 / 127702575, 3617 / 2605132530000,
    43867 / 350813659321125,
)  # fmt: skip
_NEAR = 0.5
_NODES, _MOST_NODES = 16, 2048
_SMALL = 1e-9  # share of the largest coefficient below which one is not counted
_ROOM = 2**20  # numbers held at a time


def uniform_cumulant(z: Tensor) -> Tensor:
    """log(sinh z / z), of each entry: within 64 eps of itself, or above it.

    It is the sum over k of log(1 + z^2 / (k pi)^2), and log(1 + y) is below its series stopped after an odd number of
    terms, for every y >= 0: so is the sum of these series.
    """
    z = z.abs()
    y = z * z
    series = torch.zeros_like(y)
    for c in reversed(_SERIES):
        series = y * (c - series)
    far = z.clamp(min=_NEAR)
    return torch.where(z < _NEAR, series, far + torch.log1p(-torch.exp(-2 * far)) - torch.log(2 * far))


def uniform_mean(z: Tensor) -> Tensor:
    """coth z - 1 / z, of each entry, to within 1e-14."""
    y = z * z
    series = torch.zeros_like(y)
    for m in range(len(_SERIES), 0, -1):
        series = 2 * m * _SERIES[m - 1] - y * series
    far = torch.where(z.abs() < _NEAR, torch.ones_like(z), z)
    return torch.where(z.abs() < _NEAR, z * series, 1 / torch.tanh(far) - 1 / far)


def _remainder(x: Tensor, counts: Tensor, tilt: Tensor, last: Tensor) -> Tensor:
    """A bound (B,) on what the nodes beyond `last` (B,) could add to the sum."""
    fall = (last / tilt) ** 2
    share = (1 + 1 / torch.sinh(x) ** 2) / (1 + fall).unsqueeze(1)
    falling = counts & (share < 1)
    power = falling.sum(1) * (fall / (1 + fall))
    log_size = torch.where(falling, share.log(), 0.0).sum(1) / 2
    return torch.where(power > 0, (log_size + 1e-9 * (1 + log_size.abs())).exp() / (math.pi * power), torch.inf)


def _sum(a: Tensor, x: Tensor, counts: Tensor, t: Tensor, tilt: Tensor, step: Tensor, nodes: int) -> Interval:
    """The trapezoidal sum (B,) over |k| <= nodes, and the sum of its absolute terms, for its rounding.

    sinh(x + i y) has the square sinh^2 x + sin^2 y and the argument of sinh x cos y + i cosh x sin y.
    """
    total, size = 1 / tilt, 1 / tilt
    steep = torch.where(counts, 1 / torch.sinh(x) ** 2, 0.0).unsqueeze(1)
    turn, number = (1 / torch.tanh(x)).unsqueeze(1), counts.sum(1, keepdim=True)
    kept = counts.unsqueeze(1)
    some = max(1, _ROOM // max(1, a.numel()))
    for first in range(1, nodes + 1, some):
        k = torch.arange(first, min(first + some, nodes + 1), dtype=a.dtype, device=a.device)
        u = step.unsqueeze(1) * k  # (B, k)
        y = u.unsqueeze(2) * a.unsqueeze(1)
        sine = torch.sin(y)
        ratio = u / tilt.unsqueeze(1)
        log_size = torch.log1p(sine.square() * steep).sum(2) - number * torch.log1p(ratio**2)
        angle = torch.where(kept, torch.atan2(sine * turn, torch.cos(y)), 0.0).sum(2)
        # The denominator l + i u turns once more, and has the size sqrt(l^2 + u^2).
        angle = angle - (number + 1) * torch.atan(ratio) - u * t.unsqueeze(1)
        terms = torch.exp(log_size / 2) / torch.hypot(tilt.unsqueeze(1).expand_as(u), u)
        total, size = total + 2 * (terms * torch.cos(angle)).sum(1), size + 2 * terms.sum(1)
    return step / (2 * math.pi) * total, step / (2 * math.pi) * size


def log_share_above(a: Tensor, t: Tensor, tilt: Tensor, *, upper: bool) -> Tensor:
    """A bound (B,) on log P(sum_i a_i u_i >= t), u uniform on [-1, 1]^n, from a tilt (B,) > 0; a (B, n) >= 0.

    Any tilt gives a bound; that with K'(tilt) = t gives a sharp one.
    """
    n, unit = a.shape[1], a.amax(1).clamp(min=1e-290)
    a, t, tilt = a / unit.unsqueeze(1), t / unit, tilt * unit
    counts = a > _SMALL * a.amax(1, keepdim=True)
    # What is too small to count is at its best, or at its worst.
    rest = torch.where(counts, 0.0, a).sum(1) * (1 + gamma(n, a.dtype))
    t = t - rest if upper else t + rest
    x = (tilt.unsqueeze(1) * a).clamp(max=300.0)
    cumulant = torch.where(counts, uniform_cumulant(tilt.unsqueeze(1) * a), 0.0).sum(1)
    exponent = cumulant - tilt * t
    wobble = (cumulant + (tilt * t).abs()) * gamma(n + 64, a.dtype)
    spread = torch.linalg.vector_norm(a, dim=1) / math.sqrt(3)  # of every tilted law, at most
    off = ((torch.where(counts, a * uniform_mean(tilt.unsqueeze(1) * a), 0.0)).sum(1) - t).abs()  # the mean of Y
    # The other terms of Poisson's formula only lift an upper bound: seven deviations keep them small.
    period = 7 * spread + off
    if not upper:
        period = torch.maximum((40 - exponent).clamp(min=40) / tilt, 9 * spread + off)
    step = 2 * math.pi / period
    nodes = _NODES
    while True:
        left = _remainder(x, counts, tilt, nodes * step)
        if nodes >= _MOST_NODES or bool((left * tilt * spread < 1e-6).all()):
            break
        nodes *= 2
    total, size = _sum(a, x, counts, t, tilt, step, nodes)
    # Each phi is a product of n factors, each known to a few dozen eps, and its angle to eps times what it is.
    angle = nodes * step * (a.sum(1) + t.abs())
    error: Tensor = left + size * (gamma(64 * n, a.dtype) + 8 * torch.finfo(a.dtype).eps * angle)
    if upper:
        share = torch.fmin((total + error).clamp(min=0), torch.ones_like(total)).log()
        return (exponent + share + wobble).nan_to_num(nan=0.0).clamp(max=0)
    # The terms m > 0: the sum of exp(-l m period) E_l exp(-l Y); m < 0: a subgaussian tail about the mean of Y.
    late = torch.exp(-exponent - tilt * period) * 2
    early = 2 * torch.exp(-((period - off) ** 2) / (2 * spread**2))
    share = (total - error - late - early).clamp(min=0).log()
    return (exponent + share - wobble).nan_to_num(nan=-torch.inf)
