"""What `estimate` says: an outcome, a number with an interval, witnesses, and the evidence behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rarely.core import evidence as records
from rarely.core.errors import FormatError
from rarely.core.evidence import REAL, Bracket, Evidence, Levels, Number, Stratum
from rarely.core.spend import GRADIENT
from rarely.core.witnesses import Witnesses, no_witnesses
from rarely.stats.statistic import Interval

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA = 2


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
    Outcome.BELOW_FLOOR: "No violation was found; p is below the floor if no region was missed. This is not a proof.",
    Outcome.STALLED: "The methods stopped making progress or contradict each other: do not trust a number here.",
    Outcome.OUT_OF_BUDGET: "The budget ran out before there was a number; only an upper bound is known.",
}

_RARE = ("No violation was found;", "The violations that were found and replayed are rarer than that:")
_IN_REALS = "In real arithmetic no input in the region violates the property; this is a proof, but for rounding."


class Costed:
    """An answer, and what it took."""

    evaluations: int  # of the network
    gradients: int

    @property
    def calls(self) -> int:
        """Cost in network calls, a gradient counted as three."""
        return self.evaluations + GRADIENT * self.gradients


@dataclass(frozen=True)
class Estimate(Costed):
    """The answer for one problem. Logarithms are natural."""

    outcome: Outcome
    log_prob: float  # -inf when no violation was found; of a stalled run the best guess
    log_prob_std: float  # standard deviation of log_prob; the relative error of p while it is small
    interval: Interval  # for log p; of a stalled run what independent inputs and proofs leave
    upper_bound: float  # one-sided bound on log p at the interval's confidence
    evaluations: int  # of the network
    gradients: int
    seconds: float  # since the batch began, so problems of a batch share them
    method: str = ""  # whose number it is
    evidence: tuple[Evidence, ...] = ()  # what each method has learnt
    witnesses: Witnesses = field(default_factory=no_witnesses, repr=False)  # replayed
    notes: tuple[str, ...] = ()  # what a careful reader should know about this number
    provenance: dict[str, Any] = field(default_factory=dict)  # seed, settings, device, versions
    name: str = ""

    @property
    def prob(self) -> float:
        """The probability; 0 where it underflows, below about 1e-308."""
        return math.exp(self.log_prob)

    @property
    def proved(self) -> tuple[float, float]:
        """Bounds on log p that are proved, for the network as it runs: -inf and 0 where nothing is."""
        proofs = [e for e in self.evidence if isinstance(e, Bracket) and e.arithmetic != REAL]
        return max([-math.inf, *(p.log_lower for p in proofs)]), min([0.0, *(p.log_upper for p in proofs)])

    @property
    def in_reals(self) -> bool:
        """Whether it is proved safe in real arithmetic only, and not as the network runs."""
        return self.outcome is Outcome.PROVED_SAFE and _only_real(self.evidence)

    @property
    def word(self) -> str:
        """The outcome, and that it is about real arithmetic where it is."""
        return f"{self.outcome.value}{' in real arithmetic' * self.in_reals}"

    @property
    def sentence(self) -> str:
        """What the outcome means."""
        if self.outcome is Outcome.BELOW_FLOOR:
            return self._below_floor()
        return _IN_REALS if self.in_reals else self.outcome.sentence

    def _below_floor(self) -> str:
        settings = self.provenance.get("estimator")
        floor = settings.get("log_p_min") if isinstance(settings, dict) else None
        told = self.outcome.sentence
        if isinstance(floor, float):
            told = told.replace("the floor", f"the floor of {scientific(floor)}")
        return told.replace(*_RARE) if len(self.witnesses) else told

    @property
    def proved_range(self) -> str:
        """The same for people; nothing where nothing is proved, or all is."""
        low, high = self.proved
        if not -math.inf < high < 0:
            return ""
        return f"{scientific(low)} <= p <= {scientific(high)}" if low > -math.inf else f"p <= {scientific(high)}"

    @property
    def levels(self) -> tuple[float, ...]:
        """Of the first island of splitting."""
        return self._climb().levels if self._climb() else ()

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Mean acceptance of the kernel at each level."""
        return self._climb().acceptance if self._climb() else ()

    def _climb(self) -> Any:
        return next((e for e in self.evidence if isinstance(e, Number | Levels) and e.levels), None)

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        cost = f"({self.calls:,} calls, {self.seconds:.1f} s)"
        cost += f"; proved: {self.proved_range}" if self.proved_range else ""
        if self.outcome is Outcome.VIOLATED:
            return f"{name}{self._number()}, log p = {self.log_prob:.2f} ± {self.log_prob_std:.2f} {cost}"
        if self.outcome is Outcome.PROVED_SAFE:
            return f"{name}{self.word} {cost}"
        if self.outcome is Outcome.STALLED:
            guess = f"; a guess: p = {scientific(self.log_prob)}" if self.log_prob > -math.inf else ""
            return f"{name}stalled: do not trust a number here, {self._bound()}{guess} {cost}"
        return f"{name}{self.outcome.value}, {self._bound()} {cost}"

    def _number(self) -> str:
        low, high = scientific(self.interval.low), scientific(self.interval.high)
        return f"p = {scientific(self.log_prob)}, {self.interval.confidence:.0%} in [{low}, {high}]"

    def _bound(self) -> str:
        supposed = " if no region was missed" if self.outcome is Outcome.BELOW_FLOOR else ""
        return f"p <= {scientific(self.upper_bound)} at {self.interval.confidence:.0%}{supposed}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Label and value of each line of the table."""
        if self.name:
            yield "problem", self.name
        yield "outcome", self.word
        yield "", self.sentence
        if self.outcome is Outcome.VIOLATED:
            yield "probability", scientific(self.log_prob)
            low, high = scientific(self.interval.low), scientific(self.interval.high)
            yield f"{self.interval.confidence:.0%} interval", f"{low} to {high}"
            yield "log p", f"{self.log_prob:.3f} ± {self.log_prob_std:.3f}, by {self.method}"
        elif self.outcome is not Outcome.PROVED_SAFE:
            yield f"upper bound ({self.interval.confidence:.0%})", self._bound()
        if self.proved_range:
            yield "proved", self.proved_range
        yield "witnesses", str(len(self.witnesses))
        yield "network calls", f"{self.calls:,} ({self.evaluations:,} evaluations, {self.gradients:,} gradients)"
        yield "seconds", f"{self.seconds:.2f}"
        for record in self.evidence:
            told = f"; {record.note}" if isinstance(record, Number) and record.note not in ("", *self.notes) else ""
            cost = f", {record.calls:,} calls" if record.calls else ""
            yield f"by {record.method}", f"{record.sentence}{cost}{told}"
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
        content["outcome"], content["sentence"] = self.outcome.value, self.sentence
        content["interval"] = asdict(self.interval)
        content["evidence"] = [records.to_data(record) for record in self.evidence]
        content["prob"], content["witnesses"] = self.prob, len(self.witnesses)
        return json.dumps(plain(content), indent=2, allow_nan=False)

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
            found = cls(
                outcome=Outcome(data["outcome"]),
                log_prob=float(data["log_prob"]),
                log_prob_std=float(data["log_prob_std"]),
                upper_bound=float(data["upper_bound"]),
                seconds=float(data["seconds"]),
                interval=Interval(**{k: float(v) for k, v in data["interval"].items()}),
                evaluations=int(data["evaluations"]),
                gradients=int(data["gradients"]),
                evidence=tuple(records.from_data(record) for record in data["evidence"]),
                method=data["method"],
                notes=tuple(data["notes"]),
                provenance=data["provenance"],
                name=data["name"],
            )
            # Fields of another type are met here, where the file is known, and not on a page.
            _ = (found.sentence, *(record.sentence for record in found.evidence))
            return found
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
            raise FormatError(source, f"not an estimate written by rarely: {error!r}") from error


class Concluded(Costed):
    """What the rulings and verdicts have in common: one line, and JSON."""

    sentence: str
    seconds: float
    evidence: tuple[Evidence, ...]
    witnesses: Witnesses

    def _line(self, word: str) -> str:
        return f"{word}: {self.sentence} ({self.calls:,} calls, {self.seconds:.1f} s)"

    def to_json(self) -> str:
        """Everything but the witnesses' values."""
        content = {k: v.value if isinstance(v, Enum) else v for k, v in self.__dict__.items()}
        content |= {"witnesses": len(self.witnesses), "calls": self.calls}
        content["evidence"] = [records.to_data(record) for record in self.evidence]
        return json.dumps(plain(content), indent=2, allow_nan=False)


def _only_real(evidence: Sequence[Evidence]) -> bool:
    """Whether a proof that nothing violates rests on one in real arithmetic, maybe that of a component."""
    proofs = [e for e in evidence if isinstance(e, Bracket) and e.log_upper == -math.inf]
    if any(e.arithmetic != REAL for e in proofs):
        return False
    return bool(proofs) or any(_only_real(e.evidence) for e in evidence if isinstance(e, Stratum))


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


def plain(value: Any) -> Any:
    """As JSON can hold it: it has no infinities, which become strings that `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
