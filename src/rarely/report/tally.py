"""One pass over records, of a campaign or of result files: what is counted, what is drawn, the rows that are shown."""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps

from rarely.campaign.noise import axis_of
from rarely.campaign.robustness import Curve
from rarely.campaign.schema import FILE
from rarely.campaign.store import Record, Store
from rarely.campaign.tables import flat
from rarely.core.errors import FormatError
from rarely.core.evidence import Evidence
from rarely.io.files import read_json
from rarely.questions.result import Estimate, Outcome

# How a problem stands, in the order in which shares are shown, and the sentence that explains it.
STANDINGS = {
    "violated": Outcome.VIOLATED.sentence,
    "proved safe": Outcome.PROVED_SAFE.sentence,
    "below the floor": Outcome.BELOW_FLOOR.sentence,
    "out of budget": Outcome.OUT_OF_BUDGET.sentence,
    "not to be trusted": Outcome.STALLED.sentence,
    "failed": "The problem could not be run to its end; the reason is given.",
    "waiting": "The campaign has not come to this problem yet.",
}
FIELDS = (
    "key", "name", "network", "item", "label", "norm", "radius", "replicate", "standing", "log_prob", "std", "low",
    "high", "upper", "proved", "confidence", "evaluations", "gradients", "seconds", "attempts", "reason", "levels",
    "acceptance", "evidence", "notes",
)  # fmt: skip
_DIGITS = 6  # of numbers: more than any estimate has
_LOGS = ("log_prob", "low", "high", "upper")  # of which the page makes texts, the same as everywhere else:
_LOG_DIGITS = 12  # 6 digits of a log would make 9.99e-101 of 1.00e-100
MAX_ROWS = 20_000  # more would make a page that browsers open slowly
_WORST = 6  # cards on the page
_LONGEST = 1000  # characters of one cell: a reason or a name may have millions


@dataclass(frozen=True)
class Violation:
    record: Record
    estimate: Estimate

    @property
    def question(self) -> tuple[object, ...]:
        """What replicates have in common."""
        record = self.record
        return record.network, record.item or record.key, record.label, record.norm, record.radius


@dataclass
class Tally:
    """What is left of the records: memory grows by a few numbers a problem, and by a row up to `max_rows`."""

    max_rows: int = MAX_ROWS
    counts: Counter[str] = field(default_factory=Counter)
    trusted: array[float] = field(default_factory=lambda: array("d"))  # log p of the violated
    doubtful: array[float] = field(default_factory=lambda: array("d"))  # log p of those not to be trusted
    by_radius: dict[tuple[str, str], dict[float, array[float]]] = field(default_factory=dict)
    calls: int = 0
    settings: Counter[str] = field(default_factory=Counter)  # how many estimates were made with which settings
    worst: list[Violation] = field(default_factory=list)  # a few, the most probable first, replicates not repeated
    _rows: list[tuple[tuple[int, float, int], str, str]] = field(default_factory=list)  # a heap: badness, key, JSON

    def add(self, record: Record) -> None:
        stands = standing(record)
        self.counts[stands] += 1
        if record.estimate is not None:
            self._count(record, record.estimate, stands)
        if self.max_rows == 0:
            return
        bad = _badness(record, stands)
        if len(self._rows) < self.max_rows:
            heapq.heappush(self._rows, (bad, record.key, _row(record, stands)))
        elif bad > self._rows[0][0]:
            heapq.heapreplace(self._rows, (bad, record.key, _row(record, stands)))

    def _count(self, record: Record, estimate: Estimate, stands: str) -> None:
        self.calls += estimate.calls
        self.settings[_settings(estimate)] += 1
        number = math.isfinite(estimate.log_prob)
        if stands == "not to be trusted":
            if number:
                self.doubtful.append(estimate.log_prob)
            return
        if number:
            self.trusted.append(estimate.log_prob)
            self._keep_worst(Violation(record, estimate))
        if record.radius is not None:
            radii = self.by_radius.setdefault((record.network, record.norm), {})
            radii.setdefault(record.radius, array("d")).append(estimate.log_prob if number else -math.inf)

    def _keep_worst(self, new: Violation) -> None:
        if len(self.worst) == _WORST and new.estimate.log_prob <= self.worst[-1].estimate.log_prob:
            return
        same = next((i for i, old in enumerate(self.worst) if old.question == new.question), None)
        if same is not None:
            if self.worst[same].estimate.log_prob >= new.estimate.log_prob:
                return
            del self.worst[same]
        self.worst.append(new)
        self.worst.sort(key=lambda found: -found.estimate.log_prob)
        del self.worst[_WORST:]

    @property
    def total(self) -> int:
        return self.counts.total()

    def rows(self) -> list[tuple[str, str]]:
        """Key and JSON of each row that is kept, the worst first."""
        return [(key, text) for _, key, text in sorted(self._rows, reverse=True)]

    def curves(self) -> list[Curve]:
        """log p over the radius for each network and norm that has two radii or more."""
        norms = {norm for _, norm in self.by_radius}
        networks = {network for network, _ in self.by_radius}
        found = []
        for (network, norm), columns in self.by_radius.items():
            if len(columns) > 1:
                parts = (network if len(networks) > 1 else "", f"norm {norm}" if len(norms) > 1 else "")
                radii, name = sorted(columns), " ".join(filter(None, parts))
                found.append(Curve(name, radii, [columns[radius] for radius in radii], axis_of(norm)))
        return found


def tally(records: Iterable[Record], max_rows: int = MAX_ROWS) -> Tally:
    counted = Tally(max_rows)
    for record in records:
        counted.add(record)
    return counted


def standing(record: Record) -> str:
    if record.estimate is None:
        return "failed" if record.state == "failed" else "waiting"
    return record.estimate.outcome.value if record.estimate.outcome.trusted else "not to be trusted"


def _badness(record: Record, stands: str) -> tuple[int, float, int]:
    """Violations by probability, then what is unknown by its bound, then failures, proofs and what waits."""
    estimate = record.estimate
    if estimate is None:
        return (1 if stands == "failed" else -1, 0.0, -record.index)
    if math.isfinite(estimate.log_prob):
        return 3, estimate.log_prob, -record.index
    bound = estimate.upper_bound if not math.isnan(estimate.upper_bound) else 0.0
    return (0 if stands == "proved safe" else 2), bound, -record.index


def _settings(estimate: Estimate) -> str:
    made = estimate.provenance
    parts = (_call(made.get("estimator")), made.get("device"), made.get("dtype"))
    return ", ".join(str(part) for part in parts if part)


def _call(value: Any) -> Any:
    """Settings as rarely.questions.estimate.describe gives them, as they would be written in Python."""
    if not isinstance(value, dict):
        return value
    return f"{value.get('name')}({', '.join(f'{k}={_call(v)}' for k, v in value.items() if k != 'name')})"


def _row(record: Record, stands: str) -> str:
    """The values of FIELDS as JSON in which nothing can end the script element that it stands in."""
    known = flat(record)
    known.update(standing=stands, std=known["log_prob_std"], upper=known["upper_bound"])
    if (e := record.estimate) is not None:
        evidence = [(piece.method, _said(piece), piece.calls) for piece in e.evidence]
        known.update(
            proved=e.proved_range, confidence=e.interval.confidence, levels=e.levels, acceptance=e.acceptance,
            evidence=evidence, notes=e.notes,
        )  # fmt: skip
    values = [_plain(known.get(name), _LOG_DIGITS if name in _LOGS else _DIGITS) for name in FIELDS]
    return str(htmlsafe_json_dumps(values, separators=(",", ":"), allow_nan=False))


def _said(evidence: Evidence) -> str:
    note = getattr(evidence, "note", "")
    return f"{evidence.sentence}; {note}" if note else evidence.sentence


def _plain(value: Any, digits: int) -> Any:
    """Numbers to so many digits; null for what is not a number."""
    if isinstance(value, list | tuple):
        return [_plain(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return f"{value[:_LONGEST]}…" if isinstance(value, str) and len(value) > _LONGEST else value


def read_records(sources: Iterable[Path]) -> Iterator[Record]:
    """The records of campaigns and result files, one source after the other."""
    for source in sources:
        is_store = source.is_dir() or source.suffix == Path(FILE).suffix
        yield from _campaign(source) if is_store else _results(source)


def _campaign(folder: Path) -> Iterator[Record]:
    with Store.open(folder) as store:
        yield from store.records()


def _results(file: Path) -> Iterator[Record]:
    content = read_json(file)
    study = content if isinstance(content, dict) and "rows" in content else None
    found: Any = study["rows"] if study else content if isinstance(content, list) else [content]
    try:
        for index, entry in enumerate(found):
            yield _from_study(file, index, entry, study) if study else _alone(file, index, entry)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(file, f"not a result of `rarely estimate` or `rarely robustness`: {error!r}") from error


def _alone(file: Path, index: int, data: Any) -> Record:
    estimate = Estimate.from_json(json.dumps(data), str(file))
    name = estimate.name or file.stem
    return Record(f"{index:016x}", index, name, "", name, "", "", None, 0, "done", 1, "", estimate)


def _from_study(file: Path, index: int, row: Any, study: dict[str, Any]) -> Record:
    """A row of `rarely robustness`: an image at a radius. It waits when it was misclassified or not reached."""
    data = row["estimate"]
    estimate = None if data is None else Estimate.from_json(json.dumps(data), str(file))
    image, radius = str(row["image"]), float(row["eps"])
    noise = str(study.get("noise") or study["norm"])
    return Record(
        f"{index:016x}", index, f"{image} {radius:g}", file.stem, image, str(row["label"]), noise, radius, 0,
        "done" if estimate else "waiting", 1, "", estimate,
    )  # fmt: skip
