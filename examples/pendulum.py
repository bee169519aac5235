"""For control engineers: how rarely does a learnt policy drop a pendulum that a noisy sensor shows it?

Run it with `python examples/pendulum.py`. The shipped policy holds an inverted pendulum upright for two seconds. First
state and sensor are random, 82 numbers in all. `--figure FILE` draws a trajectory that fails.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import rarely
from rarely import Gaussian
from rarely.demo import assets
from rarely.demo.mechanics import PENDULUM_STEP, pendulum
from rarely.systems import System, always, closed_loop, eventually, signal

SECONDS = 2.0


def upright(noise: float) -> System:
    return closed_loop(
        lambda state, torque, error: pendulum(state, torque),
        assets() / "pendulum.onnx",  # put your own policy here: a module, a function or a file
        observe=lambda state, error: state + error,
        initial=Gaussian([0.0, 0.0], [math.radians(2), 0.1]),
        disturbance=Gaussian([0.0, 0.0], noise),  # of every step, independently
        steps=round(SECONDS / PENDULUM_STEP),
        step=PENDULUM_STEP,
        states=["angle", "speed"],
        actions=["torque"],
        disturbances=["angle error", "speed error"],
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--figure", type=Path, help="draw a trajectory that fails, as .svg, .png or .pdf")
    figure: Path | None = arguments.parse_args().figure
    angle = signal("angle")
    fallen = always(abs(angle) < math.pi / 4)
    # Wherever it swings in the first second, it comes back within the next half and stays for half a second.
    settled = always((abs(angle) > 0.3).implies(eventually(always(abs(angle) < 0.3, 0, 0.5), 0, 0.5)), 0, 1)
    for noise in (0.3, 0.2):
        system = upright(noise)
        for formula, name in ((fallen, "falls"), (settled, "does not settle")):
            problem = system.problem(formula, f"{name}, noise {noise:g}")
            found = rarely.estimate(problem, max_evaluations=10_000)
            print(found)
            if formula is fallen and len(found.witnesses):
                worst = system.replay(found.witnesses.inputs[0], formula)
                print(f"  for example from {worst['angle'][0]:+.3f} rad to {worst['angle'].abs().max():.2f} rad")
                if figure is not None:
                    worst.plot(figure)


if __name__ == "__main__":
    main()
