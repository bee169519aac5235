"""For control engineers: how rarely does a car with a learnt cruise controller hit the car ahead?

Run it with `python examples/closed_loop.py`. The shipped controller drives for ten seconds behind a car that brakes.
Gap, speed, braking, slope and the error of a sensor are random. One call of the "network" is one drive of 40 steps, and
gradients flow through all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import rarely
from rarely.demo import CONTROL_INPUTS, assets
from rarely.inputs import Normal, Tabular, Uniform

STEP, STEPS = 0.25, 40  # seconds, and how many
SET_SPEED = 30.0  # m/s
LAWS: dict[str, Normal | Uniform] = {
    "gap": Normal(45, 4),  # m
    "speed": Normal(25, 1.0),  # m/s, of both cars
    "braking of the car ahead": Normal(3.0, 0.7),  # m/s²
    "duration of the braking": Uniform(1.0, 4.0),  # s
    "slope": Normal(0, 1.5),  # %
    "error of the gap sensor": Normal(0, 1.5),  # m
}


class ClosedLoop(nn.Module):
    """Drives (n, 6) -> the smallest gap (n, 1) of each, in metres."""

    low: Tensor
    high: Tensor

    def __init__(self, controller: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.controller = controller
        self.register_buffer("low", torch.tensor([quantity.low for quantity in CONTROL_INPUTS]))
        self.register_buffer("high", torch.tensor([quantity.high for quantity in CONTROL_INPUTS]))

    def forward(self, drives: Tensor) -> Tensor:
        gap, speed, braking, duration, slope, error = drives.unbind(1)
        ahead, smallest = speed, gap
        for step in range(STEPS):
            # The brakes of the car ahead come on and off within half a second.
            pressed = torch.sigmoid((duration - step * STEP) / 0.15) * (ahead > 0)
            seen = [gap + error, speed, speed - ahead, -braking * pressed, torch.full_like(gap, SET_SPEED), slope]
            state = ((torch.stack(seen, 1) - self.low) / (self.high - self.low)).clamp(0, 1)
            command = self.controller(state).squeeze(1) - 0.0981 * slope  # m/s²; the slope pulls
            speed = (speed + STEP * command).clamp(min=0)
            ahead = (ahead - STEP * braking * pressed).clamp(min=0)
            gap = gap + STEP * (ahead - speed)
            smallest = torch.minimum(smallest, gap)
        return smallest.unsqueeze(1)


def main() -> None:
    controller = rarely.load_network(assets() / "cruise.onnx")  # put your own controller here
    loop = ClosedLoop(controller).eval()
    inputs = Tabular(LAWS)
    for metres in (5.0, 2.0, 0.0):
        closer = rarely.LinearConstraint([[1.0]], [metres])  # the smallest gap is at most that
        found = rarely.estimate(rarely.Problem(loop, closer, inputs, f"gap below {metres:g} m"), max_evaluations=50_000)
        print(found)
    drive = found.witnesses.inputs
    if len(drive):
        print("a drive that ends in a collision:")
        for name, value in zip(LAWS, drive[0].tolist(), strict=True):
            print(f"  {name}: {value:.1f}")


if __name__ == "__main__":
    main()
