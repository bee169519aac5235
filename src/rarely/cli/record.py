"""What goes into JSON beside an answer: the command, the question as plain data, and the files with their hashes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rarely.campaign.asked import Asked
    from rarely.core.problem import Problem

_typed: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())
Answer = TypeVar("Answer", bound=Any)  # an estimate, a decision or those of a gate


def keep_typed(arguments: Sequence[str]) -> None:
    """Remember what was typed after `rarely`."""
    _typed.set(tuple(arguments))


def record(asked: Asked, files: dict[str, Any], problem: Problem | None) -> dict[str, Any]:
    """What was asked now, of files that were seen before."""
    from rarely.campaign.asked import recorded

    return recorded(asked, files, shlex.join(["rarely", *_typed.get()]), problem)


def with_record(
    answer: Answer, asked: Asked, files: dict[str, Any], problem: Problem, witnesses: Path | None
) -> Answer:
    """The answer with what was asked in its provenance; `witnesses` is the file with the violating inputs, if any."""
    made = {**answer.provenance, **record(asked, files, problem)}
    if witnesses is not None and witnesses.is_file():
        from rarely.campaign.content import sha256

        made["witnesses"] = {"name": str(witnesses), "sha256": sha256(witnesses)}
    return replace(answer, provenance=made)
