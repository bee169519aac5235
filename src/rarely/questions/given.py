"""What callers of the questions give, as the questions take it: problems, estimators by name, who is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rarely import registry
from rarely.core.arguments import instance, kind, real
from rarely.core.errors import InputError
from rarely.core.evidence import Evidence
from rarely.core.problem import Problem
from rarely.display.progress import shown_progress
from rarely.methods.base import Progress
from rarely.questions.strategy import Auto

Told = bool | Callable[[Progress], None] | None  # who is told how a run goes: a line on the screen for True


def as_problems(given: Any) -> list[Problem]:
    """One problem or many."""
    if isinstance(given, Problem):
        return [given]
    if isinstance(given, Mapping | str) or not isinstance(given, Iterable):
        hint = "; give its values" if isinstance(given, Mapping) else ""
        raise InputError(f"expected a Problem or a list of them, got {kind(given)}{hint}{_made(given)}")
    problems = list(given)
    for place, problem in enumerate(problems):
        if not isinstance(problem, Problem):
            raise InputError(f"problems[{place}] is {kind(problem)} and no Problem{_made(problem)}")
    return problems


def as_problem(given: Any, asked: str) -> Problem:
    """The one problem of a question that has one answer."""
    if isinstance(given, Problem):
        return given
    if isinstance(given, list | tuple) and given and all(isinstance(one, Problem) for one in given):
        raise InputError(f"{asked} takes one Problem, got {len(given)} of them; ask for each in turn")
    raise InputError(f"{asked} takes a Problem, got {kind(given)}{_made(given)}")


def as_estimator(given: Any, p_min: Any = None) -> Any:
    """An estimator, one by its name, or a class of them; `Auto` where none is given. `p_min`: its floor."""
    if given is None:
        given = Auto()
    if isinstance(given, str):
        name = given.strip().lower().replace("_", "-")
        if name not in registry.ESTIMATORS:
            raise InputError(f"there is no estimator {given!r}; the names are {', '.join(registry.ESTIMATORS)}")
        given = registry.make_estimator(name, None, {})
    made: Any = instance(given, "the estimator")
    made = _with_kernel(made, getattr(made, "kernel", None))
    missing = [part for part in ("run", "at_once", "forecast") if not hasattr(made, part)]
    if missing:
        raise InputError(
            f"{kind(made)} is no estimator: it has no {' and no '.join(missing)}; give one such as Auto() or "
            f"Splitting(), or a name: {', '.join(registry.ESTIMATORS)}"
        )
    return made if p_min is None else _floored(made, real(p_min, "p_min"))


@contextmanager
def as_progress(given: Any, title: str, total: int) -> Iterator[Callable[[Progress, int], None]]:
    """What is told of every event and of how many problems are finished: a line for True, a function as it is."""
    if given is True:
        with shown_progress(title, total) as show:
            yield show
    elif callable(given):
        yield lambda event, finished: given(event)
    elif given is None or given is False:
        yield lambda event, finished: None
    else:
        raise InputError(f"progress must be True, or a function of what is going on, got {given!r}")


def _with_kernel(estimator: Any, kernel: Any) -> Any:
    """A kernel by its name, or a class of them, becomes one."""
    if isinstance(kernel, str):
        if kernel not in registry.KERNELS:
            raise InputError(f"there is no kernel {kernel!r}; the names are {', '.join(registry.KERNELS)}")
        kernel = registry.found(registry.KERNELS[kernel])
    return replace(estimator, kernel=instance(kernel, "the kernel")) if isinstance(kernel, type) else estimator


def evidence_of(known: Any) -> tuple[Evidence, ...]:
    """What an earlier answer has learnt."""
    evidence = () if known is None else getattr(known, "evidence", None)
    if not isinstance(evidence, tuple):
        raise InputError(f"known must be an earlier answer about this problem, got {kind(known)}")
    return evidence


def _floored(estimator: Any, p_min: float) -> Any:
    """The estimator with its floor at a probability."""
    if not 0 < p_min < 1:
        hint = "; a natural log is the log_p_min of an estimator" * (p_min < 0)
        raise InputError(f"p_min is a probability strictly between 0 and 1, as in 1e-12, got {p_min:g}{hint}")
    if not hasattr(estimator, "log_p_min"):
        raise InputError(f"{type(estimator).__name__} has no floor: p_min belongs to Auto and to splitting")
    return replace(estimator, log_p_min=math.log(p_min))


def _made(given: Any) -> str:
    """How a problem is made of what looks like a part of one."""
    if callable(given) or isinstance(given, str):
        return "; make one: rarely.Problem(network, property, inputs), or rarely.load_problem of files"
    return ""
