"""The last step of `Auto`: the violation nearest to the middle of the inputs, for people to look at first."""

from __future__ import annotations

import torch

from rarely.core.batch import Batch
from rarely.core.evidence import Found, Nearest
from rarely.core.rng import Rng
from rarely.methods.nearest import NearestViolation
from rarely.questions.case import Case, Goal, Work, note


def unnamed(batch: Batch, case: Case, goal: Goal) -> bool:
    """Violations are known, and none of them is called the nearest; among words nothing is near."""
    if getattr(batch.inputs, "whole", False):
        return False
    return bool(_inputs(case)) and not any(isinstance(e, Nearest) for e in case.evidence)


def come_near(batch: Batch, cases: list[Case], goal: Goal, rng: Rng) -> Work:
    starts = [torch.cat(_inputs(case)) for case in cases]
    normals = [[p for p in (case.points, case.held, case.far) if p is not None] for case in cases]
    joined = [torch.cat(own) if own else None for own in normals]
    note(cases, (yield from NearestViolation().search(batch, starts, joined)), goal)


def _inputs(case: Case) -> list[torch.Tensor]:
    found = [e.witnesses for e in case.evidence if isinstance(e, Found)]
    return [witnesses.inputs for witnesses in found if len(witnesses) and not witnesses.counted]
