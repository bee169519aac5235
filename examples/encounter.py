"""For aviation engineers: how rarely do the ACAS Xu networks let two aircraft meet?

Run it with `RARELY_DATA=FOLDER python examples/encounter.py`; the networks are those of VNN-COMP, in its `acasxu`.
The intruder flies on with a wandering course, the own aircraft turns as one of five networks advises it each second,
chosen by the last advice. Half a minute of both is one rollout. `--figure FILE` draws an encounter that fails.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import rarely
from rarely.inputs import Fixed, Normal, Uniform
from rarely.systems import System, always, closed_loop, derived

SECONDS = 30
NEAR = 500.0  # ft, a near collision
TURNS = (0.0, 1.5, -1.5, 3.0, -3.0)  # degrees a second: clear of conflict, weak left and right, strong left and right
MIDDLE = (19791.091, 0.0, 0.0, 650.0, 600.0)  # of the networks' inputs: distance, bearing, heading, two speeds
RANGE = (60261.0, 2 * math.pi, 2 * math.pi, 1100.0, 1200.0)


class Advice(nn.Module):
    """States (n, 7) -> advice (n, 1), 0 to 4: the lowest score of the network for the last advice."""

    middle: Tensor
    range: Tensor

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("middle", torch.tensor(MIDDLE))
        self.register_buffer("range", torch.tensor(RANGE))

    def forward(self, state: Tensor) -> Tensor:
        x, y, course, speed, other_course, other_speed, last = state.unbind(1)
        bearing = wrapped(torch.atan2(y, x) - course)
        seen = torch.stack((torch.hypot(x, y), bearing, wrapped(other_course - course), speed, other_speed), 1)
        scaled = ((seen - self.middle) / self.range).reshape(-1, 1, 1, 5)
        scores = torch.stack([network(scaled).flatten(1) for network in self.networks], 1)
        return scores[torch.arange(len(state)), last.round().long()].argmin(1, keepdim=True).to(state)


def wrapped(angle: Tensor) -> Tensor:
    return torch.atan2(torch.sin(angle), torch.cos(angle))


def fly(state: Tensor, advice: Tensor, wander: Tensor) -> Tensor:
    """A second on: where the intruder is relative to the own aircraft, and both courses."""
    x, y, course, speed, other_course, other_speed, _ = state.unbind(1)
    turn = torch.tensor(TURNS).to(state)[advice[:, 0].long()] + wander[:, 1]
    course = course + math.pi / 180 * turn
    other_course = other_course + math.pi / 180 * wander[:, 0]
    x = x + other_speed * torch.cos(other_course) - speed * torch.cos(course)
    y = y + other_speed * torch.sin(other_course) - speed * torch.sin(course)
    return torch.stack((x, y, course, speed, other_course, other_speed, advice[:, 0]), 1)


def encounters(folder: Path, wander: float) -> System:
    files = [folder / f"ACASXU_run2a_{last}_1_batch_2000.onnx" for last in range(1, 6)]
    networks = [rarely.load_network(file, check=False) for file in files]
    policy = Advice([network for network in networks if isinstance(network, nn.Module)]).eval()
    return closed_loop(
        fly, policy, steps=SECONDS, actions=["advice"],
        initial={
            "ahead": Uniform(8_000, 12_000), "aside": Uniform(-2_000, 2_000), "course": Fixed(0.0),
            "speed": Fixed(500.0), "course of the other": Normal(math.pi, 0.05), "speed of the other": Normal(500, 20),
            "last advice": Fixed(0.0),
        },
        disturbance={"turn of the other": Normal(0, wander), "error of the turn": Normal(0, 0.3)},
    )  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--figure", type=Path, help="draw an encounter that fails, as .svg, .png or .pdf")
    figure: Path | None = arguments.parse_args().figure
    folder = Path(os.environ.get("RARELY_DATA", "data")) / "acasxu" / "onnx"
    if not folder.is_dir():
        print(f"{folder} is not there: set RARELY_DATA to the folder of the data, whose acasxu/onnx has the networks")
        return
    apart = always(derived("distance", torch.hypot, "ahead", "aside") > NEAR)
    for wander in (6.0, 3.0):
        system = encounters(folder, wander)
        problem = system.problem(apart, f"an intruder that turns by {wander:g}°/s")
        found = rarely.estimate(problem, max_evaluations=3_000)
        print(found)
        if len(found.witnesses):
            worst = system.replay(found.witnesses.inputs[0], apart)
            print(f"  for example within {NEAR + worst.robustness:.0f} ft")
            if figure is not None:
                worst.plot(figure)


if __name__ == "__main__":
    main()
