"""Every function of one entry, on intervals of all kinds, against exact arithmetic."""

from __future__ import annotations

import mpmath
import pytest
import torch

from rarely.bounds.layers.curves import Curve
from rarely.bounds.layers.functions import Exp, Log, Power, Wave
from rarely.bounds.layers.sign import Sign

FUNCTIONS = {
    "square": (Curve(Power(2.0)), lambda x: x**2, False),
    "cube": (Curve(Power(3.0)), lambda x: x**3, False),
    "fifth power": (Curve(Power(5.0)), lambda x: x**5, False),
    "reciprocal": (Curve(Power(-1.0)), lambda x: 1 / x, True),
    "inverse square": (Curve(Power(-2.0)), lambda x: x**-2, True),
    "root": (Curve(Power(0.5)), mpmath.sqrt, True),
    "inverse root": (Curve(Power(-0.5)), lambda x: 1 / mpmath.sqrt(x), True),
    "three halves": (Curve(Power(1.5)), lambda x: mpmath.sqrt(x) ** 3, True),
    "exp": (Curve(Exp()), mpmath.exp, False),
    "log": (Curve(Log()), mpmath.log, True),
    "sin": (Curve(Wave(cosine=False)), mpmath.sin, False),
    "cos": (Curve(Wave(cosine=True)), mpmath.cos, False),
    "sign": (Sign(), mpmath.sign, False),
}
POINTS = 9


def _intervals(positive, count=240):
    """Narrow, wide, degenerate, across zero and across extrema, huge and tiny: (count,) each."""
    g = torch.Generator().manual_seed(0)
    u, v, w = torch.rand(3, count, generator=g, dtype=torch.float64)
    size = 10 ** (16 * u - 14)
    centre = torch.where(v < 0.5, 12 * w - 6, (2 * w - 1) * 10 ** (12 * v - 6))
    low, high = centre - size * v, centre + size * w
    low[::16] = high[::16]
    if positive:
        low, high = low.abs() + 1e-12, low.abs() + 1e-12 + (high - low)
    return low, high


def _inside(low, high):
    """Points of each interval, its ends and extrema of sin and cos among them, (POINTS, count)."""
    part = torch.linspace(0, 1, POINTS - 1, dtype=torch.float64).unsqueeze(1)
    quarter = ((low + high) / torch.pi).round() * torch.pi / 2
    points = torch.cat([torch.lerp(low, high, part), quarter.unsqueeze(0)])
    return points.clamp(low, high)


def _exact(function, x):
    return [[function(mpmath.mpf(v)) for v in row] for row in x.tolist()]


def _broken(op, function, low, high):
    """How often an exact value lies outside the interval, below the lower line or above the upper one."""
    finite = torch.isfinite(op.interval((low, high))[0]) & torch.isfinite(op.interval((low, high))[1])
    low, high = low[finite], high[finite]
    assert len(low) > 150
    x = _inside(low, high)
    least, most = op.interval((low, high))
    shape = (1, -1)
    lines = op.relax((low.reshape(shape), high.reshape(shape)))
    mid, half = lines.mid_shift[0].tolist(), lines.half_shift[0].tolist()
    below, above = lines.lower_slope[0].tolist(), lines.upper_slope[0].tolist()
    with mpmath.workdps(60):
        count = 0
        for row, values in zip(x.tolist(), _exact(function, x), strict=True):
            for k, (p, f) in enumerate(zip(row, values, strict=True)):
                count += not float(least[k]) <= f <= float(most[k])
                p, m, h = mpmath.mpf(p), mpmath.mpf(mid[k]), mpmath.mpf(half[k])
                count += not mpmath.mpf(below[k]) * p + m + h <= f <= mpmath.mpf(above[k]) * p + m - h
    return count


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_values_lie_between_the_lines(name):
    op, function, positive = FUNCTIONS[name]
    assert _broken(op, function, *_intervals(positive)) == 0


@pytest.mark.parametrize("name", ["cube", "exp", "sin", "root"])
def test_another_function_breaks_them(name):
    op, function, positive = FUNCTIONS[name]
    shifted = mpmath.mpf(10) ** -9
    assert _broken(op, lambda x: function(x) * (1 + shifted) + shifted**2, *_intervals(positive)) > 0


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "sign"])
def test_lines_close_in_with_the_square_of_the_width(name):
    """At the centre they are at most |f''| w^2 / 4 apart: the chord by an eighth, the grid by a little more."""
    op, _, _ = FUNCTIONS[name]
    centre = torch.linspace(0.3, 2.9, 40, dtype=torch.float64)
    if name == "cube":
        centre = centre - 1.0
    for width in (0.2, 0.02):
        x = ((centre - width / 2).reshape(1, -1), (centre + width / 2).reshape(1, -1))
        lines = op.relax(x)
        gap = (lines.upper_slope - lines.lower_slope) * centre - 2 * lines.half_shift
        h = 1e-4
        second = [(op.forward(c + h) - 2 * op.forward(c) + op.forward(c - h)) / h**2 for c in x]
        bend = torch.stack(second).abs().amax(0).clamp(min=1.0 if name in ("sin", "cos") else 0.0)
        assert (gap <= 1.3 * bend * width**2 / 4 + 1e-9).all()


@pytest.mark.parametrize("name", ["reciprocal", "root", "log", "inverse square"])
def test_outside_the_domain_nothing_is_known(name):
    op, _, _ = FUNCTIONS[name]
    low, high = torch.tensor([[-1.0]]).double(), torch.tensor([[1.0]]).double()
    assert all(end.isnan().all() for end in op.interval((low, high)))
    assert op.relax((low, high)).backward(torch.ones(1, 1, 1).double(), None)[1].isnan().all()


def test_far_from_zero_a_wave_is_between_its_extremes():
    x = torch.tensor([[1e9]]).double(), torch.tensor([[1e9 + 1e-3]]).double()
    low, high = Curve(Wave(cosine=False)).interval(x)
    assert float(low) == -1
    assert 1 <= float(high) < 1 + 1e-12
