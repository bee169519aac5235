"""Evidence: what a method has learnt about one problem, one record and one sentence each.

A method turns network calls into evidence and never says whether it is believed; `questions/conclude.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch

from rarely.core.witnesses import SOUGHT, Witnesses
from rarely.stats import statistic
from rarely.stats.statistic import Binomial, Exceeded, Statistic

COUNTS, SPLITTING = "counts", "splitting"  # families: numbers that assume nothing; populations that climb
TILTING = "tilting"  # populations that the score tilts
STRATA = "components"  # sums of numbers that were believed one by one
REAL = "real"  # of a proof that holds in real arithmetic, and not for the network as it runs
LISTED = 32  # numbers of an input that plain data hold
_SPOKEN = 8  # and that a sentence does


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
    drawn: str = SOUGHT  # how they came about: a kind of `core/witnesses.py`

    @property
    def sentence(self) -> str:
        again = ", replayed" if self.replayed else ""
        many = "s" * (len(self.witnesses) != 1)
        drawn = f", {self.drawn}{many}" if self.drawn != SOUGHT else ""
        return f"{len(self.witnesses):,} violating input{many}{again}{drawn}, the highest score {self.best:.3g}"

    @property
    def best(self) -> float:
        return float(self.witnesses.scores.max()) if len(self.witnesses) else -math.inf


@dataclass(frozen=True)
class Nearest:
    """The violating input nearest to the middle of the input law that a search has found: there may be nearer ones."""

    method: str
    witnesses: Witnesses = field(repr=False)  # it alone; before its replay others behind it, farther in
    distance: float
    unit: str  # what the distance is measured in: a key of `DISTANCES`
    beyond: float  # the distance of the nearest of the other witnesses; NaN where there is none
    calls: int = 0
    replayed: bool = False

    @property
    def sentence(self) -> str:
        others = f", that of the other witnesses at {self.beyond:.3g}" if math.isfinite(self.beyond) else ""
        values = ", ".join(f"{value:.4g}" for value in self.listed(_SPOKEN))
        return f"the nearest one found lies {self.where}{others}{f': ({values})' if values else ''}"

    @property
    def where(self) -> str:
        return DISTANCES[self.unit].format(f"{self.distance:.3g}")

    def listed(self, most: int) -> list[float]:
        """The numbers of the input, where there are no more than so many."""
        values: list[float] = self.witnesses.inputs[0].flatten().double().tolist()
        return values if len(values) <= most else []


# Units in which laws measure how far an input lies from their middle.
DISTANCES = {
    "radius": "at {} of the radius from the centre",
    "box": "at {} of the way from the centre of the box to its sides",
    "sigma": "{} standard deviations from the mean",
    "normal": "{} standard deviations from the centre of the normals that inputs are made of",
    "log-density": "where the log-density is {} below that of the centre",
}


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


Evidence = Draws | Bracket | Number | Levels | Found | Nearest | Searched | Stratum
_KINDS = {kind.__name__.lower(): kind for kind in (Draws, Bracket, Number, Levels, Found, Nearest, Searched, Stratum)}


def to_data(evidence: Evidence) -> dict[str, Any]:
    """A record as plain data; of violating inputs their number, of the nearest its values where they are few."""
    kind = type(evidence).__name__.lower()
    if isinstance(evidence, Found):
        content: dict[str, Any] = {"method": evidence.method, "calls": evidence.calls, "replayed": evidence.replayed}
        content |= {"witnesses": len(evidence.witnesses), "best": evidence.best, "drawn": evidence.drawn}
    elif isinstance(evidence, Nearest):
        names = ("method", "calls", "replayed", "distance", "unit", "beyond")
        content = {name: getattr(evidence, name) for name in names}
        content |= {"score": float(evidence.witnesses.scores[0]), "input": evidence.listed(LISTED)}
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
    if data["kind"] == "nearest":
        score, values = torch.tensor([float(content.pop("score"))]), content.pop("input")
        content["witnesses"] = Witnesses(torch.tensor([values], dtype=torch.float64).reshape(1, -1), score)
    for name, value in content.items():
        if name == "climbs":
            content[name] = tuple(tuple(float(level) for level in climb) for climb in value)
        elif isinstance(value, list):
            content[name] = tuple(float(v) for v in value)
        elif name in ("log_lower", "log_upper", "distance", "beyond"):
            content[name] = float(value)
    made: Evidence = _KINDS[data["kind"]](**content)
    return made


def pooled(evidence: Sequence[Evidence]) -> Draws:
    """All independent inputs together."""
    some = [e for e in evidence if isinstance(e, Draws)]
    n, hits, calls = (sum(getattr(e, name) for e in some) for name in ("n", "hits", "calls"))
    return Draws(n, hits, calls, flat=any(e.flat for e in some))
