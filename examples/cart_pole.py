"""For reinforcement learners: how rarely does a policy lose the pole of Gymnasium's CartPole in gusts of wind?

Run it with `python examples/cart_pole.py`. The environment is Gymnasium's own and a black box; the policy is shipped. A
gust pushes the pole before every step. `--figure FILE` draws pictures of an episode that fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import rarely
from rarely import Box, Gaussian
from rarely.demo import assets
from rarely.systems import System, always, environment, signal

Array = np.ndarray[Any, Any]


def begin(env: Any, state: Array) -> Array:
    """Put the first state into an environment that has just been reset; return what it shows."""
    env.unwrapped.state = state.copy()
    return state


def push(env: Any, gust: Array) -> None:
    """What the wind does before a step: it turns the pole."""
    env.unwrapped.state = np.asarray(env.unwrapped.state) + np.array([0, 0, 0, gust[0]])


def carts(wind: float) -> System:
    return environment(
        "CartPole-v1",  # put your own environment here: an id, or a function that makes one
        assets() / "cart-pole.onnx",  # and your own policy: load_policy("ppo.zip", "PPO", trust_pickle=True)
        steps=50,
        step=0.02,
        initial=Box([-0.05] * 4, [0.05] * 4),
        start=begin,
        disturbance=Gaussian([0.0], wind),
        push=push,
        observations=["place", "speed", "angle", "spin"],
        disturbances=["gust"],
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--figure", type=Path, help="draw an episode that fails, as .svg, .png or .pdf")
    figure: Path | None = arguments.parse_args().figure
    kept = always(abs(signal("angle")) < 0.2095) & always(abs(signal("place")) < 2.4)
    for wind in (0.3, 0.2):
        system = carts(wind)
        found = rarely.estimate(system.problem(kept, f"gusts of {wind:g} rad/s"), max_evaluations=1500)
        print(found)
        if len(found.witnesses) and figure is not None:
            system.replay(found.witnesses.inputs[0], kept, pictures=True).film(figure)


if __name__ == "__main__":
    main()
