"""Inputs that violate a property, and of what kind they are: found by a search, or a sample of all that violate."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rarely.core.frames import frame
from rarely.core.rng import Rng

MAX_WITNESSES = 250  # of one problem: each is run again, alone, before it counts
# How witnesses come about, in the order in which an answer holds them.
NEAREST, FAIR, WEIGHED, SOUGHT = "nearest found", "independent draw", "weighed draw", "found by search"
KINDS = (NEAREST, FAIR, WEIGHED, SOUGHT)
_FEW_OF = 8  # effective draws for each that is kept by its weight: of nearly all of them the light ones are too many


@dataclass(frozen=True)
class Witnesses:
    """Inputs that violate the property.

    `kinds` says how each came about. Those that are an "independent draw" are a fair sample of all that violates. Those
    that are a "weighed draw" stand for one, too, as far as what their method assumes is true, but depend on each other.
    What was "found by search", and the one "nearest found", say that violations exist and not what most are like.
    """

    inputs: Tensor  # (n, *event)
    scores: Tensor  # (n,), all >= 0
    kinds: tuple[str, ...] = ()  # n of them, where they belong to an answer
    outputs: Tensor | None = None  # (n, *out) what the network answers to each alone; None where that is large
    reader: Callable[[Tensor], list[dict[str, Any]]] | None = field(default=None, repr=False, compare=False)  # by names

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def counted(self) -> bool:
        """Only how many there were is known: the inputs themselves were not saved with the answer."""
        return self.inputs.numel() == 0 and len(self) > 0

    def take(self, index: Tensor | slice) -> Witnesses:
        """Some of them, by their places or a mask."""
        kinds = tuple(self.kinds[place] for place in torch.arange(len(self))[index].tolist()) if self.kinds else ()
        outputs = None if self.outputs is None else self.outputs[index]
        return Witnesses(self.inputs[index], self.scores[index], kinds, outputs, self.reader)

    def of_kind(self, kind: str) -> Witnesses:
        """Those of one kind."""
        return self.take(torch.tensor([own == kind for own in self.kinds], dtype=torch.bool))

    def save(self, path: str | Path) -> None:
        """Write `inputs`, `scores`, `kinds` and, where they are kept, `outputs` to a .npz file."""
        file = Path(path if str(path).endswith(".npz") else f"{path}.npz")
        file.write_bytes(packed(self.arrays()))

    def arrays(self, ending: str = "") -> dict[str, NDArray[Any]]:
        """What a .npz file holds of them, under names with this ending."""
        held = {"inputs": self.inputs.numpy(), "scores": self.scores.numpy(), "kinds": np.array(self.kinds, dtype=str)}
        if self.outputs is not None:
            held["outputs"] = self.outputs.numpy()
        return {f"{name}{ending}": value for name, value in held.items()}

    def records(self) -> list[dict[str, Any]]:
        """Each as a person reads it: by the names that the input model has for its numbers, else x0, x1, ..."""
        if not len(self) or self.counted:
            return []
        if self.reader is not None:
            return self.reader(self.inputs)
        return [{f"x{i}": value for i, value in enumerate(row)} for row in self.inputs.flatten(1).tolist()]

    def to_frame(self) -> Any:
        """A pandas frame with a row for each, its score last."""
        return frame(
            [{**row, "score": score} for row, score in zip(self.records(), self.scores.tolist(), strict=False)]
        )

    def as_html(self) -> str:
        """The first of them, as pictures or as rows."""
        from rarely.display.witnesses import witnesses_html

        return witnesses_html(self)

    def _repr_html_(self) -> str:
        from rarely.display.html import block

        return block(self.as_html())


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as a .npz file. In memory: on a full disk numpy itself leaves a traceback that none can catch."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def no_witnesses() -> Witnesses:
    return Witnesses(torch.zeros(0), torch.zeros(0))


def gather_witnesses(x: Tensor, scores: Tensor, log_weights: Tensor | None = None) -> Witnesses:
    """The violating ones of inputs (n, *event) as they came, on the CPU: the first of fair draws are fair.

    Draws with weights are kept by chance, the heavier the likelier.
    """
    hit = (scores >= 0).nonzero().squeeze(1)
    if log_weights is not None and len(hit):
        weights = torch.softmax(log_weights[hit].double().cpu(), 0)
        effective = 1 / float(weights.square().sum())
        chance = -torch.log(-torch.log(Rng(0).uniform(weights.shape, torch.float64).clamp_min(1e-300)))
        kept = (weights.log() + chance).topk(max(1, min(len(hit), int(effective / _FEW_OF)))).indices
        hit = hit[kept.to(hit.device)]
    hit = hit[:MAX_WITNESSES]
    return Witnesses(x[hit].detach().cpu(), scores[hit].detach().cpu())


def gather_each(x: Tensor, scores: Tensor, owner: Tensor, count: int) -> list[Witnesses]:
    """`gather_witnesses` of each of so many problems, from inputs (n, *event) of one after the other.

    `owner` (n,) says whose they are, in rising order. The device is waited for once, and not for each problem.
    """
    hit = (scores >= 0).nonzero().squeeze(1)
    own = owner[hit]
    many = torch.bincount(own, minlength=count)
    rank = torch.arange(len(hit), device=hit.device) - (many.cumsum(0) - many)[own]
    hit, sizes = hit[rank < MAX_WITNESSES], many.clamp_max(MAX_WITNESSES).tolist()
    parts = (torch.split(some[hit].detach().cpu(), sizes) for some in (x, scores))
    return [Witnesses(*both) for both in zip(*parts, strict=True)]


def join_witnesses(found: Iterable[Witnesses]) -> Witnesses:
    """As many of each, up to `MAX_WITNESSES` in all."""
    some = [witnesses for witnesses in found if len(witnesses)]
    if not some:
        return no_witnesses()
    each = -(-MAX_WITNESSES // len(some))
    return _in_turn([witnesses.take(slice(each)) for witnesses in some])


def share_witnesses(found: Sequence[Witnesses], log_shares: Sequence[float]) -> Witnesses:
    """So many of each as its share of all that violates, up to `MAX_WITNESSES`: samples of parts become one of all.

    The part that has fewest for its share decides how many there are.
    """
    shares = torch.softmax(torch.tensor(log_shares, dtype=torch.float64), 0).tolist()
    known = [(own, share) for own, share in zip(found, shares, strict=True) if len(own) and share * MAX_WITNESSES >= 1]
    if not known:
        return no_witnesses()
    whole = min(MAX_WITNESSES, *(len(own) / share for own, share in known))
    return _in_turn([own.take(slice(max(1, round(whole * share)))) for own, share in known])


def _in_turn(some: Sequence[Witnesses]) -> Witnesses:
    inputs, scores = (torch.cat([getattr(own, name) for own in some])[:MAX_WITNESSES] for name in ("inputs", "scores"))
    return Witnesses(inputs, scores)


def kinds_together(found: Sequence[tuple[str, Witnesses]]) -> Witnesses:
    """All of an answer, each told its kind, in the order of kinds."""
    held = [own for own in found if len(own[1]) and not own[1].counted] or [own for own in found if len(own[1])]
    if not held:
        return no_witnesses()
    some = sorted(held, key=lambda own: KINDS.index(own[0]))
    kinds = tuple(kind for kind, own in some for _ in range(len(own)))
    inputs, scores = (torch.cat([getattr(own, name) for _, own in some]) for name in ("inputs", "scores"))
    answers = [own.outputs for _, own in some if own.outputs is not None]
    return Witnesses(inputs, scores, kinds, torch.cat(answers) if len(answers) == len(some) else None)
