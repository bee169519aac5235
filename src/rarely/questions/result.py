"""What an estimator says: an outcome, a number with an interval, witnesses, and how it came about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rarely.core.errors import FormatError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA = 1


class Outcome(Enum):
    """How a run ended; `sentence` says it to a person."""

    VIOLATED = "violated"
    PROVED_SAFE = "proved safe"
    BELOW_FLOOR = "below the floor"
    STALLED = "stalled"
    OUT_OF_BUDGET = "out of budget"

    @property
    def sentence(self) -> str:
        """What this outcome means."""
        return _SENTENCES[self]

    @property
    def trusted(self) -> bool:
        """Whether the number or bound beside this outcome may be relied on."""
        return self is not Outcome.STALLED


_SENTENCES = {
    Outcome.VIOLATED: "Violations exist and were replayed; the probability is estimated.",
    Outcome.PROVED_SAFE: "No input in the region violates the property; this is a proof.",
    Outcome.BELOW_FLOOR: "No violation was found; the probability is below the floor. This is not a proof.",
    Outcome.STALLED: "The sampler stopped making progress or its checks disagree: do not trust a number here.",
    Outcome.OUT_OF_BUDGET: "The budget ran out before a violation was found; only an upper bound is known.",
}


@dataclass(frozen=True)
class Interval:
    """A confidence interval for log p (natural logarithm)."""

    confidence: float
    low: float
    high: float

    def __contains__(self, log_prob: float) -> bool:
        return self.low <= log_prob <= self.high


@dataclass(frozen=True)
class Witnesses:
    """Inputs that violate the property, scored again in the network's own precision."""

    inputs: Tensor  # (n, *event)
    scores: Tensor  # (n,), all >= 0

    def __len__(self) -> int:
        return len(self.scores)

    def save(self, path: str | Path) -> None:
        """Write `inputs` and `scores` to a .npz file."""
        np.savez_compressed(path, inputs=self.inputs.numpy(), scores=self.scores.numpy())


@dataclass(frozen=True)
class MethodReport:
    """What one method of `Auto` said and what it cost."""

    method: str
    log_prob: float
    log_prob_std: float
    calls: int  # evaluations + 3 x gradients
    note: str = ""


@dataclass(frozen=True)
class Estimate:
    """The answer for one problem. Logarithms are natural."""

    outcome: Outcome
    log_prob: float  # -inf when no violation was found
    log_prob_std: float  # standard deviation of log_prob; the relative error of p while it is small
    interval: Interval  # for log p
    upper_bound: float  # one-sided bound on log p at the interval's confidence
    evaluations: int  # of the network
    gradients: int
    seconds: float  # since the batch began, so problems of a batch share them
    levels: tuple[float, ...] = ()  # of the first island of splitting
    acceptance: tuple[float, ...] = ()  # mean acceptance of the kernel at each level
    witnesses: Witnesses = field(default_factory=lambda: Witnesses(torch.zeros(0), torch.zeros(0)), repr=False)
    notes: tuple[str, ...] = ()  # what a careful reader should know about this number
    methods: tuple[MethodReport, ...] = ()  # what each method said
    provenance: dict[str, Any] = field(default_factory=dict)  # seed, settings, device, versions
    name: str = ""

    @property
    def prob(self) -> float:
        """The probability; 0 where it underflows, below about 1e-308."""
        return math.exp(self.log_prob)

    @property
    def calls(self) -> int:
        """Cost in network calls, a gradient counted as three."""
        return self.evaluations + 3 * self.gradients

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        cost = f"{self.calls:,} calls, {self.seconds:.1f} s"
        if self.outcome is Outcome.PROVED_SAFE:
            return f"{name}proved safe ({cost})"
        if self.log_prob == -math.inf:
            bound = f"p <= {scientific(self.upper_bound)} at {self.interval.confidence:.0%}"
            return f"{name}{self.outcome.value}, {bound} ({cost})"
        low, high = scientific(self.interval.low), scientific(self.interval.high)
        trust = "" if self.outcome.trusted else f" [{self.outcome.value}: do not trust]"
        return (
            f"{name}p = {scientific(self.log_prob)}, {self.interval.confidence:.0%} in [{low}, {high}], "
            f"log p = {self.log_prob:.2f} ± {self.log_prob_std:.2f} ({cost}){trust}"
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Label and value of each line of the table."""
        if self.name:
            yield "problem", self.name
        yield "outcome", self.outcome.value
        yield "", self.outcome.sentence
        if self.log_prob > -math.inf:
            yield "probability", scientific(self.log_prob)
            low, high = scientific(self.interval.low), scientific(self.interval.high)
            yield f"{self.interval.confidence:.0%} interval", f"{low} to {high}"
            yield "log p", f"{self.log_prob:.3f} ± {self.log_prob_std:.3f}"
        elif self.outcome is not Outcome.PROVED_SAFE:
            yield f"upper bound ({self.interval.confidence:.0%})", f"p <= {scientific(self.upper_bound)}"
        yield "witnesses", str(len(self.witnesses))
        yield "network calls", f"{self.calls:,} ({self.evaluations:,} evaluations, {self.gradients:,} gradients)"
        yield "seconds", f"{self.seconds:.2f}"
        for report in self.methods:
            value = (
                f"{report.log_prob:.2f} ± {report.log_prob_std:.2f}"
                if math.isfinite(report.log_prob)
                else "no estimate"
            )
            note = f"; {report.note}" if report.note else ""
            yield f"by {report.method}", f"log p {value}, {report.calls:,} calls{note}"
        for note in self.notes:
            yield "note", note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        table = Table(show_header=False, box=None)
        for label, value in self.rows():
            table.add_row(label, value)
        yield table

    def _repr_html_(self) -> str:
        from html import escape

        cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self.rows())
        return f"<table>{cells}</table>"

    def to_json(self) -> str:
        """Everything but the witnesses' values (those go to .npz), with a schema version."""
        content = {"schema": SCHEMA, **{k: v for k, v in self.__dict__.items() if k != "witnesses"}}
        content["outcome"], content["sentence"] = self.outcome.value, self.outcome.sentence
        content["interval"], content["methods"] = asdict(self.interval), [asdict(m) for m in self.methods]
        content["prob"], content["witnesses"] = self.prob, len(self.witnesses)
        return json.dumps(_plain(content), indent=2, allow_nan=False)

    def save(self, path: str | Path, witnesses: str | Path | None = None) -> None:
        """Write the JSON, and the witnesses beside it when a second path is given."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")
        if witnesses is not None:
            self.witnesses.save(witnesses)

    @classmethod
    def from_json(cls, text: str, source: str = "<json>") -> Estimate:
        """Read what `to_json` wrote. Witnesses stay in their .npz file."""
        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                raise FormatError(
                    source, f"schema {data['schema']} is not the schema {SCHEMA} of this version of rarely"
                )
            return cls(
                outcome=Outcome(data["outcome"]),
                log_prob=_number(data["log_prob"]),
                log_prob_std=_number(data["log_prob_std"]),
                upper_bound=_number(data["upper_bound"]),
                seconds=_number(data["seconds"]),
                interval=Interval(**{k: _number(v) for k, v in data["interval"].items()}),
                evaluations=int(data["evaluations"]),
                gradients=int(data["gradients"]),
                levels=tuple(_number(v) for v in data["levels"]),
                acceptance=tuple(_number(v) for v in data["acceptance"]),
                notes=tuple(data["notes"]),
                methods=tuple(
                    MethodReport(m["method"], _number(m["log_prob"]), _number(m["log_prob_std"]), m["calls"], m["note"])
                    for m in data["methods"]
                ),
                provenance=data["provenance"],
                name=data["name"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(source, f"not an estimate written by rarely: {error!r}") from error


def scientific(log_prob: float) -> str:
    """A probability given by its natural log, as 1.23e-45, without underflow."""
    if log_prob == -math.inf:
        return "0"
    tens = log_prob / math.log(10)
    exponent = math.floor(tens)
    mantissa = round(10 ** (tens - exponent), 2)
    if mantissa >= 10:
        mantissa, exponent = 1.0, exponent + 1
    if exponent >= -2:
        return f"{math.exp(log_prob):.3g}"
    return f"{mantissa:.2f}e{exponent:03d}"


def in_words(estimate: Estimate) -> str:
    """A probability as a person would say it."""
    if estimate.outcome is Outcome.PROVED_SAFE:
        return "never: this is proved"
    if estimate.log_prob == -math.inf:
        return "never seen"
    if estimate.prob > 0.5:
        return f"{estimate.prob:.0%} of the time"
    names = ("", " thousand", " million", " billion", " trillion", " quadrillion", " quintillion", " sextillion")
    tens = -estimate.log_prob / math.log(10)
    if tens >= 3 * len(names):
        return f"1 in 10^{tens:.0f}"
    once = float(f"{10**tens:.2g}")
    power = min(int(math.log10(once) // 3), len(names) - 1)
    return f"1 in {once / 1000**power:g}{names[power]}"


def _plain(value: Any) -> Any:
    """JSON has no infinities: they become strings, and _number reads them back."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _number(value: Any) -> float:
    return float(value)
