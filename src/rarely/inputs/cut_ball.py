"""The uniform law in an l2 ball that a box cuts, from normals of which most are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from rarely.core.input_model import Shape, event_dims
from rarely.core.rng import Rng
from rarely.stats.normal import log_radial_fraction

_FREE = (0.0, 1.5, 3.0, 4.5)  # widths to a side from which a coordinate may count as free of it
_NEARLY = 0.7  # of the best share of normals kept: the farther sides are, the smoother the law
_LEAST = 0.05  # share of normals kept below which the map is of no use
_FIRST, _MANY, _MOST = 256, 2048, 65536  # normals on which that share is measured
_EXACT = 0.01  # relative error to which it is
_TINY = 1e-37  # of a probability in float32
_BLOCK = 2**22  # numbers drawn at once


@dataclass(frozen=True)
class CutBall:
    """Offsets y from the centre, uniform in {|y| <= r, a <= y <= b}, a <= 0 <= b.

    Coordinates are of two kinds. The *tight* ones, near to a side, are independent normals of one width s cut to
    [a, b]: an exact, smooth map, coordinate by coordinate. Given their square sum Q, the *free* ones are uniform in a
    ball of radius sqrt(r^2 - Q), where the sides that they start from leave them half of their axis: of normals, of
    which those are cut to one sign. The density of all this is

        prod_tight exp(-y^2 / 2 s^2) / (r^2 - Q)^(k / 2)  up to a constant, with k free ones,

    and the uniform law has a constant one. So normals are kept with the chance

        exp(psi(Q) - max psi),  psi(Q) = Q / 2 s^2 + k / 2 log(r^2 - Q),

    and not at all where a free coordinate lies beyond its other side, which is far; what is kept is uniform, exactly.
    With s^2 = (r^2 - E Q) / k the chance is largest at the mean of Q, and flat there: with n tight coordinates about
    sqrt(k / (k + n)) of the normals are kept.
    """

    radius: Tensor  # ()
    low: Tensor  # (*event) a
    high: Tensor  # (*event) b
    below: Tensor  # (*event) mass of a normal beyond the side where its coordinate starts, and of what it may reach
    reach: Tensor  # (*event)
    above: Tensor  # (*event)
    free: Tensor  # (*event) 1 or 0
    width: Tensor  # () s
    count: Tensor  # () k
    log_share: Tensor  # () of normals that are kept
    event_shape: Shape

    def offsets(self, z: Tensor) -> Tensor:
        """Offsets (..., *event) of normals (..., d), inside the ball and the box."""
        offset, _, _ = self._made(z)
        offset = offset.clamp(self.low, self.high)
        length = offset.square().sum(event_dims(offset, self.event_shape)).sqrt()
        shrink = (self.radius / length.clamp_min(1e-30)).clamp_max(1.0)
        return offset * self._each(shrink)

    def log_kept(self, z: Tensor) -> Tensor:
        """Log of the chance that normals (..., d) are kept, (...)."""
        _, square, inside = self._made(z)
        r2, s2, k = (value.double() for value in (self.radius.square(), self.width.square(), self.count))
        best = r2 - k * s2
        left = (r2 - square.double()).clamp_min(0.0)
        log_chance = 0.5 * k * torch.log(left / (k * s2)) + (square.double() - best) / (2 * s2)
        return torch.where(inside & (left > 0), log_chance.clamp_max(0.0), -torch.inf)

    def _made(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, the square sum of the tight ones, and whether the free ones lie between their sides."""
        z = z.reshape(*z.shape[:-1], *self.event_shape)
        root = math.sqrt(0.5)
        under = self.below + self.reach * (0.5 * torch.erfc(-root * z))
        over = self.above + self.reach * (0.5 * torch.erfc(root * z))
        lower = under < over  # from the smaller tail, which keeps its digits
        t = ndtri(torch.where(lower, under, over).clamp_min(_TINY))
        t = torch.where(lower, t, -t)
        dims = event_dims(t, self.event_shape)
        tight = self._each(self.width) * t * (1 - self.free)
        square = tight.square().sum(dims)
        length = (t * self.free).square().sum(dims).sqrt().clamp_min(1e-12)
        room = (self.radius.square() - square).clamp_min(0.0).sqrt()
        fraction = torch.exp(log_radial_fraction(length, self.count) / self.count).to(t.dtype)
        loose = self._each(room * fraction / length) * t * self.free
        slack = 1e-6 * self._each(self.radius)
        inside = ((loose >= self.low - slack) & (loose <= self.high + slack)).flatten(min(dims)).all(-1)
        return tight + loose, square, inside

    def _each(self, value: Tensor) -> Tensor:
        return value.reshape(*value.shape, *(1,) * len(self.event_shape))


def cut_ball(low: Tensor, high: Tensor, radius: float) -> CutBall | None:
    """The map for sides low <= 0 <= high (*event); None where too few normals would be kept."""
    found = [ball for far in _FREE if (ball := _fitted(low, high, radius, far)) is not None]
    shares = [float(_chances(ball, _FIRST).mean()) for ball in found]
    best = max(shares, default=0.0)
    if best < _LEAST:
        return None
    ball = [ball for ball, share in zip(found, shares, strict=True) if share >= _NEARLY * best][-1]
    n = _MANY
    chances = _chances(ball, n)
    while n < _MOST and float(chances.std()) > _EXACT * math.sqrt(n) * float(chances.mean()):
        n *= 2
        chances = _chances(ball, n)
    return replace(ball, log_share=chances.mean().log().to(low.dtype))


def _fitted(low: Tensor, high: Tensor, radius: float, far: float) -> CutBall | None:
    """With the coordinates free whose sides are `far` widths away, or where they start; None where there are none."""
    a, b = low.double(), high.double()

    def free_at(s: float) -> Tensor:
        near = min(far * s, (1 - 1e-6) * radius)  # where the box ends with the ball, its side is rounded
        return ((a == 0) | (a <= -near)) & ((b == 0) | (b >= near)) & (a < b)

    def square_at(s: float, free: Tensor) -> float:
        """Mean of Q."""
        alpha, beta = a / s, b / s
        mass = (ndtr(beta) - ndtr(alpha)).clamp_min(1e-300)
        slopes = alpha * torch.exp(-0.5 * alpha.square()) - beta * torch.exp(-0.5 * beta.square())
        second = (1 + slopes / (math.sqrt(2 * math.pi) * mass)).clamp(0.0, 1.0)
        return float((s * s * second)[~free & (a < b)].sum())

    least, most = 1e-6 * radius, 10 * radius
    for _ in range(60):
        s = math.sqrt(least * most)
        free = free_at(s)
        least, most = (s, most) if square_at(s, free) + int(free.sum()) * s * s < radius**2 else (least, s)
    free = free_at(least)
    k, left = int(free.sum()), radius**2 - square_at(least, free)
    if k == 0 or left <= 0:
        return None
    s = math.sqrt(left / k)
    start = torch.where(free, torch.where(a == 0, 0.5, 0.0), ndtr(a / s))
    end = torch.where(free, torch.where(b == 0, 0.5, 0.0), ndtr(-b / s))
    return CutBall(
        low.new_tensor(radius), low, high, start.to(low.dtype), (1 - start - end).to(low.dtype), end.to(low.dtype),
        free.to(low.dtype), low.new_tensor(s), low.new_tensor(k), low.new_tensor(0.0), tuple(low.shape),
    )  # fmt: skip


def _chances(ball: CutBall, n: int) -> Tensor:
    """The chances of n normals to be kept, (n,) float64."""
    rng, d = Rng(0), ball.low.numel()
    rows = max(1, _BLOCK // d)
    sizes = [min(rows, n - start) for start in range(0, n, rows)]
    return torch.cat([ball.log_kept(rng.normal((size, d), ball.low.dtype)).exp() for size in sizes])
