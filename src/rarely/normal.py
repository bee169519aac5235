"""Functions of the normal law that hold their relative precision in both tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely import fused

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_FAR = 1e38  # what pushes any z of float32 past any bound


def lower_tail(z: Tensor) -> Tensor:
    """P(Z < -|z|), accurate where 1 - P(Z < |z|) has lost all its digits."""
    return 0.5 * torch.erfc(z.abs() * _SQRT_HALF)


def between(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The point of [low, high] that leaves the fraction Phi(z) of the interval below it.

    Measured from the nearer end, so that both ends are approached with full relative precision.
    """
    if z.requires_grad or low.requires_grad or high.requires_grad:
        tail = lower_tail(z) * (high - low)
        return torch.where(z < 0, low + tail, high - tail)
    whole = fused.between(z, low, high)
    if whole is not None:
        return whole
    # The same in place. low + tail <= high - tail, so pushing z far out and clamping takes the first where z < 0 and
    # the second elsewhere: an elementwise `where` is the one step here that does not vectorise on a CPU.
    tail = torch.mul(z, _SQRT_HALF).abs_().erfc_().mul_(0.5 * (high - low))
    near, far = low + tail, torch.sub(high, tail, out=tail)
    return torch.clamp(z * _FAR, near, far, out=near)


def truncated_quantile(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The standard normal truncated to [a, b], as a monotone map of a standard normal z. Computed in float64."""
    # Mirror whatever lies in the upper tail into the lower one, where the CDF keeps its digits.
    flip = (a > 0) | ((z > 0) & (b > 0))
    low, high = torch.where(flip, -b, a).double(), torch.where(flip, -a, b).double()
    w = torch.where(flip, -z, z).double()
    log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    log_u, log_v = torch.special.log_ndtr(w), torch.special.log_ndtr(-w)
    log_cdf = torch.logaddexp(log_low + log_v, log_high + log_u)  # Phi(low) (1 - u) + Phi(high) u
    x = _log_ndtri(log_cdf).clamp(low, high)
    return torch.where(flip, -x, x)


class _LogNdtri(torch.autograd.Function):
    """Inverse of log Phi, by Newton steps on log Phi from a closed-form start."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, log_p: Tensor) -> Tensor:
        # Tail start: log Phi(x) ~ -x^2/2 - log(-x sqrt(2 pi)).
        tail = -torch.sqrt((-2 * (log_p + LOG_SQRT_2PI)).clamp_min(1e-12))
        x = torch.where(log_p < -5.0, tail, torch.special.ndtri(log_p.exp().clamp(1e-300, 1 - 1e-16)))
        for _ in range(6):
            log_cdf = torch.special.log_ndtr(x)
            log_pdf = -0.5 * x * x - LOG_SQRT_2PI
            step = (log_cdf - log_p) * torch.exp(log_cdf - log_pdf)
            x = torch.where(log_p < -5.0, x - step, x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grads[0] * torch.exp(torch.special.log_ndtr(x) + 0.5 * x * x + LOG_SQRT_2PI)


def _log_ndtri(log_p: Tensor) -> Tensor:
    result: Tensor = _LogNdtri.apply(log_p)  # type: ignore[no-untyped-call]
    return result


def log_radial_fraction(r: Tensor, d: int) -> Tensor:
    """log P(|Z| < r) for Z standard normal in d dimensions, with its lower tail by the series of the gamma function."""
    a, x = 0.5 * d, 0.5 * r.double() ** 2
    shape = torch.full_like(x, a)
    direct = torch.special.gammainc(shape, x)
    # gamma(a, x) = x^a e^-x sum_k x^k / (a (a+1) ... (a+k)); a few terms do where x << a, and only there is it used.
    term, total = torch.ones_like(x), torch.ones_like(x)
    for k in range(1, 60):
        term = term * x / (a + k)
        total = total + term
    series = a * torch.log(x.clamp_min(1e-300)) - x - math.lgamma(a + 1) + torch.log(total)
    small = direct < 1e-250
    return torch.where(small, series, torch.log(direct.clamp_min(1e-250)))
