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
from rarely.core.evidence import REAL, Bracket, Evidence, Levels, Number, Stratum, Witnesses, no_witnesses
from rarely.core.spend import GRADIENT
from rarely.questions import showing
from rarely.stats.statistic import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA = 2
CONCLUDED_SCHEMA = 1  # of decisions and verdicts


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

_NUDGE = 1e-9  # of a log: 0.9985 is in the middle of two texts, and becomes the same one from six digits and from all

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
        """The outcome as a table names it, with what its reader must not miss."""
        doubt = "" if self.outcome.trusted else ", do not trust"
        return f"{self.outcome.value}{doubt}{' in real arithmetic' * self.in_reals}"

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

    @property
    def climbs(self) -> tuple[tuple[float, ...], ...]:
        """Levels of every island; of an answer that an earlier version wrote, of the first."""
        climb = self._climb()
        return () if climb is None else climb.climbs or (climb.levels,)

    def _climb(self) -> Any:
        return next((e for e in self.evidence if isinstance(e, Number | Levels) and e.levels), None)

    def __repr__(self) -> str:
        return f"<Estimate {self}>"

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
            return f"{name}stalled: do not trust a number here, {self.bound}{guess} {cost}"
        return f"{name}{self.outcome.value}, {self.bound} {cost}"

    def _number(self) -> str:
        low, high = scientific(self.interval.low), scientific(self.interval.high)
        return f"p = {scientific(self.log_prob)}, {self.interval.confidence:.0%} in [{low}, {high}]"

    @property
    def bound(self) -> str:
        """The upper bound, with what it supposes."""
        supposed = " if no region was missed" if self.outcome is Outcome.BELOW_FLOOR else ""
        return f"p <= {scientific(self.upper_bound)} at {self.interval.confidence:.0%}{supposed}"

    @property
    def cells(self) -> tuple[str, str]:
        """The probability and its interval, or the bound that is known in their place, for a table."""
        if self.outcome is Outcome.PROVED_SAFE:
            return "0", "proof"
        if self.log_prob == -math.inf:
            return f"<= {scientific(self.upper_bound)}", f"{self.interval.confidence:.0%} bound"
        return scientific(self.log_prob), f"{scientific(self.interval.low)} to {scientific(self.interval.high)}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Label and value of each line of the table."""
        return showing.rows(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield showing.table(self)

    def _repr_html_(self) -> str:
        return showing.estimate_html(self)

    def plot(self) -> Figure:
        """A matplotlib figure: the levels that were climbed, or the interval where there are none."""
        from rarely.display.figures import plot_estimate

        return plot_estimate(self)

    def to_frame(self) -> Any:
        """One row of a pandas frame."""
        return showing.frame([self])

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

    @property
    def word(self) -> str:
        """What was decided."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return showing.concluded_html(self)

    def _line(self, word: str) -> str:
        return f"{word}: {self.sentence} ({self.calls:,} calls, {self.seconds:.1f} s)"

    def to_json(self) -> str:
        """Everything but the witnesses' values."""
        content: dict[str, Any] = {"schema": CONCLUDED_SCHEMA}
        content |= {k: v.value if isinstance(v, Enum) else v for k, v in self.__dict__.items()}
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
    log_prob += _NUDGE
    tens = log_prob / math.log(10)
    exponent = math.floor(tens)
    mantissa = round(10 ** (tens - exponent), 2)
    if mantissa >= 10:
        mantissa, exponent = 1.0, exponent + 1
    if exponent >= -2:
        return f"{min(1.0, math.exp(log_prob)):.3g}"
    return f"{mantissa:.2f}e{exponent:03d}"


def plain(value: Any) -> Any:
    """As JSON can hold it: it has no infinities, which become strings that `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
