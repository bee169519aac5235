"""Failures of closed loops at the budgets of a public course: Stanford AA228V, project 2.

    python benchmarks/systems.py --data $RARELY_DATA

Its three problems, from their text (github.com/sisl/AA228VProjects): a normal number, an inverted pendulum under a
noisy sensor, and a collision avoidance system whose policy is a table. The course gives 200, 10,000 and 200,000 calls
of `step`, that is 200, 243 and 4,878 rollouts of 41 moments, and compares the mean error of an estimate with that of
plain draws, its baseline, at the same budget. A gradient counts as three rollouts here.

The truth is exact for the first and from `--rollouts` plain draws for the others (the course drew 25 and 75 million).
The table of the third, `cas_policy.bson` of project 2, is looked for in the folder `aa228v` of the data; without it the
problem is left out.
"""

from __future__ import annotations

import argparse
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rarely
from common import options, parser, table, write_json
from rarely import Gaussian, Problem
from rarely.core.rng import Rng
from rarely.inputs import Fixed, Uniform
from rarely.methods import Estimator
from rarely.systems import always, closed_loop, signal

ROLLOUTS_AT_ONCE = 100_000
SEEDS = 20
BUDGETS = {"gaussian": 200, "pendulum": 10_000 // 41, "collision avoidance": 200_000 // 41}


# The problems ---------------------------------------------------------------------------------------------------------


def gaussian(threshold: float) -> tuple[Problem, float]:
    """A state, drawn once, that should always be above a threshold."""
    system = closed_loop(lambda state: state, initial=Gaussian([0.0], 1.0), steps=1, states=["s"])
    return system.problem(always(signal("s") > threshold)), float(torch.special.log_ndtr(torch.tensor(threshold)))


def swing(state: Tensor, torque: Tensor, _: Tensor) -> Tensor:
    """The project's pendulum: m = l = 1, g = 10, steps of 0.05 s, at most 2 of torque and 8 of speed."""
    angle, speed = state.unbind(1)
    speed = speed + 0.05 * (15.0 * torch.sin(angle) + 3.0 * torque[:, 0].clamp(-2.0, 2.0))
    angle = angle + 0.05 * speed
    return torch.stack((angle, speed.clamp(-8.0, 8.0)), 1)


def proportional(seen: Tensor) -> Tensor:
    return -15.0 * seen[:, :1] - 8.0 * seen[:, 1:]


def pendulum() -> Problem:
    system = closed_loop(
        swing, proportional, observe=lambda state, error: state + error, steps=40, step=0.05,
        initial=Gaussian([0.0, 0.0], [math.pi / 32, 0.5]), disturbance=Gaussian([0.0, 0.0], 0.1),
        states=["angle", "speed"], actions=["torque"], disturbances=["angle error", "speed error"],
    )  # fmt: skip
    return system.problem(always(abs(signal("angle")) < math.pi / 4))


@dataclass(frozen=True)
class Table:
    """A policy that is looked up: the best of three climb rates, by the values between which a state lies.

    The time to closest approach is a whole number of seconds and the previous advisory is one of three, so that only
    height and climb rate lie between values.
    """

    heights: Tensor
    rates: Tensor
    values: Tensor  # (times * 3 * rates * heights, 3): the value of each advisory

    def __call__(self, state: Tensor) -> Tensor:
        height, rate, before, left = state.detach().unbind(1)
        i, u = _between(self.heights, height)
        j, v = _between(self.rates, rate)
        n, m = len(self.heights), len(self.rates)
        flat = ((left.round().long().clamp(0, 40) * 3 + (before / 5).round().long() + 1) * m + j) * n + i
        u, v = u.unsqueeze(1), v.unsqueeze(1)
        low = torch.lerp(self.values[flat], self.values[flat + 1], u)
        high = torch.lerp(self.values[flat + n], self.values[flat + n + 1], u)
        return 5.0 * (torch.lerp(low, high, v).argmax(1, keepdim=True) - 1)


def _between(grid: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of a value, and where in it; values beyond the grid count as its ends."""
    inside = value.clamp(float(grid[0]), float(grid[-1]))
    cell = (torch.searchsorted(grid, inside.contiguous(), right=True) - 1).clamp(0, len(grid) - 2)
    return cell, (inside - grid[cell]) / (grid[cell + 1] - grid[cell])


def fly(state: Tensor, advisory: Tensor, gust: Tensor) -> Tensor:
    """The project's encounter, a second on: relative height and its rate, the last advisory, the time that is left."""
    height, rate, _, left = state.unbind(1)
    wanted = advisory[:, 0]
    change = torch.where((wanted - rate).abs() < 1.0, wanted, torch.sign(wanted - rate))
    height, rate = height + rate, rate + torch.where(wanted != 0, change, 0.0) + gust[:, 0]
    return torch.stack((height, rate, wanted, (left - 1.0).clamp(min=-1.0)), 1)


def collision_avoidance(policy: Table) -> Problem:
    system = closed_loop(
        fly, policy, steps=40, disturbance=Gaussian([0.0], 1.5), disturbances=["gust"], actions=["advised"],
        initial={"height": Uniform(-100, 100), "rate": Uniform(-10, 10), "advisory": Fixed(0.0), "left": Fixed(40.0)},
    )  # fmt: skip
    # Of the 41st moment alone: two aircraft at one place within 50 m of height have met.
    return system.problem(always(abs(signal("height")) > 50, 40, 40))


def read_table(path: Path) -> Table:
    """The table of the course, from Julia's BSON: a grid of four axes, and a list of values for each action."""
    whole, _ = _document(path.read_bytes(), 0)
    heights, rates, advisories, times = (_numbers(axis) for axis in whole["grid"]["data"][0])
    assert advisories.tolist() == [-5, 0, 5]
    assert times.tolist() == list(range(41))
    values = np.stack([_numbers(column) for column in whole["Q"]], 1)
    as_tensors = (torch.from_numpy(part.copy()).float() for part in (heights, rates, values))
    return Table(*as_tensors)


def _numbers(array: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(array["data"], "<f8")


def _document(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A document of BSON that begins at a byte, and where it ends."""
    end, at = at + struct.unpack_from("<i", data, at)[0] - 1, at + 4
    found: dict[str, Any] = {}
    while at < end:
        kind, zero = data[at], data.index(0, at + 1)
        name, at = data[at + 1 : zero].decode(), zero + 1
        if kind in (3, 4):
            inner, at = _document(data, at)
            found[name] = list(inner.values()) if kind == 4 else inner
        elif kind in (2, 5):  # text ends with a zero, which its length counts; bytes begin with their kind
            length = struct.unpack_from("<i", data, at)[0]
            skip = 4 if kind == 2 else 5
            found[name], at = data[at + skip : at + skip + length], at + skip + length
        else:
            form, size = {1: ("<d", 8), 8: ("<b", 1), 10: ("", 0), 16: ("<i", 4), 18: ("<q", 8)}[kind]
            found[name], at = struct.unpack_from(form, data, at)[0] if form else None, at + size
    return found, end + 1


# The measurement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    problem: str
    truth: float
    method: str
    calls: float
    error: float  # mean of |estimate - p|, in units of p
    baseline: float  # the same of plain draws at the budget, from their binomial law
    bias: float  # of the mean estimate, in units of p
    covered: str
    seconds: float


def drawn(problem: Problem, rollouts: int, limit: float) -> tuple[float, int, float]:
    """p by plain draws: the share, of how many, and the seconds; it stops at a time limit."""
    rng, failed, done, started = Rng(2026), 0, 0, time.monotonic()
    while done < rollouts and time.monotonic() - started < limit:
        with torch.no_grad():
            x = problem.inputs.sample(ROLLOUTS_AT_ONCE, rng)
            failed += int((problem.score(x) >= 0).sum())
        done += ROLLOUTS_AT_ONCE
    return failed / done, done, time.monotonic() - started


def plain_error(p: float, draws: int) -> float:
    """Mean of |k / n - p| / p for binomial k (de Moivre)."""
    k = math.floor(draws * p) + 1
    choices = math.lgamma(draws + 1) - math.lgamma(k + 1) - math.lgamma(draws - k + 1)
    share = math.exp(choices + k * math.log(p) + (draws - k) * math.log1p(-p))
    return 2 * k * share * (1 - p) / (draws * p)


def measure(name: str, problem: Problem, log_p: float, method: str, estimator: Estimator, budget: int) -> Row:
    started = time.monotonic()  # seeds share one batch, each with random numbers and a budget of its own
    found = rarely.estimate([problem] * SEEDS, estimator, seed=0, max_evaluations=budget)
    p = math.exp(log_p)
    estimates = [math.exp(one.log_prob) for one in found]
    inside = sum(
        math.log(p) <= one.upper_bound if one.log_prob == -math.inf else log_p in one.interval for one in found
    )
    return Row(
        name, p, method, float(np.mean([one.calls for one in found])),
        float(np.mean([abs(one - p) / p for one in estimates])), plain_error(p, budget),
        float(np.mean(estimates)) / p - 1, f"{inside} of {len(found)}", (time.monotonic() - started) / len(found),
    )  # fmt: skip


def methods(budget: int) -> dict[str, Estimator]:
    """The default, and one population that keeps every state, which makes most of a budget this small."""
    subset = rarely.Splitting(particles=budget // 4, islands=1, steps=1, keep="all")
    return {"Auto": rarely.Auto(), "Splitting(keep='all')": subset}


def report(name: str, problem: Problem, log_p: float, budget: int) -> list[Row]:
    rows = []
    for method, estimator in methods(budget).items():
        rows.append(measure(name, problem, log_p, method, estimator, budget))
    # What a budget of the course is too small for.
    rows.append(measure(name, problem, log_p, "Auto, ten times the budget", rarely.Auto(), 10 * budget))
    return rows


def shown(rows: Sequence[Row]) -> str:
    head = ("problem", "p", "method", "rollouts", "mean error", "plain draws", "bias", "covered", "seconds")
    return table(
        head,
        [
            (r.problem, f"{r.truth:.3g}", r.method, round(r.calls), f"{r.error:.0%}", f"{r.baseline:.0%}",
             f"{r.bias:+.0%}", r.covered, f"{r.seconds:.1f}")
            for r in rows
        ],
    )  # fmt: skip


def main() -> None:
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument("--rollouts", type=int, default=25_000_000, help="plain draws behind each truth, at most")
    arguments.add_argument("--limit", type=float, default=280.0, help="seconds for the plain draws of one problem")
    args = options(arguments)
    rows: list[Row] = []
    for threshold in (-2.0, -3.0):
        problem, log_p = gaussian(threshold)
        rows += report(f"gaussian, s > {threshold:g}", problem, log_p, BUDGETS["gaussian"])
    timed: dict[str, Problem] = {"pendulum": pendulum()}
    file = args.data / "aa228v" / "cas_policy.bson"
    if file.exists():
        timed["collision avoidance"] = collision_avoidance(read_table(file))
    else:
        print(f"*{file} is not there: no collision avoidance*\n")
    for name, problem in timed.items():
        p, draws, seconds = drawn(problem, 200_000 if args.quick else args.rollouts, args.limit)
        print(
            f"{name}: p = {p:.4g}, {math.sqrt((1 - p) / (p * draws)):.2%} off, {draws:,} rollouts in {seconds:.0f} s\n"
        )
        rows += report(name, problem, math.log(p), BUDGETS[name])
    print(shown(rows))
    write_json(args.json, args.device, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
