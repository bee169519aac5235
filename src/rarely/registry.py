"""Names that command lines, plans and pages use, with the class behind each and the settings they take.

One line here makes a method, a kernel or an input model known everywhere; its file says the rest (fields, checks,
forecast). Nothing is imported before it is asked for, so that `rarely --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rarely.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from rarely.core.input_model import InputModel
    from rarely.methods.base import Estimator

ESTIMATORS = {
    "auto": "rarely.questions.strategy:Auto",
    "splitting": "rarely.methods.splitting:Splitting",
    "monte-carlo": "rarely.methods.monte_carlo:MonteCarlo",
    "line-sampling": "rarely.methods.line_sampling:LineSampling",
    "tilting": "rarely.methods.tilting:Tilting",
    "directed-splitting": "rarely.methods.directed:DirectedSplitting",
    "importance": "rarely.methods.importance:ImportanceSampling",
}
KERNELS = {
    "pcn": "rarely.kernels.pcn:PCN",
    "random-walk": "rarely.kernels.random_walk:RandomWalk",
    "redraw": "rarely.kernels.redraw:Redraw",
    "langevin": "rarely.kernels.langevin:Langevin",
    "hmc": "rarely.kernels.hamiltonian:HMC",
    "hit-and-run": "rarely.kernels.hit_and_run:HitAndRun",
}


@dataclass(frozen=True)
class BoxLaw:
    """How inputs may fall in the box of a property file, by name."""

    place: str  # makes it of low, high, and the number that stands behind the name where it has one
    number: str = ""  # what that is called
    help: str = ""


INPUT_MODELS = {
    "uniform": BoxLaw("rarely.inputs.box:Box"),
    "gaussian": BoxLaw(
        "rarely.inputs.gaussian:centred", "SIGMA",
        "standard deviation SIGMA in units of the network's inputs, centred in the box and truncated to it",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A field of estimators that can be set by name."""

    kind: type
    help: str
    short: str = ""  # of an option
    word: str = ""  # that may stand for a number
    hidden: bool = False  # from the command line's help, where another option says it


SETTINGS = {
    "particles": Setting(int, "Particles of each population (N in the paper).", "-n"),
    "quantile": Setting(float, "Share of particles that survive a level (rho in the paper)."),
    "steps": Setting(int, "Kernel steps at each level (M in the paper).", word="auto"),
    "islands": Setting(int, "Independent populations; their spread gives the interval."),
    "log_p_min": Setting(float, "Floor: give up below this natural log of p.", hidden=True),
    "samples": Setting(int, "Inputs drawn at most by each problem."),
    "target_error": Setting(float, "Stop at this relative standard error of p."),
    "proof_boxes": Setting(int, "Boxes that a proof may take, so that no clock has a say."),
}


def found(place: str) -> Any:
    """What stands at `module:name`."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def input_model_names() -> list[str]:
    """As a user writes them."""
    return [f"{name}:{law.number}" if law.number else name for name, law in INPUT_MODELS.items()]


def input_model_help() -> str:
    """What may stand for an input model, in a sentence."""
    laws = zip(input_model_names(), INPUT_MODELS.values(), strict=True)
    known = [f"{spelled} ({law.help})" if law.help else spelled for spelled, law in laws]
    return ", ".join([*known, "or module:attribute (an input model, or a function of (low, high) that makes one)"])


def make_box_law(text: str) -> Callable[[Tensor, Tensor], InputModel] | None:
    """What makes the input model with this name of low and high; None for a name that is not of ours."""
    name, colon, value = text.partition(":")
    law = INPUT_MODELS.get(name)
    if law is None or bool(colon) > bool(law.number):
        return None
    make: Callable[..., InputModel] = found(law.place)
    if not law.number:
        return make
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"input model {text!r}: {law.number} must be a positive number, as in {name}:0.1")
    return lambda low, high: make(low, high, number)


def make_estimator(
    name: str, kernel: str | None, settings: Mapping[str, Any], spell: Callable[[str], str] = str
) -> Estimator:
    """The estimator with the settings that were given (None: not given). One that it does not have is an error.

    `spell` says how the user wrote the name of a setting.
    """
    kind = found(ESTIMATORS[name])
    given = {key: value for key, value in settings.items() if value is not None}
    if kernel is not None:
        given["kernel"] = found(KERNELS[kernel])()
    known = {spec.name for spec in fields(kind)}
    foreign = [spell(key) for key in given if key not in known]
    if foreign:
        usable = ", ".join(spell(key) for key in (*settings, "kernel") if key in known) or "none of these settings"
        raise InputError(
            f"{' and '.join(foreign)} {'does' if len(foreign) == 1 else 'do'} not apply to the estimator {name}; "
            f"it takes {usable}"
        )
    made: Estimator = kind(**given)
    return made
