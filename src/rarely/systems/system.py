"""Something that acts over time: what it draws, how it rolls out, and the questions that are asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rarely.core.errors import InputError, NetworkError
from rarely.core.input_model import ArrayLike, InputModel, adapt_inputs, tensor
from rarely.core.network import adapt_network
from rarely.core.problem import Problem
from rarely.core.rng import Rng
from rarely.inputs.laws import OneHot
from rarely.inputs.product import Product
from rarely.inputs.tabular import Tabular
from rarely.systems.logic import Formula
from rarely.systems.property import Breaks
from rarely.systems.trajectory import Names, Picture, Trajectory

_PROBE = 2  # inputs that show whether a rollout repeats itself


@dataclass(frozen=True)
class System:
    """A closed loop of `steps` steps, as one network: its inputs are the first state and every disturbance.

    Made by `closed_loop` or `environment`.
    """

    rollout: Any  # inputs (n, d) -> signals (n, K, steps + 1)
    inputs: InputModel
    names: Names
    start: int  # numbers of an input that are the first state; the rest are disturbances, step by step
    step: float = 1.0  # time between moments
    render: Callable[[Tensor], Sequence[Picture]] | None = None  # one input (d,) -> pictures

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise InputError(f"step must be a positive time, got {self.step}")
        probe = self.inputs.sample(_PROBE, Rng(0)).float()
        once, again = self.signals(probe), self.signals(probe)
        if not bool(torch.isfinite(once).all()):
            row, moment = (~torch.isfinite(once)).any(0).nonzero()[0].tolist()
            raise NetworkError(
                f"a rollout makes the signal {self.names.all[row]!r} NaN or infinite after {moment} step(s); something "
                "in the loop overflows or divides by zero"
            )
        if not torch.allclose(once, again, rtol=1e-4, atol=1e-5):
            raise InputError(
                "the same first state and disturbances gave two different trajectories. Something in the loop draws "
                "random numbers of its own or remembers earlier rollouts: make it a disturbance, or seed and reset it "
                "at the start of every rollout"
            )

    def signals(self, inputs: ArrayLike) -> Tensor:
        """Signals (n, K, T) of inputs (n, d), a row for each of `names.all`. Actions hold at the last moment."""
        return adapt_network(self.rollout, tensor(inputs, "inputs"))[1]

    def problem(self, formula: Formula, name: str = "", temperature: float = 0.0) -> Problem:
        """How often does a rollout break the formula? Problems of one system share its rollouts."""
        return Problem(self.rollout, Breaks(formula, self.names.all, self.step, temperature), self.inputs, name)

    def replay(self, x: ArrayLike, formula: Formula | None = None, *, pictures: bool = False) -> Trajectory:
        """The trajectory of one input, such as a witness, and how it keeps a formula. `pictures`: have it rendered."""
        one = tensor(x, "input")
        if tuple(one.shape) != tuple(self.inputs.event_shape):
            raise InputError(f"one input has shape {tuple(self.inputs.event_shape)}, and this has {tuple(one.shape)}")
        if pictures and self.render is None:
            raise InputError("this system draws no pictures; only an environment with render_mode='rgb_array' does")
        frames = tuple(self.render(one)) if pictures and self.render is not None else ()
        return Trajectory(one, self.signals(one.unsqueeze(0))[0].cpu(), self.names, self.step, formula, frames)


@dataclass(frozen=True)
class Drawn:
    """The law of what a system draws: a first state, unless that is known, and a disturbance for every step."""

    initial: InputModel | None
    disturbances: tuple[InputModel, ...]  # one for each step, or none

    @property
    def inputs(self) -> Product:
        return Product([*([self.initial] if self.initial is not None else []), *self.disturbances])

    @property
    def start(self) -> int:
        return 0 if self.initial is None else math.prod(self.initial.event_shape)

    @property
    def width(self) -> int:
        """Numbers of the disturbance of one step."""
        return math.prod(self.disturbances[0].event_shape) if self.disturbances else 0

    def parts(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (n, d) as first states (n, start) and disturbances (n, steps, width)."""
        rest = inputs[:, self.start :]
        return inputs[:, : self.start], rest.reshape(len(rest), len(self.disturbances), self.width)


def drawn(initial: Any, disturbance: Any, steps: int) -> Drawn:
    """The laws as a user gives them, made one."""
    if not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, got {steps}")
    if isinstance(disturbance, list | tuple):
        if len(disturbance) != steps:
            raise InputError(f"there are {len(disturbance)} laws of disturbances for {steps} steps; give one for each")
        each = tuple(map(as_law, disturbance))
        sizes = {math.prod(law.event_shape) for law in each}
        if len(sizes) > 1:
            raise InputError(f"the disturbances of a step have {sorted(sizes)} numbers; they must share one size")
    else:
        each = () if disturbance is None else (as_law(disturbance),) * steps
    if initial is None and not each:
        raise InputError("nothing is random: give the first state a law, or each step a disturbance")
    return Drawn(None if initial is None else as_law(initial), each)


def as_law(value: Any) -> InputModel:
    """Any law of the project: an input model, a torch distribution, the law of one number, or such laws by name."""
    if isinstance(value, Mapping):
        return Tabular(value)
    if callable(getattr(value, "from_normal", None)) and hasattr(value, "width"):
        return Tabular([value])
    return adapt_inputs(value)


def named(given: Sequence[str], law: object, width: int, prefix: str) -> tuple[str, ...]:
    """The names that a user gives, else those of the columns of a table, else numbered ones."""
    if given:
        if len(given) != width:
            raise InputError(f"there are {len(given)} names for {width} {prefix}s: {', '.join(given)}")
        return tuple(given)
    if isinstance(law, Tabular) and law.names != tuple(map(str, range(len(law.names)))):
        columns = zip(law.names, law.laws, strict=True)
        return tuple(
            name for column, one in columns
            for name in ([f"{column} {kind}" for kind in one.names] if isinstance(one, OneHot) else [column])
        )  # fmt: skip
    return (prefix,) if width == 1 else tuple(f"{prefix} {i}" for i in range(width))
