"""torch's distributions as input models: independent coordinates map from normals through their quantile functions.

So heavy tails are ordinary: in z-space every kernel and method works on them as on any other law. Closed forms where
torch has them; else quantiles come from a table of the density's integral, from both ends so that tails keep their
digits, and are interpolated by cubics: the law that is sampled is the law that is mapped, off by less than 1e-4 of p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributions as laws
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.input_model import Custom, InputModel, Shape, leading
from rarely.core.rng import Rng

# One hump each, so that a table that ends in the right total has missed nothing.
_TABLED = (
    laws.StudentT, laws.Gamma, laws.Chi2, laws.Beta, laws.Laplace, laws.Cauchy, laws.Exponential, laws.HalfNormal,
    laws.HalfCauchy, laws.FisherSnedecor, laws.InverseGamma, laws.Kumaraswamy, laws.Gumbel,
)  # fmt: skip
_MOST = 5000  # coordinates with laws of their own that get a table
_FAR = 250.0  # asinh of the farthest quantile in units of the spread: a Cauchy tail of 1e-100
_TOTAL = 1e-4  # by which the integral of a density may miss one


def from_torch(distribution: laws.Distribution) -> InputModel:
    """The distribution with a map from normals where its coordinates are independent, else as it is."""
    shape = tuple(distribution.batch_shape) + tuple(distribution.event_shape)
    base: Any = distribution
    while isinstance(base, laws.Independent):
        base = base.base_dist
    quantile = _quantile(base)
    return Custom(distribution, shape) if quantile is None else Marginals(distribution, quantile, shape)


@dataclass(frozen=True)
class Marginals:
    """A torch distribution whose coordinates are independent, in the space of the normals behind them."""

    stackable: ClassVar[bool] = False
    distribution: Any
    quantile: Any  # z (..., *event) -> x
    event_shape: Shape

    @property
    def normal_dim(self) -> int:
        return math.prod(self.event_shape)

    @property
    def center(self) -> Tensor:
        mean = torch.as_tensor(self.distribution.mean)
        return mean if bool(torch.isfinite(mean).all()) else self.from_normal(torch.zeros(self.normal_dim))

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        bounds = [getattr(_bounds(self.distribution), side, None) for side in ("lower_bound", "upper_bound")]
        if bounds == [None, None]:
            return None
        ends = (-torch.inf if bounds[0] is None else bounds[0], torch.inf if bounds[1] is None else bounds[1])
        low, high = (torch.as_tensor(end, dtype=torch.get_default_dtype()).expand(self.event_shape) for end in ends)
        return low, high

    def sample(self, shape: int | Shape, rng: Rng) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim)))

    def log_density(self, x: Tensor) -> Tensor:
        return Custom(self.distribution, self.event_shape).log_density(x)

    def from_normal(self, z: Tensor) -> Tensor:
        x: Tensor = self.quantile(z.reshape(*z.shape[:-1], *self.event_shape).double())
        return x.clamp(torch.finfo(z.dtype).min, torch.finfo(z.dtype).max).to(z.dtype)


def _bounds(distribution: Any) -> Any:
    support = distribution.support
    return getattr(support, "base_constraint", support)


def _quantile(base: Any) -> Any:
    """The map z -> x of a distribution over single numbers, or None."""
    if tuple(base.event_shape) or getattr(base.support, "is_discrete", False):
        return None
    if type(base) is laws.Normal:
        return lambda z: base.loc.to(z) + base.scale.to(z) * z
    if type(base) is laws.Uniform:
        return lambda z: _between(z, base.low.to(z), base.high.to(z))
    if isinstance(base, laws.TransformedDistribution) and type(base) not in _TABLED:
        inner = _quantile(base.base_dist)
        rising = all(
            isinstance(t, laws.ExpTransform | laws.AffineTransform | laws.PowerTransform) for t in base.transforms
        )
        if inner is None or not rising:
            return None
        return lambda z: laws.ComposeTransform(base.transforms)(inner(z))
    return _table(base) if type(base) in _TABLED else None


def _between(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    tail = torch.exp(log_ndtr(-z.abs())) * (high - low)
    return torch.where(z < 0, low + tail, high - tail)


@dataclass(frozen=True)
class _Line:
    """A monotone parameter t of the numbers that a law lives on, and its derivative."""

    lower: Tensor | None  # (*batch)
    upper: Tensor | None
    middle: Tensor
    spread: Tensor

    def at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """x and log dx/dt."""
        if self.lower is not None and self.upper is not None:
            width = self.upper - self.lower
            share = torch.sigmoid(t)
            return self.lower + width * share, width.log() + share.log() + torch.sigmoid(-t).log()
        if self.lower is not None:
            return self.lower + self.spread * t.exp(), self.spread.log() + t
        if self.upper is not None:
            return self.upper - self.spread * (-t).exp(), self.spread.log() - t
        return self.middle + self.spread * t.sinh(), self.spread.log() + t.cosh().log()


def _table(base: Any) -> Any:
    """Quantiles from the integral of the density over a grid, 5-point Gauss-Legendre between its points."""
    shape = tuple(base.batch_shape)
    if math.prod(shape) > _MOST:
        return None
    base = type(base)(**{name: getattr(base, name).double() for name in base.arg_constraints})
    drawn = Rng(0).globally(lambda: base.sample((4096,))).double()
    low, middle, high = torch.quantile(drawn, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=0)
    bounds = _bounds(base)
    lower, upper = (
        None if (end := getattr(bounds, side, None)) is None else torch.as_tensor(end).double().expand(shape)
        for side in ("lower_bound", "upper_bound")
    )
    spread = (
        (high - low) if lower is None and upper is None else (middle - (lower if lower is not None else upper)).abs()
    )
    line = _Line(lower, upper, middle, spread.clamp_min(1e-300))
    inner = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    outer = torch.logspace(math.log10(12), math.log10(_FAR), 240, dtype=torch.float64)[1:]
    t = torch.cat([-outer.flip(0), inner, outer])
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(5))
    half, centre = (t[1:] - t[:-1]) / 2, (t[1:] + t[:-1]) / 2
    points = (centre.unsqueeze(1) + half.unsqueeze(1) * nodes).flatten()  # (5 (G - 1),)
    density = _log_density(base, line, points.reshape(-1, *[1] * len(shape)).expand(-1, *shape))
    pieces = density.reshape(-1, 5, *shape) + (half.unsqueeze(1) * weights).log().reshape(-1, 5, *[1] * len(shape))
    mass = torch.logsumexp(pieces, 1)  # (G - 1, *batch)
    if not bool((torch.logsumexp(mass, 0).abs() < _TOTAL).all()):
        return None
    edge = torch.full((1, *shape), -torch.inf, dtype=torch.float64)
    left = torch.cat([edge, torch.logcumsumexp(mass, 0)]).flatten(1).mT.contiguous()  # (d, G)
    right = torch.cat([torch.logcumsumexp(mass.flip(0), 0).flip(0), edge]).flatten(1).mT.contiguous()
    at = _log_density(base, line, t.reshape(-1, *[1] * len(shape)).expand(-1, *shape)).flatten(1).mT.contiguous()
    return _Quantiles(line, t, left, right, at, shape)


def _log_density(base: Any, line: _Line, t: Tensor) -> Tensor:
    """Log-density of t (G, *batch), -inf where x is not a number that the law can take."""
    x, log_slope = line.at(t)
    ok = torch.isfinite(x) & base.support.check(x)
    safe = torch.where(ok, x, line.at(torch.zeros_like(t))[0])
    value: Tensor = base.log_prob(safe.to(torch.float64)) + log_slope
    return torch.where(ok & ~torch.isnan(value), value, -torch.inf).clamp_max(700.0)


@dataclass(frozen=True)
class _Quantiles:
    """x of the probability below (z < 0) or above (z > 0), by cubics between the points of the table."""

    line: _Line
    t: Tensor  # (G,)
    left: Tensor  # (d, G) log P(below)
    right: Tensor  # (d, G) log P(above)
    density: Tensor  # (d, G) log-density of t
    shape: Shape

    def __call__(self, z: Tensor) -> Tensor:
        flat = z.reshape(-1, math.prod(self.shape)).mT  # (d, n)
        tail = log_ndtr(-flat.abs())
        below = self._interpolated(tail, self.left.to(z.device), 1)
        above = self._interpolated(tail, self.right.to(z.device), -1)
        t = torch.where(flat < 0, below, above).mT.reshape(z.shape)
        moved = {name: None if v is None else v.to(z.device) for name, v in self.line.__dict__.items()}
        return replace(self.line, **moved).at(t)[0]

    def _interpolated(self, tail: Tensor, logs: Tensor, sign: int) -> Tensor:
        """t where the log-probability is `tail`; it rises with t (sign 1) or falls."""
        t, density = self.t.to(tail.device), self.density.to(tail.device)
        if sign < 0:
            logs, t, density = logs.flip(1), t.flip(0), density.flip(1)
        finite = logs.clamp_min(-1e4 - torch.arange(logs.shape[1], 0, -1, device=logs.device))  # strictly rising
        k = torch.searchsorted(finite, tail.detach().contiguous()).clamp(1, logs.shape[1] - 1)
        a, b = finite.gather(1, k - 1), finite.gather(1, k)
        ta, tb = t[k - 1], t[k]
        # dt / d(log P) = P / density, cut to what keeps a cubic monotone (Fritsch and Carlson 1980).
        width, rise = (b - a).clamp_min(1e-300), tb - ta
        steep = 3 * rise / width
        slopes = (
            sign * torch.exp((f - g).clamp(-600, 600))
            for f, g in ((a, density.gather(1, k - 1)), (b, density.gather(1, k)))
        )
        ma, mb = (
            torch.where(rise > 0, torch.minimum(m.clamp_min(0), steep), torch.maximum(m.clamp_max(0), steep))
            for m in slopes
        )
        u = ((tail - a) / width).clamp(0, 1)
        return (
            ta * (1 + 2 * u) * (1 - u) ** 2 + tb * u**2 * (3 - 2 * u)
            + width * (ma * u * (1 - u) ** 2 - mb * u**2 * (1 - u))
        )  # fmt: skip
