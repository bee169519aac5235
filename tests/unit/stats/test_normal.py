from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from rarely.stats.normal import Span, log_radial_fraction, lower_tail, truncated_quantile


def test_lower_tail_keeps_its_digits() -> None:
    z = torch.tensor([-30.0, -5.0, 0.0, 5.0, 30.0], dtype=torch.float64)
    expected = stats.norm.sf(z.abs().numpy())
    np.testing.assert_allclose(lower_tail(z).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("mirror", [False, True])
def test_points_near_zero_keep_their_digits(mirror: bool) -> None:
    """At an end that is 0 floats are dense, and so are the points."""
    z, ends = torch.tensor([-9.0, 9.0]), torch.tensor([0.0, 1.0])
    x = Span(-ends[1], -ends[0]).at(z).flip(0).neg() if mirror else Span(ends[0], ends[1]).at(z)
    np.testing.assert_allclose(float(x[0]), stats.norm.cdf(-9.0), rtol=1e-4)
    assert float(x[1]) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_stay_inside_in_order_and_near_the_exact_ones(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    low, high = torch.randn(2, 5000, generator=g, dtype=dtype).sort(0).values
    low[:50] = high[:50]
    low[50:100] = 0.0
    high[100:150] = low[100:150] + 3e-7
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    z = torch.cat([torch.linspace(-12, 12, 201, dtype=dtype), torch.tensor([-40.0, 40.0], dtype=dtype)])
    x = Span(low, high).at(z.sort().values.unsqueeze(1))
    assert bool(((x >= low) & (x <= high)).all())
    assert bool((x.diff(dim=0) >= 0).all())
    exact = low.double() + torch.special.ndtr(z.sort().values.double()).unsqueeze(1) * (high.double() - low.double())
    step = torch.finfo(dtype).eps * torch.maximum(low.abs(), high.abs()).double()
    # Half a step for each rounding of ours, two for erfc times a width of up to 2 max, as much for float64's reference.
    assert bool(((x.double() - exact).abs() <= 8 * step).all())


INTERVALS = [(-1.0, 1.0), (-math.inf, 0.5), (-1.0, math.inf), (4.0, 5.0), (30.0, 31.0), (-40.0, -38.0), (-8.0, 9.0)]


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_truncated_quantile_is_the_quantile(a: float, b: float) -> None:
    """Its CDF at the mapped point is Phi(z), measured from the nearer end."""
    z = torch.linspace(-8, 8, 65, dtype=torch.float64)
    low, high = torch.full_like(z, a), torch.full_like(z, b)
    x = truncated_quantile(z, low, high).numpy()
    assert np.all((x >= a) & (x <= b))
    assert np.all(np.diff(x) >= 0)
    law = stats.truncnorm(a, b)
    middle = np.abs(z.numpy()) < 5
    np.testing.assert_allclose(law.cdf(x)[middle], stats.norm.cdf(z.numpy())[middle], rtol=1e-6, atol=1e-9)


def test_truncated_quantile_reaches_far_into_an_open_tail() -> None:
    """Far out, a normal cut at -1 is a normal with its tail divided by Phi(1): no saturation at eight sigma."""
    z = torch.tensor([9.0, 15.0, 25.0], dtype=torch.float64)
    x = truncated_quantile(z, torch.full_like(z, -1.0), torch.full_like(z, math.inf)).numpy()
    np.testing.assert_allclose(stats.norm.logsf(x), stats.norm.logsf(z.numpy()) + stats.norm.logcdf(1.0), rtol=1e-9)
    mirrored = truncated_quantile(-z, torch.full_like(z, -math.inf), torch.full_like(z, 1.0)).numpy()
    np.testing.assert_allclose(mirrored, -x, rtol=1e-12)


@pytest.mark.parametrize(("a", "b"), INTERVALS)
def test_truncated_quantile_has_the_right_slope(a: float, b: float) -> None:
    z = torch.linspace(-3, 3, 13, dtype=torch.float64).requires_grad_()
    low, high = torch.full_like(z, a).detach(), torch.full_like(z, b).detach()
    (slope,) = torch.autograd.grad(truncated_quantile(z, low, high).sum(), z)
    h = 1e-5
    with torch.no_grad():
        numeric = (truncated_quantile(z + h, low, high) - truncated_quantile(z - h, low, high)) / (2 * h)
    np.testing.assert_allclose(slope.numpy(), numeric.numpy(), rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("d", [1, 2, 10, 784])
def test_log_radial_fraction(d: int) -> None:
    q = np.array([1e-100 if d == 1 else 1e-280, 1e-90, 1e-6, 0.3, 0.9])  # r^2 itself underflows for d = 1 below that
    r = np.sqrt(stats.chi2.ppf(q, d))
    found = log_radial_fraction(torch.as_tensor(r), d).numpy()
    np.testing.assert_allclose(found, np.log(q), rtol=1e-6, atol=1e-9)
