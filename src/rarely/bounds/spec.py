"""Violation as polytopes of outputs: any of {y : A y <= b}, with score max over them of min over rows b - A y.

A violation is score >= 0. In bounds, row r of polytope p is the function A_r y - b_r, which is positive where the
row is broken; a polytope is out of reach over a region as soon as one of its rows is positive on all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rarely.bounds.graph import Unprovable
from rarely.core.errors import InputError
from rarely.core.properties import Both, Either, LinearConstraint, Misclassification, Property, Targeted

Polytope = tuple[Tensor, Tensor]  # A (m, k) or (B, m, k), b (m,) or (B, m)
_MAX_POLYTOPES = 1000


@dataclass(frozen=True)
class Spec:
    """All rows of all polytopes stacked: `owner` maps a row to its polytope."""

    C: Tensor  # (B or 1, m, k)
    d: Tensor  # (B or 1, m): the rows are C y + d = A y - b
    owner: Tensor  # (m,)
    count: int

    def pick(self, problem: Tensor) -> Spec:
        """The rows of chosen problems, (len(problem), m, k) where problems differ."""
        if self.C.shape[0] == 1:
            return self
        return Spec(self.C[problem], self.d[problem], self.owner, self.count)

    def only(self, polytopes: Tensor) -> Spec:
        """The rows of some polytopes, which are numbered anew."""
        row, owner = (self.owner.unsqueeze(1) == polytopes).nonzero().unbind(1)
        return Spec(self.C[:, row], self.d[:, row], owner, len(polytopes))

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """C and d without rows that several polytopes share, and which of these each row is, (m,)."""
        if self.C.shape[0] > 1 or self.d.shape[0] > 1:
            return self.C, self.d, torch.arange(self.C.shape[1], device=self.C.device)
        rows, which = torch.cat([self.C[0], self.d[0].unsqueeze(1)], 1).unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        return rows[:, :-1].unsqueeze(0), rows[:, -1].unsqueeze(0), which

    def by_polytope(self, rows: Tensor) -> Tensor:
        """Per-row values (..., m) to the largest one of each polytope, (..., P)."""
        return torch.stack([rows[..., self.owner == p].amax(-1) for p in range(self.count)], -1)

    @property
    def member(self) -> Tensor:
        """Which rows belong to which polytope: (1, P, m)."""
        return (self.owner == torch.arange(self.count, device=self.owner.device).unsqueeze(1)).unsqueeze(0)

    def scores(self, y: Tensor) -> Tensor:
        """Score of each polytope at outputs y (B, N, k) -> (B, N, P)."""
        return -self.by_polytope(y @ self.C.mT + self.d.unsqueeze(-2))

    def score(self, y: Tensor) -> Tensor:
        """The score of outputs y (B, N, k) -> (B, N)."""
        return self.scores(y).amax(-1)


def polytopes(prop: Property, outputs: int) -> list[Polytope]:
    """The violating outputs as a union of {y : A y <= b}, or Unprovable."""
    eye = torch.eye(outputs, dtype=torch.float64)
    if isinstance(prop, Misclassification) and prop.label is not None:
        label = int(prop.label)
        return [((eye[label] - eye[i])[None], torch.zeros(1).double()) for i in range(outputs) if i != label]
    if isinstance(prop, Targeted):
        return [((eye[int(prop.label)] - eye[int(prop.target)])[None], torch.zeros(1).double())]
    if isinstance(prop, LinearConstraint):
        rows = [torch.isfinite(b) for b in prop.b]  # infinite bounds only pad
        return [(A[keep].double(), b[keep].double()) for A, b, keep in zip(prop.A, prop.b, rows, strict=True)]
    if isinstance(prop, Either):
        return polytopes(prop.left, outputs) + polytopes(prop.right, outputs)
    if isinstance(prop, Both):
        left, right = polytopes(prop.left, outputs), polytopes(prop.right, outputs)
        if len(left) * len(right) > _MAX_POLYTOPES:
            raise Unprovable(f"the property has more than {_MAX_POLYTOPES} alternatives")
        return [(torch.cat([a, c]), torch.cat([b, d])) for a, b in left for c, d in right]
    raise Unprovable(f"a property of kind {type(prop).__name__} is not a union of linear constraints on the outputs")


def spec_of(outputs: Sequence[Polytope], classes: int, batch: int, device: torch.device) -> Spec:
    """Stack polytopes given as A (m, k) or (B, m, k) and b likewise, in float64."""
    if not outputs:
        raise InputError("a property needs at least one output polytope")
    As, bs, owner = [], [], []
    shared = all(A.ndim == 2 and b.ndim == 1 for A, b in outputs)
    for p, (A, b) in enumerate(outputs):
        if A.shape[-1] != classes or A.shape[-2] != b.shape[-1] or A.shape[-2] < 1:
            raise InputError(f"output polytope {p}: A {tuple(A.shape)} and b {tuple(b.shape)} do not fit")
        rows = A.shape[-2]
        lead = 1 if shared else batch
        As.append(A.to(device, torch.float64).expand(lead, rows, classes))
        bs.append(b.to(device, torch.float64).expand(lead, rows))
        owner += [p] * rows
    index = torch.tensor(owner, device=device)
    return Spec(torch.cat(As, 1), -torch.cat(bs, 1), index, len(outputs))
