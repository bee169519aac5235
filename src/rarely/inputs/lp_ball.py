"""Uniform inputs in an l1, l2 or l-infinity ball, optionally cut by a range of legal values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from rarely.core.arguments import ends, real
from rarely.core.coordinates import Coordinates
from rarely.core.errors import InputError
from rarely.core.input_model import ArrayLike, Shape, assign, event_dims, inside, kept_normals, leading, tensor
from rarely.core.rng import TORCHS, Rng
from rarely.inputs.box import Box
from rarely.inputs.common import uniform_between
from rarely.inputs.cut_ball import CutBall, cut_ball
from rarely.stats.normal import Span, log_radial_fraction


@dataclass(frozen=True, init=False)
class LpBall:
    """Uniform in {x : |x - center|_norm <= radius, clip[0] <= x <= clip[1]}.

    For l-infinity the cut ball is a box and everything is exact and fast. A cut l2 ball is mapped from normals of which
    most are kept (`CutBall`). A cut l1 ball, and an l2 ball whose cut is near in nearly all coordinates, have no map
    from normals (`normal_dim` is None) unless the cut removes nothing; they are sampled exactly by rejection.
    """

    middle: Tensor  # (*event) center of the ball
    radius: Tensor  # () one number per problem
    low: Tensor  # (*event) bounding box of the cut ball
    high: Tensor  # (*event)
    rate: Tensor  # () width of the product law that rejection sampling proposes from; 0 when not cut
    norm: float
    cut: bool
    map: CutBall | None  # of a cut ball that has one
    event_shape: Shape
    center = property(attrgetter("middle"))
    support = property(attrgetter("low", "high"))

    def __init__(
        self,
        center: ArrayLike,
        radius: float,
        norm: float | str = math.inf,
        clip: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> None:
        middle, order, radius = tensor(center, "center"), _order(norm), real(radius, "radius")
        if not (math.isfinite(radius) and radius >= 0):
            raise InputError(f"radius must be a finite number of at least 0, got {radius}")
        box = Box(middle - radius, middle + radius)
        cut = False
        if clip is not None:
            try:
                limits = Box(*(tensor(c, "clip").to(middle.dtype).expand(middle.shape) for c in ends(clip, "clip")))
            except RuntimeError as error:
                raise InputError(f"clip must have the shape of the center, {tuple(middle.shape)}: {error}") from error
            if not bool(inside(middle, limits.low, limits.high, tuple(middle.shape))):
                raise InputError("the center lies outside clip; clip must contain the unperturbed input")
            cut = order != math.inf and bool(((limits.low > box.low) | (limits.high < box.high)).any())
            box = Box(torch.maximum(box.low, limits.low), torch.minimum(box.high, limits.high))
        made = cut_ball(box.low - middle, box.high - middle, radius) if cut and order == 2 else None
        rate = _proposal_width(middle, radius, order, box) if cut and made is None else 0.0
        assign(
            self, middle=middle, radius=middle.new_tensor(radius), low=box.low, high=box.high,
            rate=middle.new_tensor(rate), norm=order, cut=cut, map=made, event_shape=tuple(middle.shape),
        )  # fmt: skip

    @property
    def words(self) -> str:
        norm = "∞" if self.norm == math.inf else f"{self.norm:g}"
        ball = f"uniform in the ball of radius {float(self.radius):g} in the {norm}-norm around an input"
        limits = f"values between {float(self.low.min()):.4g} and {float(self.high.max()):.4g}"
        return f"{ball} of {self.middle.numel():,} numbers; {limits}"

    @property
    def coordinates(self) -> Coordinates | None:
        return Coordinates(True, self.low, self.high) if self.norm == math.inf else None

    @cached_property
    def _span(self) -> Span:
        return Span(self.low, self.high)

    @property
    def normal_dim(self) -> int | None:
        d = int(torch.Size(self.event_shape).numel())
        if self.map is not None:
            return d
        return None if self.cut else d + 1 if self.norm == 1 else d

    def log_kept(self, z: Tensor) -> Tensor | None:
        """Log of the chance that normals are kept (see `InputModel`); None where all are."""
        return None if self.map is None else self.map.log_kept(z)

    @property
    def log_share(self) -> Tensor:
        return self.radius.new_zeros(()) if self.map is None else self.map.log_share

    def sample(self, shape: int | Shape, rng: Rng = TORCHS) -> Tensor:
        lead = leading(shape)
        if self.map is not None:
            return self.from_normal(kept_normals(self, lead, rng, self.middle.dtype))
        if self.cut:
            return self._rejection(lead, rng)
        assert self.normal_dim is not None
        if self.norm == math.inf:
            return uniform_between(self.low, self.high, (*lead, *self.event_shape), rng)
        return self.from_normal(rng.normal((*lead, self.normal_dim), self.middle.dtype))

    def log_density(self, x: Tensor) -> Tensor:
        ok = inside(x, self.low, self.high, self.event_shape)
        if self.norm != math.inf:
            # A relative slack of a few float32 roundings: points on the sphere must count as inside.
            ok = ok & (self._length(x - self.middle) <= self.radius * (1 + 1e-5))
        return torch.where(ok, 0.0, -torch.inf).to(x.dtype)

    def from_normal(self, z: Tensor) -> Tensor:
        if self.norm == math.inf:
            return self._span.at(z.reshape(*z.shape[:-1], *self.event_shape))
        if self.map is not None:
            return (self.middle + self.map.offsets(z)).clamp(self.low, self.high)  # rounding only
        radius = self.radius.reshape(self.radius.shape + (1,) * len(self.event_shape))
        if self.norm == 2:
            length = z.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            fraction = torch.exp(log_radial_fraction(length, z.shape[-1]) / z.shape[-1]).to(z.dtype)
            offset = z / length * fraction
        else:
            # d signed exponentials over the sum of d + 1 of them are uniform in the l1 ball.
            log_tail: Tensor = torch.special.log_ndtr(-z[..., :-1].abs())
            exponential = (-math.log(2) - log_tail).clamp_min(0.0)
            last = -torch.special.log_ndtr(z[..., -1:])
            offset = z[..., :-1].sign() * exponential / (exponential.sum(-1, keepdim=True) + last)
        x: Tensor = self.middle + radius * offset.reshape(*z.shape[:-1], *self.event_shape)
        return x.clamp(self.low, self.high)  # rounding only

    def project(self, x: Tensor) -> Tensor:
        """Pull inputs (..., *event) back into the ball along their ray from its centre, and into the cut."""
        offset = x - self.middle
        if self.norm != math.inf:
            shrink = (self.radius / self._length(offset).clamp_min(1e-30)).clamp_max(1.0)
            offset = offset * shrink.reshape(*shrink.shape, *(1,) * len(self.event_shape))
        return (self.middle + offset).clamp(self.low, self.high)

    def _length(self, offset: Tensor) -> Tensor:
        dims = event_dims(offset, self.event_shape)
        if self.norm == 1:
            return offset.abs().sum(dims)
        return torch.sqrt(torch.square(offset).sum(dims))

    def _rejection(self, lead: Shape, rng: Rng) -> Tensor:
        """Exact draws: propose from a product law cut to the box, keep with probability proportional to the ratio.

        With independent exponential (l1) or half-normal (l2) distances y the density of the uniform law over that of
        the proposal is proportional to exp(T(y) - T_max) where T = |y|_1/rate or |y|^2/(2 rate^2), so a proposal inside
        the ball is kept with that probability: about one in sqrt(d), whatever the cut removes.
        """
        x = torch.empty((*lead, *self.event_shape), dtype=self.middle.dtype, device=self.middle.device)
        flat, todo = x.reshape(-1, *self.event_shape), torch.arange(int(torch.Size(lead).numel()), device=x.device)
        shapes = [(p, self.event_shape) for p in (self.middle, self.low, self.high)]
        shapes += [(p, ()) for p in (self.radius, self.rate)]
        params = [p.expand(*lead, *shape).reshape(-1, *shape) for p, shape in shapes]
        for _ in range(100_000):
            if todo.numel() == 0:
                return x
            middle, low, high, radius, rate = (p[todo] for p in params)
            proposal, exponent, limit = _propose(middle, low, high, radius, rate, self.norm, rng)
            keep = (exponent <= limit) & (torch.log(rng.uniform(todo.shape)) < exponent - limit)
            flat[todo[keep]] = proposal[keep]
            todo = todo[~keep]
        raise InputError("the cut ball is too thin to sample: almost all of it lies outside clip")


def _order(norm: object) -> float:
    """1, 2 or inf, also as "l2" and "linf"."""
    try:
        order = float(norm.lower().removeprefix("l") if isinstance(norm, str) else norm)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        order = math.nan
    if order not in (1.0, 2.0, math.inf):
        raise InputError(f"norm must be 1, 2 or inf, got {norm!r}")
    return order


def _propose(
    middle: Tensor, low: Tensor, high: Tensor, radius: Tensor, rate: Tensor, norm: float, rng: Rng
) -> tuple[Tensor, Tensor, Tensor]:
    scale = rate.reshape(-1, *([1] * (middle.ndim - 1)))
    u = rng.uniform(middle.shape, torch.float64)
    a, b = ((low - middle) / scale).double(), ((high - middle) / scale).double()
    if norm == 1:
        # Laplace law cut to [a, b], a <= 0 <= b: choose the side by its mass, then an exponential cut to its length.
        left, right = -torch.expm1(a), -torch.expm1(-b)
        v = u * (left + right)
        offset = torch.where(
            v < left, torch.log1p(-v.clamp(max=1 - 1e-15)), -torch.log1p(-(v - left).clamp(0, 1 - 1e-15))
        )
        exponent, limit = offset.abs().flatten(1).sum(1), (radius / rate).double()
    else:
        p, q = torch.special.ndtr(a), torch.special.ndtr(b)
        offset = torch.special.ndtri((p + u * (q - p)).clamp(1e-15, 1 - 1e-15)).clamp(a, b)
        exponent, limit = 0.5 * (offset**2).flatten(1).sum(1), 0.5 * (radius / rate).double() ** 2
    return middle + (scale * offset.to(middle.dtype)), exponent, limit


def _proposal_width(middle: Tensor, radius: float, norm: float, box: Box) -> float:
    """The width for which the mean exponent of `_propose` equals its limit, by bisection on samples."""
    low, high = 1e-6 * radius, 10.0 * radius
    if radius == 0:
        return 1.0
    rows = 64
    expand = (rows, *middle.shape)
    for _ in range(40):
        mid = math.sqrt(low * high)
        one = middle.new_full((rows,), mid)
        _, exponent, limit = _propose(
            middle.expand(expand), box.low.expand(expand), box.high.expand(expand),
            middle.new_full((rows,), radius), one, norm, Rng(0),
        )  # fmt: skip
        # In units of the width: too wide a law leaves the ball, too narrow a one never reaches its edge.
        low, high = (mid, high) if float(exponent.mean()) < float(limit[0]) else (low, mid)
    return math.sqrt(low * high)
