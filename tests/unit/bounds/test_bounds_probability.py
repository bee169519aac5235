"""Probability bounds contain the truth: exact values, and Monte Carlo on hundreds of random networks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import nn

from rarely.bounds import GaussianMeasure, UniformMeasure, bracket, volume
from rarely.core.errors import InputError


def _last(module, law, outputs, timeout=2.0, **options):
    items = list(bracket(module, law, outputs, timeout, **options))
    for before, after in itertools.pairwise(items):
        assert after.log_lower >= before.log_lower
        assert after.log_upper <= before.log_upper
    return items[-1]


def _sum_network(n, sign=1.0):
    layer = nn.Linear(n, 1)
    with torch.no_grad():
        layer.weight.fill_(sign)
        layer.bias.zero_()
    return layer


def _above(t):
    """y >= t."""
    return [(torch.tensor([[-1.0]]), torch.tensor([-t], dtype=torch.float64))]


def _fraction(*where):
    """Both bounds."""
    return tuple(volume.fraction_above(*where, upper=upper) for upper in (False, True))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("t", [0.05, 0.3, 0.5, 0.9])
def test_the_volume_under_a_plane_is_that_of_the_sum_of_uniforms(n, t):
    """Irwin-Hall: P(sum u <= t n), and the same by the complement and for a stretched box."""
    truth = sum((-1) ** k * math.comb(n, k) * max(t * n - k, 0) ** n for k in range(n + 1)) / math.factorial(n)
    A = torch.full((1, n), -1.0, dtype=torch.float64)
    zero, one = torch.zeros(1, n, dtype=torch.float64), torch.ones(1, n, dtype=torch.float64)
    low, high = _fraction(A, torch.tensor([t * n], dtype=torch.float64), zero, one)
    assert low <= truth * (1 + 1e-12)
    assert high >= truth * (1 - 1e-12)
    assert high - low < 1e-9
    low, high = _fraction(A / 7, torch.tensor([t * n], dtype=torch.float64), zero, 7 * one)
    assert low - 1e-12 <= truth <= high + 1e-12


def test_volumes_agree_with_sampling_for_lopsided_planes():
    g = torch.Generator().manual_seed(0)
    for n in (2, 4, 7, 10, 30):
        A = torch.randn(40, n, generator=g, dtype=torch.float64) * 10 ** (
            4 * torch.rand(40, n, generator=g, dtype=torch.float64) - 3
        )
        A[::5, 0] = 0
        low = torch.randn(40, n, generator=g, dtype=torch.float64)
        high = low + torch.rand(40, n, generator=g, dtype=torch.float64)
        u = torch.rand(40, 20000, n, generator=g, dtype=torch.float64)
        x = torch.lerp(low.unsqueeze(1), high.unsqueeze(1), u)
        value = (x * A.unsqueeze(1)).sum(2)
        b = -value[:, :50].mean(1) + 0.3 * value.std(1)
        rate = (value + b.unsqueeze(1) >= 0).double().mean(1)
        floor, ceil = _fraction(A, b, low, high)
        error = 5 * (rate * (1 - rate) / 20000).sqrt() + 1e-3
        assert (floor <= rate + error).all()
        assert (ceil >= rate - error).all()
        if n <= 10:
            assert (ceil - floor).median() < 1e-2


def test_a_linear_network_is_exact_at_once():
    for t in (1.5, 2.5, 2.9):
        truth = math.log((3 - t) ** 3 / 6) if t >= 2 else math.log(0.5)
        found = _last(_sum_network(3).double(), UniformMeasure(torch.zeros(3), torch.ones(3)), _above(t))
        assert found.log_lower <= truth + 1e-6
        assert found.log_upper >= truth - 1e-6
        assert found.gap < 1e-4


@pytest.mark.parametrize("t", [0.0, 2.0, 6.0])
def test_a_gaussian_half_space_is_the_normal_tail(t):
    mean, std = torch.tensor([0.3, -0.2]), torch.tensor([0.5, 1.2])
    truth = stats.norm.logsf(t, loc=float(mean.sum()), scale=float(std.double().square().sum().sqrt()))
    found = _last(_sum_network(2), GaussianMeasure(mean, std), _above(t), timeout=6.0, gap=0.3)
    assert found.log_lower <= truth <= found.log_upper + 1e-9
    assert found.gap < 0.4


def test_in_many_dimensions_the_closed_form_gives_an_upper_bound():
    n = 100
    tail = stats.norm.logsf(8.0)
    found = _last(_sum_network(n), GaussianMeasure(torch.zeros(n), torch.full((n,), 0.1)), _above(8.0), timeout=0.5)
    assert tail <= found.log_upper < -10
    box = _last(_sum_network(n), UniformMeasure(-torch.ones(n), torch.ones(n)), _above(40.0), timeout=0.5)
    assert -30 < box.log_upper < -20  # the normal approximation says -26.6


def _network(seed):
    torch.manual_seed(seed)
    acts = [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid]
    act = acts[seed % 4]
    width = 2 + seed % 2
    module = nn.Sequential(nn.Linear(width, 8), act(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1.6)
    g = torch.Generator().manual_seed(seed)
    shapes = [(1,), (2,), (1, 1), (2, 1)][(seed // 4) % 4]
    outputs = [(torch.randn(m, 3, generator=g), 0.3 * torch.randn(m, generator=g)) for m in shapes]
    return module, width, outputs


def _rate(module, outputs, x):
    with torch.no_grad():
        y = module(x.float())
    score = torch.stack([(b - y @ A.mT).amin(1) for A, b in outputs]).amax(0)
    return float((score >= 0).double().mean())


def _contains(found, rate, count):
    """The Monte Carlo rate lies within the bounds, up to five standard errors of the nearer bound."""
    low, high = math.exp(found.log_lower), math.exp(found.log_upper)
    slack = 5 * math.sqrt(max(rate * (1 - rate), 1 / count) / count)
    return low - slack <= rate <= high + slack


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_the_bounds_contain_monte_carlo_on_uniform_boxes(start):
    tight = 0
    for seed in range(start, start + 50):
        module, width, outputs = _network(seed)
        low = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 0.5
        high = low + 1.0
        found = _last(module, UniformMeasure(low, high), outputs, timeout=0.05, gap=0.3)
        x = torch.lerp(low, high, torch.rand(100_000, width))
        assert _contains(found, _rate(module, outputs, x), 100_000), seed
        tight += found.gap < 2
    assert tight > 10


@pytest.mark.parametrize("truncated", [False, True])
def test_the_bounds_contain_monte_carlo_for_gaussians(truncated):
    for seed in range(20):
        module, width, outputs = _network(seed)
        mean = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 0.3
        std = torch.full((width,), 0.4)
        ends = (mean - 0.5, mean + 0.9) if truncated else (None, None)
        found = _last(module, GaussianMeasure(mean, std, *ends), outputs, timeout=0.1, gap=0.3)
        x = mean + std * torch.randn(200_000, width)
        if truncated:
            x = x[((x >= ends[0]) & (x <= ends[1])).all(1)]
        assert _contains(found, _rate(module, outputs, x), len(x)), seed


def test_certain_and_impossible_events_are_exact():
    law = UniformMeasure(torch.zeros(2), torch.ones(2))
    certain = _last(_sum_network(2), law, _above(-1.0))
    assert certain.log_upper == 0
    assert certain.log_lower > -1e-6
    impossible = _last(_sum_network(2), law, _above(2.5))
    assert impossible.log_upper == -math.inf


def test_what_cannot_be_bounded_gives_the_trivial_bounds():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.cosh(x.sum(1, keepdim=True))

    found = _last(Odd(), UniformMeasure(torch.zeros(2), torch.ones(2)), _above(1.0))
    assert (found.log_lower, found.log_upper) == (-math.inf, 0.0)


def test_unusable_laws_are_refused():
    with pytest.raises(InputError):
        _last(_sum_network(2), UniformMeasure(torch.ones(2), torch.zeros(2)), _above(1.0))
    with pytest.raises(InputError):
        _last(_sum_network(2), GaussianMeasure(torch.zeros(2), torch.zeros(2)), _above(1.0))


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e-295, 1e-310])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_a_share_of_a_box_is_bounded_however_small_the_slopes(scale, share):
    """Of the unit interval, where share - x >= 0."""
    A, b = torch.tensor([[-scale]], dtype=torch.float64), torch.tensor([share * scale], dtype=torch.float64)
    low, high = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    least, most = (float(volume.fraction_above(A, b, low, high, upper=side)) for side in (False, True))
    assert least <= share <= most
    assert scale < 1e-290 or most - least < 1e-12


class _Multiplied(nn.Module):
    def forward(self, x):
        return x[:, :1] * x[:, 1:]


@pytest.mark.parametrize("t", [0.25, 0.9, 0.999])
def test_the_product_of_two_uniforms(t):
    """P(u v >= t) = 1 - t + t log t."""
    unit = UniformMeasure(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    found = _last(_Multiplied(), unit, _above(t), math.inf, most=3000, gap=0.02)
    truth = math.log(1 - t + t * math.log(t))
    assert found.log_lower <= truth <= found.log_upper
    assert found.log_upper - found.log_lower <= 0.02
