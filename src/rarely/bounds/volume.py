"""How much of a box lies on one side of a plane: rigorous lower and upper bounds on the fraction.

With v the distance from the best corner in units of the box, g(x) >= 0 becomes sum_i a_i v_i <= t: a_i = |slope_i|
width_i and t the largest value of g. For few coordinates the fraction is (Barrow and Smith 1979)

    G(t) = 1 / (n! prod a) sum over subsets S of (-1)^|S| (t - sum_S a)_+^n,

evaluated with a bound on its own rounding. Small a_i make the division ill-conditioned; leaving such a coordinate at
its best (or worst) value instead is a rigorous bound too, so several cut-offs are tried and the best kept. For many
coordinates the Chernoff bound with the exact moment generating function of the uniform law takes over: the closed
form of PROVEN (Weng et al. 2019) with a sharper tail than Hoeffding's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely.bounds.operators import EPS, TINY, gamma

_FLAT = 1e-290  # what g varies by over a box, below which quotients would underflow
_SMALL = 1e-9, 1e-4, 1e-2, 5e-2  # shares of the sum up to which a coordinate may be left at one of its ends
EXACT = 10  # coordinates up to which the sum over 2^n subsets is taken


def _subset_sum(a: Tensor, t: Tensor, keep: Tensor, signs: Tensor, subsets: Tensor) -> tuple[Tensor, Tensor]:
    """G(t) over the coordinates in `keep` (C, B, n), and a bound on its rounding error; a (B, n) sums to at most 1."""
    n = a.shape[1]
    left_out = (~keep).to(a.dtype) @ subsets.mT > 0  # (C, B, 2^n): subsets with a coordinate that is not kept
    rest = (t.unsqueeze(2) - torch.where(keep, a, 0.0) @ subsets.mT).clamp(min=0).masked_fill(left_out, 0.0)
    power = keep.sum(2, keepdim=True).to(a.dtype)
    terms = rest**power
    log_scale = torch.lgamma(power + 1).squeeze(2) + torch.where(keep, a, 1.0).log().sum(2)
    scale = torch.exp(-log_scale)
    value = (terms * signs).sum(2) * scale
    # Each base, at most 1, is off by a few eps, each term by its derivative power * terms / rest times that.
    slope = (power * torch.where(rest > 1e-300, terms / rest, 1.0)).masked_fill(rest <= 0, 0.0)
    wobble = slope.sum(2) * (4 * (n + 2) * EPS) + terms.sum(2) * ((subsets.shape[0] + 64) * EPS)
    return value, wobble * scale * 2 + value.abs() * (64 * EPS)


def _below(a: Tensor, t: Tensor, upper: Tensor) -> Tensor:
    """A bound on P(sum a_i v_i <= t), v uniform on the unit cube, from above where `upper`; a (B, n) >= 0 sums to 1.

    t (B,) is at most 1/2.
    """
    n = a.shape[1]
    bits = torch.arange(2**n, device=a.device).unsqueeze(1) >> torch.arange(n, device=a.device) & 1
    subsets = bits.to(a.dtype)
    signs = 1 - 2 * (subsets.sum(1) % 2)
    keep = a > a.new_tensor(_SMALL).reshape(-1, 1, 1)
    worst = t - torch.where(keep, 0.0, a).sum(2) * (1 + n * EPS)
    value, error = _subset_sum(a, torch.where(upper, t, worst).clamp(min=0), keep, signs, subsets)
    low = torch.where(worst > 0, value - error, 0.0).amax(0)
    return torch.where(upper, (value + error).amin(0), low).clamp(0, 1)


def _chernoff(a: Tensor, t: Tensor) -> Tensor:
    """Upper bound on P(sum a_i v_i <= t): min over s of exp(s t) prod (1 - exp(-s a_i)) / (s a_i)."""
    best, n = torch.zeros_like(t), a.shape[1]
    peak = a.amax(1).clamp(min=1e-300)
    for power in torch.linspace(-3, 9, 49, dtype=a.dtype, device=a.device):
        s = (10**power / peak).unsqueeze(1)
        z = s * a
        # log((1 - e^-z) / z); below 1e-4 the series -z/2 + z^2/24 is above the truth and far more accurate.
        small = -z / 2 + z * z / 24
        term = torch.where(z < 1e-4, small, (-torch.expm1(-z)).log() - z.clamp(min=1e-4).log())
        # The sum rounds; a adds up to 1, and t is known, to n eps; the logarithms, at most 50, to a few of theirs.
        error = gamma(n, a.dtype) * (s.squeeze(1) + term.abs().sum(1)) + n * 256 * EPS
        best = torch.fmin(best, s.squeeze(1) * t + term.sum(1) + error)
    return (best + 4 * EPS * (1 + best.abs())).exp().clamp(max=1)


@torch.no_grad()
def fraction_above(A: Tensor, b: Tensor, low: Tensor, high: Tensor, *, upper: bool) -> Tensor:
    """A bound on the part of each box where A x + b >= 0, from above or below; A, low, high (B, n), b (B,), float64."""
    n = A.shape[1]
    a = A.abs() * (high - low)
    corner = torch.where(A > 0, high, low)
    top = (A * corner).sum(1) + b
    blur = gamma(n, A.dtype) * ((A.abs() * torch.maximum(low.abs(), high.abs())).sum(1) + b.abs()) + TINY
    top = top + blur if upper else top - blur
    total = a.sum(1)
    steep = total > _FLAT
    scale = total.clamp(min=_FLAT)
    t = top / scale
    # Slopes of next to nothing: the sign of the constant decides, and an undecided one decides nothing.
    known = torch.where(steep, t >= 1 + n * EPS, top >= (0.0 if upper else 2 * _FLAT)).to(t.dtype)
    known = torch.where(t.isnan(), float(upper), known)
    todo = (steep & (t >= 0) & (t < 1 + n * EPS)).nonzero().squeeze(1)
    share, t = a[todo] / scale[todo].unsqueeze(1), t[todo]
    near, first = torch.where(t <= 0.5, t, 1 - t).clamp(0, 1), t <= 0.5
    if n <= EXACT:
        value = _below(share, near, first if upper else ~first)
    else:  # nothing is known from below
        value = torch.where(first if upper else ~first, _chernoff(share, near), 0.0)
    return known.index_copy(0, todo, torch.where(first, value, 1 - value).clamp(0, 1))


def log_or_ninf(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf
