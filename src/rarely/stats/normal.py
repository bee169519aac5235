"""Functions of the normal law that hold their relative precision in both tails."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rarely.stats import fused

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)


def lower_tail(z: Tensor) -> Tensor:
    """P(Z < -|z|), accurate where 1 - P(Z < |z|) has lost all its digits."""
    return 0.5 * torch.erfc(z.abs() * _SQRT_HALF)


class Span:
    """Intervals [low, high], ready for many points."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        # On a CPU points are measured from the end nearer to 0, where floats are dense: three passes over memory. At
        # the other end one step of Phi(z) below 1 moves a point by no more than two steps between floats.
        flip = low.abs() > high.abs()
        near, far = torch.where(flip, high, low), torch.where(flip, low, high)
        width = far - near
        beyond = (near + width - far) * width > 0  # rounded up: the far end must stay the last
        width = torch.where(beyond, torch.nextafter(width, torch.zeros_like(width)), width)
        self._near, self._half = near, 0.5 * width
        self._slope = torch.where(flip, 1, -1) * low.new_tensor(_SQRT_HALF)

    def at(self, z: Tensor) -> Tensor:
        """The points that leave the fraction Phi(z) of their interval below them.

        Measured from an end, so that low values of Phi, or of 1 - Phi where 0 is at the upper end, keep their digits.
        """
        if z.requires_grad or self.low.requires_grad or self.high.requires_grad:
            tail = lower_tail(z) * (self.high - self.low)
            return torch.where(z < 0, self.low + tail, self.high - tail)
        whole = fused.between(z, self.low, self.high)
        if whole is not None:
            return whole
        share = torch.mul(z, self._slope).erfc_()  # twice the fraction, from the near end
        return torch.addcmul(self._near, share, self._half, out=share)


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


def log_radial_fraction(r: Tensor, d: int | Tensor) -> Tensor:
    """log P(|Z| < r) for Z standard normal in d dimensions, with its lower tail by the series of the gamma function."""
    x = 0.5 * r.double() ** 2
    a = torch.full_like(x, 0.5) * d
    direct = torch.special.gammainc(a, x)
    # gamma(a, x) = x^a e^-x sum_k x^k / (a (a+1) ... (a+k)); a few terms do where x << a, and only there is it used.
    term, total = torch.ones_like(x), torch.ones_like(x)
    for k in range(1, 60):
        term = term * x / (a + k)
        total = total + term
    series = a * torch.log(x.clamp_min(1e-300)) - x - torch.lgamma(a + 1) + torch.log(total)
    small = direct < 1e-250
    return torch.where(small, series, torch.log(direct.clamp_min(1e-250)))
