"""Names that command lines, plans and pages use, with the class behind each and the settings they take.

One line here makes a method or a kernel known everywhere; its file says the rest (fields, checks, forecast). Nothing is
imported before it is asked for, so that `rarely --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rarely.core.errors import InputError

if TYPE_CHECKING:
    from rarely.methods.base import Estimator

ESTIMATORS = {
    "auto": "rarely.questions.strategy:Auto",
    "splitting": "rarely.methods.splitting:Splitting",
    "monte-carlo": "rarely.methods.monte_carlo:MonteCarlo",
    "line-sampling": "rarely.methods.line_sampling:LineSampling",
    "importance": "rarely.methods.importance:ImportanceSampling",
}
KERNELS = {
    "pcn": "rarely.kernels.pcn:PCN",
    "random-walk": "rarely.kernels.random_walk:RandomWalk",
    "langevin": "rarely.kernels.langevin:Langevin",
    "hmc": "rarely.kernels.hamiltonian:HMC",
    "hit-and-run": "rarely.kernels.hit_and_run:HitAndRun",
}


@dataclass(frozen=True)
class Setting:
    """A field of estimators that can be set by name."""

    kind: type
    help: str
    short: str = ""  # of an option
    word: str = ""  # that may stand for a number


SETTINGS = {
    "particles": Setting(int, "Particles of each population (N in the paper).", "-n"),
    "quantile": Setting(float, "Share of particles that survive a level (rho)."),
    "steps": Setting(int, "Kernel steps at each level (M).", word="auto"),
    "islands": Setting(int, "Independent populations; their spread gives the interval."),
    "log_p_min": Setting(float, "Floor: give up below this natural log of p."),
    "samples": Setting(int, "Inputs drawn at most by each problem."),
    "target_error": Setting(float, "Stop at this relative standard error of p."),
    "proof_boxes": Setting(int, "Boxes that a proof may take, so that no clock has a say."),
}


def found(place: str) -> Any:
    """What stands at `module:name`."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


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
