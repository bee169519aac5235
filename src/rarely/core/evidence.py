"""Evidence: what a method has learnt about one problem, one record and one sentence each.

A method turns network calls into evidence and never says whether it is believed; `questions/conclude.py` does.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rarely.core.frames import frame
from rarely.stats import statistic
from rarely.stats.statistic import Binomial, Exceeded, Statistic

COUNTS, SPLITTING = "counts", "splitting"  # families: numbers that assume nothing; populations that climb
STRATA = "components"  # sums of numbers that were believed one by one
REAL = "real"  # of a proof that holds in real arithmetic, and not for the network as it runs
MAX_WITNESSES = 250  # of one problem: each is run again, alone, before it counts


@dataclass(frozen=True)
class Witnesses:
    """Inputs that violate the property."""

    inputs: Tensor  # (n, *event)
    scores: Tensor  # (n,), all >= 0
    reader: Callable[[Tensor], list[dict[str, Any]]] | None = field(default=None, repr=False, compare=False)  # by names

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def counted(self) -> bool:
        """Only how many there were is known: the inputs themselves were not saved with the answer."""
        return self.inputs.numel() == 0 and len(self) > 0

    def save(self, path: str | Path) -> None:
        """Write `inputs` and `scores` to a .npz file."""
        file = Path(path if str(path).endswith(".npz") else f"{path}.npz")
        file.write_bytes(packed({"inputs": self.inputs.numpy(), "scores": self.scores.numpy()}))

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


def gather_witnesses(x: Tensor, scores: Tensor) -> Witnesses:
    """The violating ones of inputs (n, *event), the highest scores first, on the CPU."""
    hit = (scores >= 0).nonzero().squeeze(1)
    hit = hit[scores[hit].argsort(descending=True)][:MAX_WITNESSES]
    return Witnesses(x[hit].detach().cpu(), scores[hit].detach().cpu())


def join_witnesses(found: Iterable[Witnesses]) -> Witnesses:
    """As many of each, up to `MAX_WITNESSES` in all."""
    some = [witnesses for witnesses in found if len(witnesses)]
    if not some:
        return no_witnesses()
    each = -(-MAX_WITNESSES // len(some))
    inputs, scores = (torch.cat([getattr(w, name)[:each] for w in some]) for name in ("inputs", "scores"))
    return Witnesses(inputs[:MAX_WITNESSES], scores[:MAX_WITNESSES])


@dataclass(frozen=True)
class Draws:
    """Independent inputs from the input model, and how many of them violate. They assume nothing."""

    n: int
    hits: int
    calls: int = 0
    method: str = "independent inputs"
    flat: bool = False  # their scores say no more than whether they violate: there is nothing to climb

    @property
    def statistic(self) -> Binomial:
        return Binomial(self.hits, self.n)

    @property
    def sentence(self) -> str:
        flat = "; their scores say no more than that" if self.flat else ""
        return f"{self.hits:,} of {self.n:,} independent inputs violate the property{flat}"


@dataclass(frozen=True)
class Bracket:
    """A proof that log_lower <= log p <= log_upper; log_upper = -inf: no input violates."""

    log_lower: float
    log_upper: float
    proof: str  # by what
    boxes: int = 0
    calls: int = 0
    method: str = "bounds"
    arithmetic: str = ""  # that of the network as it runs, where it is known; or "real"

    @property
    def sentence(self) -> str:
        if self.log_upper == -math.inf:
            where = " in real arithmetic" if self.arithmetic == REAL else ""
            return f"proved{where}: no input violates the property, by {self.proof}"
        least = f"{math.exp(self.log_lower):.3g} <= " if self.log_lower > -math.inf else ""
        return f"proved: {least}p <= {math.exp(self.log_upper):.3g}, by {self.proof}"


@dataclass(frozen=True)
class Number:
    """A statistical estimate of p with its error, and what it takes for granted."""

    method: str  # as a person calls it
    family: str  # methods of one family share their blind spots and do not confirm each other
    statistic: Statistic
    calls: int
    assumes: str = ""  # in words; nothing where the error is all there is
    doubt: str = ""  # why the method itself does not believe it
    note: str = ""
    levels: tuple[float, ...] = ()  # of the first island of splitting
    acceptance: tuple[float, ...] = ()  # of the kernel at each of them
    seen: Statistic | None = None  # of it, what lies where the referee's violations are
    lost: str = ""  # what is known to be missing from it
    climbs: tuple[tuple[float, ...], ...] = ()  # the levels of every island

    @property
    def log_prob(self) -> float:
        return self.statistic.log_prob

    @property
    def std(self) -> float:
        return self.statistic.std

    @property
    def sentence(self) -> str:
        doubt = f"; doubtful: {self.doubt}" if self.doubt else ""
        lost = f"; {self.lost}" if self.lost else ""
        return f"log p = {self.log_prob:.2f} ± {self.std:.2f}{lost}{doubt}"


@dataclass(frozen=True)
class Levels:
    """Populations that met no violation: what they left above their last levels bounds p, if they lost no region."""

    method: str
    left: Exceeded
    ended: Literal["floor", "stalled", "budget"]
    calls: int
    doubt: str = ""
    levels: tuple[float, ...] = ()
    acceptance: tuple[float, ...] = ()
    climbs: tuple[tuple[float, ...], ...] = ()

    @property
    def sentence(self) -> str:
        why = {"floor": "reached the floor", "stalled": "stopped rising below 0", "budget": "were cut off"}[self.ended]
        left = f"log p <= {self.left.upper(0.95):.1f} at 95 %"
        return f"no violation; the levels {why}, where {left} if the populations lost no region"


@dataclass(frozen=True)
class Found:
    """Violating inputs."""

    method: str
    witnesses: Witnesses = field(repr=False)
    calls: int = 0
    replayed: bool = False  # run again alone, in the network's own precision

    @property
    def sentence(self) -> str:
        again = ", replayed" if self.replayed else ""
        return f"{len(self.witnesses):,} violating inputs{again}, the highest score {self.best:.3g}"

    @property
    def best(self) -> float:
        return float(self.witnesses.scores.max()) if len(self.witnesses) else -math.inf


@dataclass(frozen=True)
class Searched:
    """A search that came back empty, a method that could say nothing, or a check and what came of it."""

    method: str
    told: str
    calls: int = 0
    doubt: bool = False  # what was told speaks against every number
    broke: bool = False  # calls or seconds did not reach

    @property
    def sentence(self) -> str:
        return self.told


@dataclass(frozen=True)
class Stratum:
    """What was learnt about one component of a mixture of inputs: p is the sum of its components' shares."""

    method: str
    log_weight: float
    of: int  # components that have a weight
    evidence: tuple[Evidence, ...]

    @property
    def calls(self) -> int:
        return sum(record.calls for record in self.evidence)

    @property
    def sentence(self) -> str:
        told = "; ".join(f"{record.method}: {record.sentence}" for record in self.evidence)
        return f"weight {math.exp(self.log_weight):.3g}; {told}"


Evidence = Draws | Bracket | Number | Levels | Found | Searched | Stratum
_KINDS = {kind.__name__.lower(): kind for kind in (Draws, Bracket, Number, Levels, Found, Searched, Stratum)}


def to_data(evidence: Evidence) -> dict[str, Any]:
    """A record as plain data; of violating inputs their number (the values go to .npz)."""
    kind = type(evidence).__name__.lower()
    if isinstance(evidence, Found):
        content: dict[str, Any] = {"method": evidence.method, "calls": evidence.calls, "replayed": evidence.replayed}
        content |= {"witnesses": len(evidence.witnesses), "best": evidence.best}
    else:
        content = {spec.name: getattr(evidence, spec.name) for spec in fields(evidence)}
    for name in ("statistic", "left", "seen"):
        if content.get(name) is not None:
            content[name] = statistic.to_data(content[name])
    if isinstance(evidence, Stratum):
        content["evidence"] = [to_data(record) for record in evidence.evidence]
    return {"kind": kind, **content, "sentence": evidence.sentence, "calls": evidence.calls}


def from_data(data: dict[str, Any]) -> Evidence:
    """What `to_data` made. Of violating inputs only their number and the best score are known."""
    content = {key: value for key, value in data.items() if key not in ("kind", "sentence")}
    if data["kind"] == "stratum":
        records = tuple(from_data(record) for record in content["evidence"])
        return Stratum(content["method"], float(content["log_weight"]), content["of"], records)
    for name in ("statistic", "left", "seen"):
        if content.get(name) is not None:
            content[name] = statistic.from_data(content[name])
    if data["kind"] == "found":
        count, best = int(content["witnesses"]), float(content.pop("best"))
        content["witnesses"] = Witnesses(torch.zeros(count, 0), torch.full((count,), best))
    for name, value in content.items():
        if name == "climbs":
            content[name] = tuple(tuple(float(level) for level in climb) for climb in value)
        elif isinstance(value, list):
            content[name] = tuple(float(v) for v in value)
        elif name in ("log_lower", "log_upper"):
            content[name] = float(value)
    made: Evidence = _KINDS[data["kind"]](**content)
    return made


def pooled(evidence: Sequence[Evidence]) -> Draws:
    """All independent inputs together."""
    some = [e for e in evidence if isinstance(e, Draws)]
    n, hits, calls = (sum(getattr(e, name) for e in some) for name in ("n", "hits", "calls"))
    return Draws(n, hits, calls, flat=any(e.flat for e in some))
