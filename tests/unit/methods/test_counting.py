"""Counting where bounds leave room: exact volumes, unbiased counts, and answers where populations get lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rarely
from rarely.bounds.measure import UniformMeasure
from rarely.bounds.probability import Cuts
from rarely.bounds.problems import probability_bounds
from rarely.bounds.trace import CHECKED
from rarely.core.evidence import Bracket, Evidence, Found, Number
from rarely.core.execution import Execution
from rarely.core.rng import Rng
from rarely.core.spend import Spend
from rarely.methods.counting import COUNTING, Counting, Parts
from rarely.questions.estimate import finish
from rarely.questions.result import Outcome


def count(
    problems: list[rarely.Problem], method: Counting, seed: int, calls: int | None = None
) -> list[list[Evidence]]:
    (batch,) = Execution(device="cpu").place(problems, Spend(len(problems), calls))
    return finish(method.run(batch, Rng(seed)))


def number(evidence: list[Evidence]) -> Number | None:
    return next((e for e in evidence if isinstance(e, Number)), None)


def _double(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("planes", [1, 3])
def test_parts_are_drawn_evenly(n: int, planes: int) -> None:
    """Every trial hits a given set with probability mass / total: here half-spaces, against draws from the boxes."""
    g, rng = torch.Generator().manual_seed(n), Rng(n)
    boxes, trials = 6, 40_000
    low = torch.arange(boxes, dtype=torch.float64).unsqueeze(1).expand(boxes, n) / boxes
    high = low + torch.rand(boxes, n, generator=g, dtype=torch.float64) / boxes
    A = _double((boxes, planes, n), g)
    middle = (A * (0.5 * (low + high)).unsqueeze(1)).sum(2)
    b = -middle - 0.3 * (A.abs() * (high - low).unsqueeze(1)).sum(2)  # above each plane less than half a box
    A[-1], b[-1] = 0.0, torch.tensor([0.0, -1.0, -1.0])[:planes]  # of which bounds have ruled out nothing
    law = UniformMeasure(torch.zeros(n).double(), torch.ones(n).double())
    other = Cuts(low[:1], high[:1], A[:1], b[:1] - 1e-3)  # another problem beside it must not be seen
    parts = Parts([law, law], [other, Cuts(low, high, A, b)])
    x, who = parts.draw(torch.tensor([50, trials]), rng)
    x, total = x[who == 1], float(parts.total[1])

    u = torch.rand(boxes, trials, n, generator=g, dtype=torch.float64)
    inside = low.unsqueeze(1) + u * (high - low).unsqueeze(1)
    may = ((torch.einsum("bpn,btn->bpt", A, inside) + b.unsqueeze(2)) >= 0).any(1)
    volume = (high - low).prod(1)
    for direction in (*_double((3, n), g), torch.zeros(n).double()):
        hits = int((x @ direction >= x.mean(0) @ direction).sum())
        share = (may & (inside @ direction >= x.mean(0) @ direction)).double().mean(1)
        truth = float((share * volume).sum())
        error = math.sqrt(float((share * (1 - share) * volume**2).sum()) / trials)
        rate = hits / trials
        error = math.hypot(error, total * math.sqrt(rate * (1 - rate) / trials))
        assert abs(rate * total - truth) < 4.5 * error


def test_parts_that_are_rounding_alone_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plane seems to leave of its box, by rounding, may hold no input at all: then a trial gives none."""
    monkeypatch.setattr("rarely.methods.counting._ROUNDS", 50)
    low, high = torch.zeros(2, 3).double(), torch.ones(2, 3).double()
    A = torch.tensor([0.1, 0.2, 0.3]).double().expand(2, 1, 3)
    b = -0.5 * A.sum(2)
    parts = Parts([UniformMeasure(low[0], high[0])], [Cuts(low, high, A, b)])
    parts.b = parts.b - torch.tensor([1.0, 0.0]).double()  # stands for rounding that makes the first plane miss
    x, _ = parts.draw(torch.tensor([1000]), Rng(0))
    assert 400 < len(x) < 600
    missed = Parts([UniformMeasure(low[0], high[0])], [Cuts(low, high, A, b - 1.0)])
    assert float(missed.total) == 0


def test_a_long_queue_costs_no_trial_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are for each piece of the trials: what is drawn for many problems at once is drawn as for one."""
    monkeypatch.setattr("rarely.methods.counting._ROUNDS", 50)
    monkeypatch.setattr("rarely.methods.counting._CHUNK", 10)
    low, high = torch.zeros(1, 3).double(), torch.ones(1, 3).double()
    A = torch.tensor([0.1, 0.2, 0.3]).double().expand(1, 1, 3)
    parts = Parts([UniformMeasure(low[0], high[0])] * 2, [Cuts(low, high, A, -0.5 * A.sum(2))] * 2)
    x, who = parts.draw(torch.tensor([1000, 700]), Rng(0))
    assert torch.bincount(who).tolist() == [1000, 700]
    assert bool(((x * A[0]).sum(1) >= 0.5 * A.sum()).all())


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("kind", ["alike", "worst"])
def test_few_candidates_miss_the_part_that_they_are_for(n: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may be 1 / n! of the smallest box around it; of what is drawn one in six lies in it, or more."""
    monkeypatch.setattr("rarely.methods.counting._ROUNDS", 15)
    low, high = torch.zeros(1, n).double(), torch.ones(1, n).double()
    A = (1.0 if kind == "alike" else 1 / torch.arange(1, n + 1)) * torch.ones(1, 1, n).double()
    parts = Parts([UniformMeasure(low[0], high[0])], [Cuts(low, high, A, 1.0 - A.sum(2))])
    x, _ = parts.draw(torch.tensor([2000]), Rng(n))
    assert len(x) == 2000  # after 15 rounds of 2 and more one of 300 would be missing
    monkeypatch.setattr("rarely.methods.counting._steep", lambda a: torch.zeros_like(a, dtype=torch.bool))
    assert (n, kind) != (8, "alike") or len(parts.draw(torch.tensor([2000]), Rng(n))[0]) < 100  # from the box alone


class Needle(nn.Module):
    """Scores that rise slowly to a corner where they end below 0, and a small diamond elsewhere where they are above.

    In the unit cube the diamond sum |x_i - c_i| <= w has the volume (2 w)^n / n!.
    """

    def __init__(self, n: int, width: float) -> None:
        super().__init__()
        self.parts, self.total, self.slope = nn.Linear(n, 2 * n), nn.Linear(2 * n, 1), nn.Linear(n, 1)
        centre, eye = torch.linspace(0.2, 0.45, n), torch.eye(n)
        with torch.no_grad():
            self.parts.weight.copy_(torch.cat([eye, -eye]))
            self.parts.bias.copy_(torch.cat([-centre, centre]))
            self.total.weight.fill_(-1 / width)
            self.total.bias.fill_(1)
            self.slope.weight.fill_(1 / n)
            self.slope.bias.fill_(-1.05)

    def forward(self, x: Tensor) -> Tensor:
        diamond, slope = self.total(torch.relu(self.parts(x))), self.slope(x)
        return slope + torch.relu(diamond - slope)


def _needle(n: int = 4, width: float = 0.03) -> tuple[rarely.Problem, float]:
    above = rarely.LinearConstraint([[-1.0]], [0.0])
    problem = rarely.Problem(Needle(n, width).eval(), above, rarely.Box(torch.zeros(n), torch.ones(n)))
    return problem, n * math.log(2 * width) - math.lgamma(n + 1)


def test_the_needle_is_as_large_as_the_formula_says() -> None:
    problem, exact = _needle(2, 0.1)
    found = rarely.estimate(problem, rarely.MonteCarlo(samples=400_000), seed=1)
    assert abs(found.log_prob - exact) < 4 * found.log_prob_std


@pytest.mark.parametrize("seed", range(3))
def test_auto_answers_where_populations_climb_the_wrong_hill(seed: int) -> None:
    problem, exact = _needle()
    found = rarely.estimate(problem, rarely.Auto(proof_boxes=4000), seed=seed)
    assert found.outcome is Outcome.VIOLATED
    counted = [record for record in found.evidence if record.method == COUNTING]
    assert isinstance(counted[0], Number)
    assert found.log_prob == counted[0].log_prob
    assert abs(found.log_prob - exact) < 4 * found.log_prob_std < 0.4
    assert found.interval.low <= found.log_prob <= min(found.interval.high, found.upper_bound)
    assert found.calls == sum(record.calls for record in found.evidence)
    again = rarely.estimate(problem, rarely.Auto(proof_boxes=4000), seed=seed)
    assert again.log_prob == found.log_prob


def test_counts_are_binomial() -> None:
    """A network with several ways to fail, 60 seeds: as many violations as p / U says, no more spread than binomial."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
    box = rarely.Box(torch.zeros(3), torch.ones(3))
    y = net(torch.rand(400_000, 3)).detach()
    label = int(y.mean(0).argmax())
    with torch.no_grad():  # about one input in 10,000 is misclassified
        rest = y.clone()
        rest[:, label] = -torch.inf
        net[2].bias[label] += float((rest.amax(1) - y[:, label]).kthvalue(399_960).values)
    problem = rarely.Problem(net, rarely.Misclassification(label), box)
    *_, proof = probability_bounds(problem, gap=0.01)
    exact = 0.5 * (proof.log_lower + proof.log_upper)
    all_counts = [number(evidence) for evidence in count([problem] * 60, Counting(boxes=1000, target_error=0.05), 0)]
    found = [each for each in all_counts if each is not None]
    assert len(found) == 60
    z = torch.tensor([(each.log_prob - exact) / each.std for each in found])
    assert abs(float(z.mean())) < 4 / math.sqrt(60) + proof.gap / 2 / min(each.std for each in found)
    # (n - 1) s^2 is chi-squared with 59 degrees of freedom: a chance of 1e-4 outside these ends.
    assert 24 < float(z.var()) * 59 < 110


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": rarely.Gaussian(torch.full((4,), 0.5), torch.full((4,), 0.1))},
        {"network": lambda x: x[:, :1] - 0.99},
        {"boxes": 1},
        {"calls": CHECKED},
    ],
    ids=["not uniform", "black box", "nothing ruled out", "no calls left"],
)
def test_without_bounds_there_is_no_number(change: dict[str, Any]) -> None:
    problem, _ = _needle()
    problem = rarely.Problem(
        change.get("network", problem.network), problem.property, change.get("inputs", problem.inputs)
    )
    (found,) = count([problem], Counting(boxes=change.get("boxes", 4000)), 0, change.get("calls"))
    assert number(found) is None
    assert all(record.sentence for record in found)


def test_many_dimensions_are_left_alone() -> None:
    net = nn.Sequential(nn.Linear(20, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    problem = rarely.Problem(net, rarely.Misclassification(), rarely.LpBall(torch.zeros(20), 0.01))
    (found,) = count([problem], Counting(seconds=1.0), 0)
    assert number(found) is None


def test_problems_that_are_counted_together_are_bounded_as_alone() -> None:
    """Needles of other sizes and boxes in one search: the same proofs as each on its own, and counts that fit."""
    network = Needle(3, 0.03).eval()
    above = rarely.LinearConstraint([[-1.0]], [0.0])
    boxes = [
        rarely.Box(torch.full((3,), low), torch.full((3,), high)) for low, high in ((0.0, 1.0), (0.1, 0.9), (0.15, 0.6))
    ]
    problems = [rarely.Problem(network, above, box) for box in boxes]
    together = count(problems, Counting(boxes=2000), 1)
    for problem, own, box in zip(problems, together, boxes, strict=True):
        (alone,) = count([problem], Counting(boxes=2000), 2)
        exact = 3 * math.log(0.06) - math.lgamma(4) - float((box.high - box.low).log().sum())
        for proof in (own[0], alone[0]):
            assert isinstance(proof, Bracket)
            assert proof.log_lower <= exact <= proof.log_upper
        counted = number(own)
        assert counted is not None
        assert abs(counted.log_prob - exact) < 5 * counted.std
        assert isinstance(own[-1], Found)


class Pyramids(nn.Module):
    """The first output is 0, and each other one rises from an l1 distance of its radius to a centre."""

    def __init__(self, centres: Tensor, radii: Tensor) -> None:
        super().__init__()
        count, n = centres.shape
        self.sides, self.heights = nn.Linear(n, 2 * n * count), nn.Linear(2 * n * count, count + 1)
        with torch.no_grad():
            self.sides.weight.copy_(torch.cat([torch.eye(n), -torch.eye(n)]).repeat(count, 1))
            self.sides.bias.copy_(torch.cat([-centres, centres], 1).flatten())
            self.heights.weight.zero_()
            self.heights.bias.copy_(torch.cat([torch.zeros(1), radii]))
            for k in range(count):
                self.heights.weight[k + 1, 2 * n * k : 2 * n * (k + 1)] = -1.0

    def forward(self, x: Tensor) -> Tensor:
        heights: Tensor = self.heights(torch.relu(self.sides(x)))
        return heights


def _pyramids(n: int, count: int, seed: int) -> tuple[rarely.Problem, float]:
    """Apart from each other and from the sides of the unit cube: (2 r)^n / n! each."""
    g = torch.Generator().manual_seed(seed)
    slots = torch.cartesian_prod(*[torch.tensor([0.15, 0.5, 0.85])] * n)
    centres = slots[torch.randperm(len(slots), generator=g)[:count]] + 0.06 * (torch.rand(count, n, generator=g) - 0.5)
    largest = 0.04 if n > 2 else 0.01  # in the plane larger ones are common
    radii = 0.002 * (largest / 0.002) ** torch.rand(count, generator=g)
    box = rarely.Box(torch.zeros(n), torch.ones(n))
    exact = math.log(float((2 * radii.double()).pow(n).sum())) - math.lgamma(n + 1)
    return rarely.Problem(Pyramids(centres, radii).eval(), rarely.Misclassification(0), box), exact


@pytest.mark.parametrize(("n", "many"), [(2, 6), (2, 9), (3, 8)])
def test_small_polytopes_are_counted_before_anything_climbs(n: int, many: int) -> None:
    """Importance sampling passed the veto beside half of them; bounds leave few boxes, and no region is lost there."""
    for seed in range(4):
        problem, exact = _pyramids(n, many, seed)
        found = rarely.estimate(problem, rarely.Auto(proof_boxes=4000), seed=seed)
        assert found.outcome is Outcome.VIOLATED
        assert exact in found.interval or abs(found.log_prob - exact) < 4 * found.log_prob_std
        proofs = [record for record in found.evidence if isinstance(record, Bracket)]
        assert all(proof.log_lower <= exact <= proof.log_upper for proof in proofs)
        methods = [record.method for record in found.evidence]
        assert COUNTING in methods
        assert not any("splitting" in method for method in methods), "counting sufficed"


@pytest.mark.parametrize(("n", "many"), [(2, 9), (3, 10), (4, 6)])
def test_counts_of_small_polytopes_are_unbiased(n: int, many: int) -> None:
    found = []
    for seed in range(6):
        problem, exact = _pyramids(n, many, seed)
        (evidence,) = count([problem], Counting(boxes=4000), seed)
        counted = number(evidence)
        if counted is not None:
            found.append((counted.log_prob - exact) / counted.std)
    assert len(found) >= 4
    assert abs(sum(found)) / math.sqrt(len(found)) < 4
    assert max(map(abs, found)) < 5


class Steep(nn.Module):
    """max(0.2 (r - |x - 0.3|_1), 2 (r' - |x - 0.75|_1)): a small steep pyramid that climbs lead away from."""

    def __init__(self, n: int, shallow: float, steep: float) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(n, 4 * n), nn.Linear(4 * n, 3), nn.Linear(3, 1)
        eye, one = torch.eye(n), torch.ones(n)
        near = torch.cat([-0.2 * torch.ones(2 * n), torch.zeros(2 * n)])
        far = torch.cat([torch.zeros(2 * n), -2 * torch.ones(2 * n)])
        with torch.no_grad():
            self.first.weight.copy_(torch.cat([eye, -eye, eye, -eye]))
            self.first.bias.copy_(torch.cat([-0.3 * one, 0.3 * one, -0.75 * one, 0.75 * one]))
            self.second.weight.copy_(torch.stack([near - far, far, -far]))
            self.second.bias.copy_(torch.tensor([0.2 * shallow - 2 * steep, 2 * steep, -2 * steep]))
            self.last.weight.copy_(torch.tensor([[1.0, 1.0, -1.0]]))
            self.last.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.second(self.first(x).relu()).relu())
        return y


def test_bounds_find_what_climbs_lead_away_from() -> None:
    """Populations and proposals agreed on the shallow one alone, a tenth of p, in five runs of six."""
    n, shallow, steep = 6, 0.12, 0.18
    problem = rarely.Problem(
        Steep(n, shallow, steep).eval(), rarely.LinearConstraint([[-1.0]], [0.0]), rarely.Box([0.0] * n, [1.0] * n)
    )
    exact = math.log(((2 * shallow) ** n + (2 * steep) ** n) / math.factorial(n))
    found = rarely.estimate(problem, rarely.Auto(proof_seconds=60.0), device="cpu")
    assert found.outcome is Outcome.VIOLATED
    assert abs(found.log_prob - exact) < 4 * found.log_prob_std
