"""torch's distributions as input models: independent coordinates map from normals through their quantile functions.

So heavy tails are ordinary: in z-space every kernel and method works on them as on any other law. Closed forms where
torch has them; else quantiles come from a table of the density's integral, from both ends so that tails keep their
digits, and are interpolated by cubics: the law that is sampled is the law that is mapped, off by less than 1e-3 of p
down to 1e-100 and by much less where p is not as small; a law that a table does not fit that well gets none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributions as laws
from torch import Tensor
from torch.special import log_ndtr

from rarely.core.input_model import Custom, InputModel, Shape, leading
from rarely.core.rng import TORCHS, Rng
from rarely.core.thresholds import LOG_FLOOR

# One hump each, so that a table that ends in the right total has missed nothing.
_TABLED = (
    laws.StudentT, laws.Gamma, laws.Chi2, laws.Beta, laws.Laplace, laws.Cauchy, laws.Exponential, laws.HalfNormal,
    laws.HalfCauchy, laws.FisherSnedecor, laws.InverseGamma, laws.Kumaraswamy, laws.Gumbel,
)  # fmt: skip
_MOST = 5000  # coordinates with laws of their own that get a table
_FAR = 250.0  # asinh of the farthest quantile in units of the spread: a Cauchy tail of 1e-100
_AT_ONCE = 2**22  # densities
_NODES = 8  # of Gauss and Legendre between two points: 24 nats of a light tail
_TOTAL = 1e-4  # by which the integral of a density may miss one
_OFF = 0.016  # nats by which half of a table may miss the other half, to 1e-100: the whole is off by a sixteenth of it


def from_torch(distribution: laws.Distribution) -> InputModel:
    """The distribution with a map from normals where its coordinates are independent or normal, else as it is."""
    shape = tuple(distribution.batch_shape) + tuple(distribution.event_shape)
    base: Any = distribution
    while isinstance(base, laws.Independent):
        base = base.base_dist
    quantile = _correlated(base) if base is distribution else None
    quantile = quantile or _quantile(base)
    return Custom(distribution, shape) if quantile is None else Marginals(distribution, quantile, shape)


@dataclass(frozen=True)
class Marginals:
    """A torch distribution in the space of the normals behind it."""

    stackable: ClassVar[bool] = False
    distribution: Any
    quantile: Any  # z (..., *event) -> x
    event_shape: Shape

    @property
    def words(self) -> str:
        return f"drawn from torch.distributions: {type(self.distribution).__name__}"

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

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        return self.from_normal(rng.normal((*leading(shape), self.normal_dim)))

    def log_density(self, x: Tensor) -> Tensor:
        return Custom(self.distribution, self.event_shape).log_density(x)

    def from_normal(self, z: Tensor) -> Tensor:
        x: Tensor = self.quantile(z.reshape(*z.shape[:-1], *self.event_shape).double())
        return x.clamp(torch.finfo(z.dtype).min, torch.finfo(z.dtype).max).to(z.dtype)


def _bounds(distribution: Any) -> Any:
    support = distribution.support
    return getattr(support, "base_constraint", support)


def _correlated(law: Any) -> Any:
    """The map of a normal law with correlations, or None."""
    if not isinstance(law, laws.MultivariateNormal | laws.LowRankMultivariateNormal) or tuple(law.batch_shape):
        return None
    root = torch.linalg.cholesky(law.covariance_matrix.double())
    return lambda z: law.loc.to(z) + z @ root.to(z).mT


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
        known = all(
            isinstance(t, laws.ExpTransform | laws.AffineTransform | laws.PowerTransform) for t in base.transforms
        )
        if inner is None or not known:
            return None
        return lambda z: laws.ComposeTransform([_placed(t, z) for t in base.transforms])(inner(z))
    return _table(base) if type(base) in _TABLED else None


def _placed(transform: Any, z: Tensor) -> Any:
    """The transform on the device of z."""
    if isinstance(transform, laws.AffineTransform):
        return laws.AffineTransform(torch.as_tensor(transform.loc).to(z), torch.as_tensor(transform.scale).to(z))
    if isinstance(transform, laws.PowerTransform):
        return laws.PowerTransform(torch.as_tensor(transform.exponent).to(z))
    return transform


def _between(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    tail = torch.exp(log_ndtr(-z.abs())) * (high - low)
    return torch.where(z < 0, low + tail, high - tail)


@dataclass(frozen=True)
class _Line:
    """A monotone parameter t of the numbers that a law lives on, and its derivative.

    Numbers between bounds by their log-odds, above one by their log, others by asinh; t = 0 in the middle of the law,
    t = 1 as far from it as most of the law reaches, so that a narrow law has as many points of a grid as a wide one.
    """

    lower: Tensor | None  # (*batch)
    upper: Tensor | None
    middle: Tensor  # of the law on this scale
    spread: Tensor

    @classmethod
    def of(cls, lower: Tensor | None, upper: Tensor | None, drawn: Tensor) -> _Line:
        """The one for a law with these ends that gave these numbers (n, *batch)."""
        below = [] if lower is None else [(drawn - lower).log()]
        above = [] if upper is None else [-(upper - drawn).log()]
        bounded = below + above
        scale = torch.stack(bounded).sum(0).clamp(-700, 700) if bounded else drawn
        ends = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        low, middle, high = torch.quantile(scale, ends, dim=0)
        return cls(lower, upper, middle, (high - low).clamp(1e-300, 1.0 if bounded else math.inf))

    def at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """x and log dx/dt."""
        if self.lower is None and self.upper is None:
            return self.middle + self.spread * t.sinh(), self.spread.log() + t.cosh().log()
        s = self.middle + self.spread * t
        if self.lower is not None and self.upper is not None:
            width = self.upper - self.lower
            share, rest = torch.sigmoid(s), torch.sigmoid(-s)
            x = torch.where(s < 0, self.lower + width * share, self.upper - width * rest)
            return x, (width * self.spread).log() + share.log() + rest.log()
        if self.lower is not None:
            return self.lower + s.exp(), self.spread.log() + s
        assert self.upper is not None
        return self.upper - (-s).exp(), self.spread.log() - s

    def to(self, device: torch.device) -> _Line:
        lower, upper = (None if end is None else end.to(device) for end in (self.lower, self.upper))
        return _Line(lower, upper, self.middle.to(device), self.spread.to(device))


def _table(base: Any) -> Any:
    """Quantiles from the integral of the density over a grid, Gauss-Legendre between its points; None if poor."""
    values = {name: torch.as_tensor(getattr(base, name)).double().cpu() for name in base.arg_constraints}
    if all(bool((value == value.flatten()[0]).all()) for value in values.values()):
        values = {name: value.flatten()[:1] for name, value in values.items()}  # one table for all coordinates
    base = type(base)(**values)
    shape = tuple(base.batch_shape)
    if math.prod(shape) > _MOST:
        return None
    drawn = Rng(0).globally(lambda: base.sample((4096,))).double()
    bounds = _bounds(base)
    lower, upper = (
        None if (end := getattr(bounds, side, None)) is None else torch.as_tensor(end).double().expand(shape)
        for side in ("lower_bound", "upper_bound")
    )
    line = _Line.of(lower, upper, drawn)
    inner = torch.linspace(-16, 16, 2001, dtype=torch.float64)
    outer = torch.logspace(math.log10(16), math.log10(_FAR), 240, dtype=torch.float64)[1:]
    t = torch.cat([-outer.flip(0), inner, outer])
    ends = torch.split(torch.stack([t[:-1], t[1:]]), max(1, _AT_ONCE // max(1, _NODES * math.prod(shape))), 1)
    mass = torch.cat([_mass(base, line, *pair) for pair in ends])  # (G - 1, *batch)
    if not bool((torch.logsumexp(mass, 0).abs() < _TOTAL).all()):
        return None
    edge = torch.full((1, *shape), -torch.inf, dtype=torch.float64)
    left = torch.cat([edge, torch.logcumsumexp(mass, 0)]).flatten(1).mT.contiguous()  # (d, G)
    right = torch.cat([torch.logcumsumexp(mass.flip(0), 0).flip(0), edge]).flatten(1).mT.contiguous()
    at = _log_density(base, line, t).flatten(1).mT.contiguous()
    half_table = _Quantiles(line, t[::2], left[:, ::2], right[:, ::2], at[:, ::2], shape)
    return _Quantiles(line, t, left, right, at, shape) if half_table.off(t, left, right, at) < _OFF else None


def _mass(base: Any, line: _Line, low: Tensor, high: Tensor) -> Tensor:
    """Log-probability between each low and high (G,), (G, *batch)."""
    nodes, weights = (torch.from_numpy(v).unsqueeze(1) for v in np.polynomial.legendre.leggauss(_NODES))
    half, centre = (high - low) / 2, (high + low) / 2
    density = _log_density(base, line, (centre + half * nodes).flatten())
    density = density.reshape(_NODES, -1, *density.shape[1:])
    return torch.logsumexp(density + _beside((half * weights).log(), density), 0)


def _beside(t: Tensor, values: Tensor) -> Tensor:
    """t with ones for the dimensions that values has more."""
    return t.reshape(*t.shape, *[1] * (values.ndim - t.ndim))


def _log_density(base: Any, line: _Line, t: Tensor) -> Tensor:
    """Log-density of t (G,), (G, *batch); -inf where x is not a number that the law can take."""
    t = _beside(t, line.middle.unsqueeze(0)).expand(-1, *line.middle.shape)
    x, log_slope = line.at(t)
    ok = torch.isfinite(x) & base.support.check(x)
    for end in (line.lower, line.upper):  # where a density may be infinite
        ok = ok if end is None else ok & (x != end)
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
    shape: Shape  # of the laws; one where they are all the same

    def __call__(self, z: Tensor) -> Tensor:
        flat = z.reshape(-1, math.prod(self.shape)).mT  # (d, n)
        tail = log_ndtr(-flat.abs())
        below = self._interpolated(tail, self.left.to(z.device), 1)
        above = self._interpolated(tail, self.right.to(z.device), -1)
        t = torch.where(flat < 0, below, above).mT.reshape(z.shape)
        return self.line.to(z.device).at(t)[0]

    def off(self, t: Tensor, left: Tensor, right: Tensor, density: Tensor) -> float:
        """The largest error of log P at the points of a finer table, while P is more than 1e-100.

        Not beside an end that is so near that numbers cannot tell, nor in the last cell, which reaches to nothing.
        """
        x = self.line.at(_beside(t, self.line.middle.unsqueeze(0)))[0].flatten(1).mT
        told = torch.ones_like(x, dtype=torch.bool)
        for end in (self.line.lower, self.line.upper):
            if end is not None:
                told &= (x - end.flatten().unsqueeze(1)).abs() > 1e-8 * end.flatten().unsqueeze(1).abs()
        worst = 0.0
        for tail, own, sign in ((left, self.left, 1), (right, self.right, -1)):
            last = own.masked_fill(own == -torch.inf, torch.inf).amin(1, keepdim=True)
            error = (self._interpolated(tail, own, sign) - t).abs() * torch.exp((density - tail).clamp(-600, 600))
            counts = told & (tail > LOG_FLOOR) & (tail > last) & (tail < math.log(0.5))
            worst = max(worst, float(torch.where(counts, error, 0.0).max()))
        return worst

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
