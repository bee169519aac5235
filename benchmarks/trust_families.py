"""Rare events with known probability, by family: what `trust.py` asks about."""

# Lambdas that bind loop variables have defaults, whose types mypy does not infer; scipy has no types.
# mypy: disable-error-code="misc,import-untyped"

from __future__ import annotations

import csv
import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import plain_draws
from common import collision_problems, mnist_problem
from rarely import Box, Gaussian, LinearConstraint, LpBall, Misclassification, Mixture, Problem, Splitting, estimate

Score = Callable[[Tensor], Tensor]
DATA = Path(os.environ.get("RARELY_DATA", "../shared/data"))


@dataclass(frozen=True)
class Case:
    problem: Problem
    truth: float  # log p
    at_once: int = 20  # copies of it in one batch
    error: float = 0.0  # standard deviation of the truth itself, where it was drawn


@dataclass(frozen=True)
class Family:
    part: str  # "tuned", "kept" or "open"
    cases: Callable[[], dict[str, Case]]


ALL: dict[str, Family] = {}


def family(part: str) -> Callable[[Callable[[], dict[str, Case]]], Callable[[], dict[str, Case]]]:
    def add(make: Callable[[], dict[str, Case]]) -> Callable[[], dict[str, Case]]:
        ALL[make.__name__] = Family(part, functools.cache(make))
        return make

    return add


def tail(b: float) -> float:
    """log P(Z > b)."""
    return float(stats.norm.logsf(b))


def union(*logs: float) -> float:
    """log P of a union of independent events."""
    return math.log(-math.expm1(sum(math.log1p(-math.exp(p)) for p in logs)))


def identity(x: Tensor) -> Tensor:
    return x


def normal(d: int, score: Score, truth: float, black: bool = False, at_once: int = 20) -> Case:
    network = (lambda x: np.asarray(x)) if black else identity
    return Case(Problem(network, lambda x, y: score(y), Gaussian(torch.zeros(d), 1.0)), truth, at_once)


# Tuned on -----------------------------------------------------------------------------------------------------------


@family("tuned")
def half_spaces() -> dict[str, Case]:
    found = {}
    for d, b, black in ((2, 4.5, False), (100, 5.0, False), (1024, 7.0, False), (5, 5.0, True), (60, 4.5, True)):
        found[f"d={d} b={b}{' black' * black}"] = normal(
            d, lambda x, d=d, b=b: x.sum(1) / math.sqrt(d) - b, tail(b), black
        )
    return found


@family("tuned")
def rare_components() -> dict[str, Case]:
    """A mixture whose rare component fails."""
    found = {}
    for d, weight, scale, threshold in ((20, 1e-6, 5.0, 12.0), (5, 1e-4, 4.0, 9.0), (50, 1e-3, 3.0, 10.0)):
        mix = Mixture([Gaussian(torch.zeros(d), 1.0), Gaussian(torch.zeros(d), scale)], [1 - weight, weight])
        truth = np.logaddexp(math.log1p(-weight) + tail(threshold), math.log(weight) + tail(threshold / scale))
        problem = Problem(identity, lambda x, y, t=threshold: y[:, 0] - t, mix)
        found[f"d={d} weight={weight:g}"] = Case(problem, float(truth))
    return found


@family("tuned")
def many_ways() -> dict[str, Case]:
    """Classes with unequal slopes: class i wins where slope_i (z_i - b_i) > 0."""
    found = {}
    for d, ways, low, high in ((100, 30, 4.0, 5.5), (300, 99, 4.3, 5.5), (40, 16, 4.5, 5.0)):
        g = torch.Generator().manual_seed(ways)
        thresholds = torch.linspace(low, high, ways)[torch.randperm(ways, generator=g)]
        slopes = 10 ** (2 * torch.rand(ways, generator=g) - 1)
        network = nn.Linear(d, ways + 1).eval().requires_grad_(False)
        network.weight.zero_()
        network.bias.zero_()
        for i in range(ways):
            network.weight[i + 1, i], network.bias[i + 1] = slopes[i], -slopes[i] * thresholds[i]
        truth = union(*(tail(float(t)) for t in thresholds))
        found[f"d={d} ways={ways}"] = Case(
            Problem(network, Misclassification(0), Gaussian(torch.zeros(d), 1.0)), truth, 10
        )
    return found


@family("tuned")
def steeper_second_mode() -> dict[str, Case]:
    found = {}
    for d, black in ((2, False), (10, False), (50, False), (500, False), (2, True), (6, True)):
        truth = union(tail(6.0), tail(5.0))
        found[f"d={d}{' black' * black}"] = normal(
            d, lambda x: torch.maximum(x[:, 0] - 6, 4 * (x[:, 1] - 5)), truth, black
        )
    found["d=20 steep 10"] = normal(
        20, lambda x: torch.maximum(x[:, 0] - 5, 10 * (x[:, 1] - 4.5)), union(tail(5), tail(4.5))
    )
    return found


class Pyramids(nn.Module):
    """max_i (radius_i - |x - c_i|_1): its violations are small cross-polytopes, the score far away a constant."""

    def __init__(self, centres: Tensor, radii: Tensor, slope: float) -> None:
        super().__init__()
        count, d = centres.shape
        self.first, self.second, self.last = (
            nn.Linear(d, 2 * count * d),
            nn.Linear(2 * count * d, count),
            nn.Linear(count, 1),
        )
        eye = torch.eye(d)
        with torch.no_grad():
            self.first.weight.copy_(torch.cat([torch.cat([eye, -eye]) for _ in range(count)]))
            self.first.bias.copy_(torch.cat([torch.cat([-c, c]) for c in centres]))
            self.second.weight.zero_()
            for i in range(count):
                self.second.weight[i, 2 * d * i : 2 * d * (i + 1)] = -1.0
            self.second.bias.copy_(radii + slope)
            self.last.weight.fill_(1.0)
            self.last.bias.fill_(-slope)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))  # type: ignore[no-any-return]


def pyramids(d: int, count: int, low: float, high: float, seed: int, slope: float) -> Case:
    g = torch.Generator().manual_seed(seed)
    centres: list[Tensor] = []
    while len(centres) < count:
        c = 0.15 + 0.7 * torch.rand(d, generator=g)
        if all(float((c - other).abs().sum()) > 2 * (high + slope) for other in centres):
            centres.append(c)
    radii = low + (high - low) * torch.rand(count, generator=g)
    network = Pyramids(torch.stack(centres), radii, slope).eval().requires_grad_(False)
    logs = d * torch.log(2 * radii.double()) - math.lgamma(d + 1)
    problem = Problem(network, LinearConstraint([[-1.0]], [0.0]), Box(torch.zeros(d), torch.ones(d)))
    return Case(problem, float(torch.logsumexp(logs, 0)), 4)


@family("tuned")
def small_polytopes() -> dict[str, Case]:
    return {
        "d=2": pyramids(2, 6, 0.002, 0.01, 1, 0.1),
        "d=3": pyramids(3, 8, 0.01, 0.03, 2, 0.1),
        "d=5": pyramids(5, 10, 0.02, 0.04, 3, 0.15),
        "d=2 steep": pyramids(2, 10, 0.004, 0.02, 4, 0.02),
    }


@family("tuned")
def many_spheres() -> dict[str, Case]:
    """Violations inside balls around random points at some distance from the origin."""
    found = {}
    for d, count, black in ((5, 12, False), (5, 16, True), (8, 14, False)):
        rng = np.random.default_rng(count)
        directions = rng.standard_normal((count, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        radius, away = 0.9, 4.5 + 0.5 * rng.random(count)
        centres = torch.from_numpy((directions * away[:, None]).astype(np.float32))
        # |z - c|^2 is noncentral chi-squared; overlaps are a matter of other draws: measured below by chance.
        truth = _balls(centres.double().numpy(), radius, d)
        found[f"d={d} count={count}{' black' * black}"] = normal(
            d, lambda x, c=centres, r=radius: r - torch.cdist(x, c.to(x)).amin(1), truth, black
        )
    return found


def _balls(centres: np.ndarray, radius: float, d: int) -> float:
    """P(z in the union of balls): importance sampling uniform in the balls with exact overlaps, 4e6 draws."""
    rng = np.random.default_rng(0)
    n = 4_000_000 // len(centres)
    log_volume = d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1) + d * math.log(radius)
    total = 0.0
    for c in centres:
        v = rng.standard_normal((n, d))
        v *= (radius * rng.random(n) ** (1 / d) / np.linalg.norm(v, axis=1))[:, None]
        z = c + v
        inside = (np.linalg.norm(z[:, None] - centres[None], axis=2) <= radius).sum(1)
        density = np.exp(-0.5 * (z**2).sum(1) - d / 2 * math.log(2 * math.pi))
        total += float((density / np.maximum(inside, 1)).mean())
    return math.log(total) + log_volume


@family("tuned")
def heavy_tails() -> dict[str, Case]:
    found = {}
    for d, freedom, log_p in ((5, 3.0, math.log(1e-6)), (2, 2.0, math.log(1e-5)), (20, 4.0, math.log(1e-7))):
        law = torch.distributions.StudentT(torch.full((d,), freedom))
        threshold = float(stats.t.isf(math.exp(log_p), freedom))
        problem = Problem(identity, lambda x, y, t=threshold: y[:, 0] - t, law)
        found[f"d={d} t({freedom:g})"] = Case(problem, log_p)
    return found


@family("tuned")
def corners() -> dict[str, Case]:
    d, side = 8, 0.1
    two = Problem(
        identity,
        lambda x, y: torch.maximum((y - (1 - side)).amin(1), (side - y).amin(1)),
        Box(torch.zeros(d), torch.ones(d)),
    )
    # The l1 ball's vertex: x_0 > c in a ball of radius 1: a cone of height 1 - c, (1 - c)^d / 2 of the ball.
    k, c = 50, 0.25
    vertex = Problem(identity, lambda x, y: y[:, 0] - c, LpBall(torch.zeros(k), 1.0, norm=1))
    return {
        "two corners d=8": Case(two, math.log(2) + d * math.log(side)),
        "l1 vertex d=50": Case(vertex, k * math.log1p(-c) - math.log(2)),
    }


@family("tuned")
def shells() -> dict[str, Case]:
    found = {}
    for d, log_p in ((3, math.log(1e-6)), (20, math.log(1e-6)), (60, math.log(1e-8))):
        r = math.sqrt(float(stats.chi2.isf(math.exp(log_p), d)))
        found[f"d={d}"] = normal(d, lambda x, r=r: x.norm(dim=1) - r, log_p, at_once=5)
    return found


@family("tuned")
def bananas() -> dict[str, Case]:
    """z_0 > b + c |z_rest|^2: curves away from the origin or around it."""
    found = {}
    for d, b, c, k in ((30, 5.0, 0.05, 19), (30, 5.0, -0.05, 19), (2, 4.0, 0.5, 1), (2, 5.0, -0.4, 1)):
        law = stats.chi2(k)
        q = np.linspace(law.ppf(1e-13), law.isf(1e-13), 400_001)
        truth = float(np.log(np.trapezoid(stats.norm.sf(b + c * q) * law.pdf(q), q)))
        if k == 1:  # the density has a pole at 0
            v = np.linspace(-12, 12, 400_001)
            truth = float(np.log(np.trapezoid(stats.norm.sf(b + c * v * v) * stats.norm.pdf(v), v)))
        found[f"d={d} c={c}"] = normal(
            d, lambda x, b=b, c=c, k=k: x[:, 0] - b - c * x[:, 1 : k + 1].square().sum(1), truth
        )
    return found


@family("tuned")
def scores_without_slope() -> dict[str, Case]:
    """Plateaus, stairs and saturated scores."""
    return {
        "step d=3": normal(3, lambda x: torch.where(x[:, 0] > 3.7, 1.0, -1.0), tail(3.7)),
        "stairs d=5": normal(5, lambda x: torch.floor(2 * (x[:, 0] - 4)) / 2, tail(4.0)),
        "saturated d=10": normal(10, lambda x: torch.tanh(2 * (x[:, 0] - 4.5)), tail(4.5)),
        "eighth steps d=30": normal(
            30, lambda x: torch.round(8 * (x.sum(1) / math.sqrt(30) - 4.5)) / 8, tail(4.5 - 1 / 16)
        ),
    }


@family("tuned")
def deceptive() -> dict[str, Case]:
    """Gradients lead away from the violations."""

    def away(x: Tensor) -> Tensor:
        return torch.maximum((x[:, 0] - 4).clamp_max(-0.1), -3 * (x[:, 0] + 4))

    def cliff(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] < -3.8, torch.ones_like(x[:, 0]), (x[:, 0] - 3).clamp_max(-0.2))

    def beside(x: Tensor) -> Tensor:
        return torch.where(x[:, 1] > 4, torch.ones_like(x[:, 0]), -0.1 - torch.exp(-x[:, 0]))

    return {
        "away d=5": normal(5, away, tail(4.0)),
        "cliff d=3": normal(3, cliff, tail(3.8)),
        "cliff beside a hill d=10": normal(10, beside, tail(4.0)),
        "37 sigma": normal(3, lambda x: torch.maximum(x[:, 0] - 37, 30 * (x[:, 1] - 6)), tail(6.0)),
    }


@family("tuned")
def collision_networks() -> dict[str, Case]:
    """CollisionDetection against 1.7e10 plain draws of the reference file."""
    with (DATA.parent / "reference" / "collision_detection_log_prob.csv").open() as lines:
        rows = {row["file"]: row for row in csv.DictReader(lines) if int(row["naive_hits"]) > 5000}
    problems = {p.name: p for p in collision_problems(DATA, verdict="SAT") if p.name in rows}
    found = {}
    for name in sorted(problems, key=lambda name: int(rows[name]["naive_hits"]))[:24:4]:
        hits, draws = int(rows[name]["naive_hits"]), int(rows[name]["naive_samples"])
        found[name.removeprefix("reluBenchmark")] = Case(problems[name], math.log(hits / draws), 10, hits**-0.5)
    return found


@family("tuned")
def mnist_256x2() -> dict[str, Case]:
    """Noise in 784 dimensions against the references of the other benchmarks, by large splitting runs."""
    with (DATA.parent / "reference" / "mnistfc_256x2_log_prob.csv").open() as lines:
        rows = [[float(r[k]) for k in ("test_index", "eps", "log_prob", "log_prob_sd")] for r in csv.DictReader(lines)]
    return {
        f"image {i:g} eps {eps}": Case(mnist_problem(DATA, int(i), eps), truth, 5, error)
        for i, eps, truth, error in rows
        if truth > -25
    }


# Kept back: written before the cures, not looked at until they were done ---------------------------------------------


@family("open")
def shells_and_planes() -> dict[str, Case]:
    """A region all around and a plane, or two shells, of one score: what is steep grows late and has to be met."""

    def radius(d: int, log_p: float) -> float:
        return math.sqrt(float(stats.chi2.isf(math.exp(log_p), d)))

    found = {}
    for k, l1, l2 in ((1.0, -16.0, -13.0), (1.0, -13.0, -15.0), (3.0, -14.0, -14.0), (10.0, -16.0, -13.0)):
        r, b = radius(50, l1), float(stats.norm.isf(math.exp(l2)))
        found[f"shell {l1:g}, plane {l2:g}, {k:g} times as steep"] = normal(
            100, lambda x, r=r, b=b, k=k: torch.maximum(x[:, :50].norm(dim=1) - r, k * (x[:, 60] - b)), union(l1, l2)
        )
    for k in (1.0, 4.0):
        r, r2 = radius(30, -14.0), radius(30, -14.5)
        found[f"two shells, {k:g} times as steep"] = normal(
            80,
            lambda x, r=r, r2=r2, k=k: torch.maximum(x[:, :30].norm(dim=1) - r, k * (x[:, 30:60].norm(dim=1) - r2)),
            union(-14.0, -14.5),
        )
    return found


@family("kept")
def curved_networks() -> dict[str, Case]:
    """Random networks in 30 to 200 dimensions whose slopes differ from place to place; truth by large splitting."""
    found = {}
    for seed, d, width, rare in ((1, 200, 64, 0.0), (2, 60, 128, 0.3), (3, 30, 256, 0.0), (4, 100, 32, 0.5)):
        g = torch.Generator().manual_seed(seed)
        first, second = torch.randn(width, d, generator=g) / math.sqrt(d), torch.randn(width, generator=g)
        bias = torch.randn(width, generator=g)
        network = _Rough(2.5 * first, bias, second / math.sqrt(width), rare)
        problem = Problem(network.eval(), lambda x, y: y[:, 0], Gaussian(torch.zeros(d), 1.0))
        plain = Problem(network, lambda x, y: y[:, 0], Gaussian(torch.zeros(d), 1.0))
        scores = network(torch.randn(200_000, d, generator=g))[:, 0]
        network.threshold.fill_(float((scores.mean() + 4.8 * scores.std()).detach()))
        large = estimate(plain, Splitting(20_000, 0.1, 4, islands=8, keep="all"), seed=77, device="cpu")
        found[f"seed {seed} d={d}"] = Case(problem, large.log_prob, 5, large.log_prob_std)
    return found


class _Rough(nn.Module):
    """Waves of random directions, and a share of their squares."""

    def __init__(self, first: Tensor, bias: Tensor, second: Tensor, square: float) -> None:
        super().__init__()
        self.first, self.bias, self.second, self.square = (
            nn.Parameter(first), nn.Parameter(bias), nn.Parameter(second), square,
        )  # fmt: skip
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.first.T + self.bias
        return ((torch.sin(h) + self.square * h.square() / 4) @ self.second - self.threshold).unsqueeze(1)


@family("kept")
def unequal_clusters() -> dict[str, Case]:
    """Five modes in orthogonal or opposite directions, other slopes each."""
    found = {}
    for d, b, k in (
        (3, (4.2, 4.6, 5.1), (1.0, 6.0, 0.2)),
        (30, (4.5, 4.4, 4.9, 5.2, 4.7), (0.3, 5.0, 1.0, 20.0, 2.0)),
        (200, (5.5, 5.2, 5.8), (1.0, 8.0, 3.0)),
    ):
        t, s = torch.tensor(b), torch.tensor(k)
        truth = union(*map(tail, b))
        for black in (False, True)[: 2 if d <= 8 else 1]:
            found[f"d={d}{' black' * black}"] = normal(
                d, lambda x, t=t, s=s: (s.to(x) * (x[:, : len(t)] - t.to(x))).amax(1), truth, black
            )
    found["opposite d=40"] = normal(
        40, lambda x: torch.maximum(x[:, 0] - 5.5, 6 * (-x[:, 0] - 5.0)), float(np.logaddexp(tail(5.5), tail(5.0)))
    )
    return found


@family("kept")
def weighted_boxes() -> dict[str, Case]:
    """Mixtures of boxes and of laws of other kinds; three components, the failing one rarest."""
    boxes = [Box([0.0] * 4, [1.0] * 4), Box([2.0] * 4, [3.0] * 4), Box([5.0] * 4, [5.5] * 4)]
    mix = Mixture(boxes, [0.9, 0.0999, 1e-4])
    one = Problem(identity, lambda x, y: y.sum(1) - 21.6, mix)  # a corner of the last box: 22 - 21.6 = 0.4
    corner = 4 * math.log(0.4 / 0.5) - math.log(24)
    wide = Mixture([Gaussian(torch.zeros(12), 1.0), Gaussian(torch.full((12,), 2.0), 2.5)], [1 - 1e-5, 1e-5])
    s = math.sqrt(12)
    near, far = tail(25 / s), tail((25 - 24) / (2.5 * s))
    two = Problem(identity, lambda x, y: y.sum(1) - 25, wide)
    return {
        "three boxes d=4": Case(one, math.log(1e-4) + corner),
        "shifted and wide d=12": Case(two, float(np.logaddexp(math.log1p(-1e-5) + near, math.log(1e-5) + far))),
    }


@family("kept")
def skewed_laws() -> dict[str, Case]:
    """Laws from torch: exponential, log-normal, Laplace, gamma, Cauchy."""
    exponential = Problem(identity, lambda x, y: y.sum(1) - 40, torch.distributions.Exponential(torch.ones(10)))
    laplace = Problem(identity, lambda x, y: y[:, 0] - 16, torch.distributions.Laplace(torch.zeros(4), torch.ones(4)))
    cauchy = Problem(identity, lambda x, y: y[:, 1] - 1e5, torch.distributions.Cauchy(torch.zeros(3), torch.ones(3)))
    gamma = Problem(identity, lambda x, y: y.sum(1) - 45, torch.distributions.Gamma(torch.full((5,), 2.0), 1.0))
    log_normal = Problem(
        identity, lambda x, y: y[:, 0] - 150, torch.distributions.LogNormal(torch.zeros(6), torch.ones(6))
    )
    return {
        "exponentials d=10": Case(exponential, float(stats.gamma.logsf(40, 10))),
        "laplace d=4": Case(laplace, -16 - math.log(2)),
        "cauchy d=3": Case(cauchy, float(stats.cauchy.logsf(1e5))),
        "gamma d=5": Case(gamma, float(stats.gamma.logsf(45, 10))),
        "log-normal d=6": Case(log_normal, tail(math.log(150))),
    }


@family("kept")
def polygons() -> dict[str, Case]:
    """Relatives of the pyramids: other numbers, sizes, dimensions; and a hollow frame."""
    frame = Problem(
        identity,
        lambda x, y: 0.002 - ((y - 0.5).abs().amax(1) - 0.3).abs(),
        Box(torch.zeros(2), torch.ones(2)),
    )
    return {
        "d=4": pyramids(4, 7, 0.02, 0.05, 11, 0.1),
        "d=2 many": pyramids(2, 20, 0.003, 0.006, 12, 0.05),
        "d=6": pyramids(6, 5, 0.06, 0.1, 13, 0.2),
        "frame d=2": Case(frame, math.log(0.604**2 - 0.596**2)),
    }


@family("kept")
def wedges() -> dict[str, Case]:
    """min of two planes: P(z_0 > a, z_1 > b), also as an obtuse corner (a union)."""
    return {
        "corner d=2": normal(2, lambda x: torch.minimum(x[:, 0] - 2.5, x[:, 1] - 3), tail(2.5) + tail(3.0)),
        "corner d=40": normal(40, lambda x: torch.minimum(x[:, 0] - 3, 3 * (x[:, 1] - 3.5)), tail(3.0) + tail(3.5)),
        "channel d=5": normal(
            5, lambda x: torch.minimum(x[:, 0] - 4, (0.05 - x[:, 1].abs()) / 0.05),
            tail(4.0) + math.log(math.erf(0.05 / math.sqrt(2))),
        ),
        "four corners d=6": normal(
            6, lambda x: torch.minimum(x[:, 0].abs() - 2.8, x[:, 1].abs() - 3.2),
            math.log(4) + tail(2.8) + tail(3.2),
        ),
    }  # fmt: skip


@family("kept")
def waves() -> dict[str, Case]:
    """Lines cross the boundary many times: z_0 > 4 and sin(w z_1) > 0.9, and rings."""
    share = math.acos(0.9) / math.pi
    ring = math.log(stats.chi2.sf(25, 2) - stats.chi2.sf(26, 2))
    return {
        "stripes d=6": normal(
            6, lambda x: torch.minimum(x[:, 0] - 4, torch.sin(40 * x[:, 1]) - 0.9), tail(4.0) + math.log(share)
        ),
        "ring d=2": normal(2, lambda x: torch.minimum(x.norm(dim=1) - 5, math.sqrt(26) - x.norm(dim=1)), ring),
    }


@family("kept")
def random_networks() -> dict[str, Case]:
    """Small ReLU classifiers under noise, against proved brackets (within a few per cent)."""
    from rarely.bounds import probability_bounds

    found = {}
    for seed in range(8):
        d = 2 + seed % 4
        g = torch.Generator().manual_seed(100 + seed)
        last = nn.Linear(24, 5)
        network = nn.Sequential(nn.Linear(d, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), last).eval()
        for p in network.parameters():
            p.requires_grad_(False).copy_(torch.randn(p.shape, generator=g) * (0.6 if p.ndim > 1 else 0.3))
        y = network(torch.rand(200_000, d, generator=g))
        label = int(y.mean(0).argmax())
        margin = y.clone()
        margin[:, label] = -torch.inf
        gap = (margin.amax(1) - y[:, label]).sort().values
        last.bias[label] += float(gap[-1]) + 0.1 * float(gap[-1] - gap[-2000])
        problem = Problem(network, Misclassification(label), Box(torch.zeros(d), torch.ones(d)))
        *_, known = probability_bounds(problem, 30.0, 0.03)
        if known.log_lower > -30:
            found[f"seed {seed} d={d}"] = Case(
                problem, 0.5 * (known.log_lower + known.log_upper), error=0.25 * known.gap
            )
    return found


@family("kept")
def real_networks() -> dict[str, Case]:
    """ACAS Xu and deeper MNIST networks against a billion plain draws each (plain_draws.py on an H200)."""
    acas = {"1_3": (0.1899, 2813), "2_7": (0.063, 3255), "4_5": (0.0718, 3076), "5_9": (0.0522, 2049)}
    mnist = {(5, "256x4"): (0.1562, 2903), (7, "256x6"): (0.1266, 3965)}
    found = {}
    for name, (threshold, hits) in acas.items():
        problem = plain_draws.acas_outputs(DATA, name, threshold)
        found[problem.name] = Case(problem, math.log(hits / 1e9), 4, hits**-0.5)
    for (index, widths), (eps, hits) in mnist.items():
        problem = plain_draws.mnist_noise(DATA, index, widths, eps)
        found[problem.name] = Case(problem, math.log(hits / 1e9), 5, hits**-0.5)
    return found


@family("kept")
def black_boxes() -> dict[str, Case]:
    """No gradients, moderate dimension: planes, a curved region, two far modes."""
    law = stats.chi2(9)
    q = np.linspace(law.ppf(1e-13), law.isf(1e-13), 200_001)
    curved = float(np.log(np.trapezoid(stats.norm.sf(4 + 0.1 * q) * law.pdf(q), q)))
    return {
        "plane d=40": normal(40, lambda x: x[:, :4].sum(1) / 2 - 5, tail(5.0), True, 5),
        "curved d=10": normal(10, lambda x: x[:, 0] - 4 - 0.1 * x[:, 1:10].square().sum(1), curved, True, 5),
        "two modes d=4": normal(
            4, lambda x: torch.maximum(x[:, 0] - 5.5, 3 * (-x[:, 1] - 4.8)), union(tail(5.5), tail(4.8)), True
        ),
        "stairs d=3": normal(3, lambda x: torch.floor(x[:, 0] * 3) / 3 - 4, tail(4.0), True),
    }


# Open: found by somebody who tried to break it, and not cured -------------------------------------------------------


@family("open")
def hidden_corners() -> dict[str, Case]:
    """Beside a plane a steeper mode that few draws and no gradient point to: all of k coordinates must be large."""
    found = {}
    for d, k, b, slope, black in ((12, 8, 1.3, 5, False), (20, 4, 2.2, 4, False), (8, 7, 1.5, 5, True)):
        found[f"{k} coordinates d={d}{' black' * black}"] = normal(
            d,
            lambda x, k=k, b=b, s=slope: torch.maximum(x[:, 0] - 6, s * (x[:, -k:].amin(1) - b)),
            float(np.logaddexp(tail(6.0), k * tail(b))),
            black,
        )
    found["outside a ball d=20"] = normal(
        20,
        lambda x: torch.maximum(x[:, 0] - 6, 4 * (x[:, 1:6].norm(dim=1) - 6.8)),
        float(np.logaddexp(tail(6.0), stats.chi2.logsf(6.8**2, 5))),
    )
    return found


@family("open")
def steep_pyramid() -> dict[str, Case]:
    """A small steep pyramid in a box beside a shallow one, no module to bound."""
    found = {}
    for d in (6, 9):
        near, far = 0.02 * d, 0.03 * d
        first, second = (d * math.log(2 * r) - math.lgamma(d + 1) for r in (near, far))
        truth = np.logaddexp(first, second)

        def score(x: Tensor, y: Tensor, near: float = near, far: float = far) -> Tensor:
            shallow, steep = near - (y - 0.3).abs().sum(1), far - (y - 0.75).abs().sum(1)
            return torch.maximum(0.2 * shallow, 2 * steep)

        found[f"d={d}"] = Case(Problem(identity, score, Box(torch.zeros(d), torch.ones(d))), float(truth))
    return found


@family("open")
def random_walks() -> dict[str, Case]:
    """Laws that do not map from normals: the random walk is all there is."""
    rare = torch.distributions.Categorical(torch.tensor([1 - 1e-5, 1e-5]))
    spread = torch.tensor([[1.0] * 3, [5.0] * 3])
    parts = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2, 3), spread), 1)
    mixed = torch.distributions.MixtureSameFamily(rare, parts)
    truth = np.logaddexp(math.log1p(-1e-5) + tail(10.0), math.log(1e-5) + tail(2.0))
    return {
        "rare component of torch's d=3": Case(Problem(identity, lambda x, y: y[:, 0] - 10, mixed), float(truth)),
    }
