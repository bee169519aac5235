"""VNN-COMP: the verdict on one pair of files, and on every instance of a benchmark, which goes on where it stopped."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rarely.campaign.tables import from_csv, write_csv
from rarely.core.errors import FormatError, InputError, RarelyError
from rarely.io.files import is_file, read_text
from rarely.io.formats.vnncomp import Instance, instance_name, read_result, write_result
from rarely.io.problems import load_pair, problems_from
from rarely.io.replay import Counterexample, Referee
from rarely.questions.verify import verify

_SUMMARY = "results.csv"
_COLUMNS = ("instance", "verdict", "seconds", "comment")


@dataclass(frozen=True)
class Answer:
    """What was said of one instance: a verdict of VNN-COMP, and the counterexample of a `sat`."""

    verdict: str
    seconds: float = 0.0
    comment: str = ""
    counterexample: Counterexample | None = None
    kept: bool = False  # from an earlier run
    word: str = ""  # the verdict for people: of a proof, also that it holds in real arithmetic only

    def write(self, path: Path) -> None:
        found = self.counterexample
        write_result(path, self.verdict, found.x if found else None, found.y if found else None)


def decide_files(
    network: str | Path,
    prop: str | Path | None,
    timeout: float,
    *,
    seed: int = 0,
    trust_pickle: bool = False,
    device: str = "auto",
) -> Answer:
    """The verdict for one pair of files. Loading counts towards the timeout."""
    started = time.monotonic()
    loaded, specification = load_pair(network, prop, trust_pickle=trust_pickle)
    referee, problems = Referee(network, loaded, specification), problems_from(loaded, specification)
    left = max(0.1, timeout - (time.monotonic() - started))
    found = verify(problems, left, seed=seed, device=device, judge=referee.judge)
    return Answer(found.status, time.monotonic() - started, found.sentence, referee.accepted, word=found.word)


def run_instances(
    instances: Sequence[Instance], folder: Path, timeout: float | None, *, force: bool, seed: int, trust_pickle: bool
) -> Iterator[Answer]:
    """One answer per instance, in their order; each has a result file in `folder`, and a line in `results.csv`.

    `timeout` lowers those of the benchmark. What has a result file is kept unless `force`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from error
    names = [instance_name(instance) for instance in instances]
    kept = {} if force else _kept(names, folder)
    answers = dict(kept)
    for instance, name in zip(instances, names, strict=True):
        if name not in kept:
            limit = instance.timeout if timeout is None else min(timeout, instance.timeout)
            answers[name] = _decide(instance, limit, seed, trust_pickle)
            answers[name].write(folder / f"{name}.txt")
            known = (_row(one, answers[one]) for one in names if one in answers)
            draft = folder / f".{_SUMMARY}.part"
            write_csv(draft, _COLUMNS, known)
            draft.replace(folder / _SUMMARY)  # a run that is killed leaves a whole one
        yield answers[name]


def _decide(instance: Instance, timeout: float, seed: int, trust_pickle: bool) -> Answer:
    try:
        return decide_files(instance.network, instance.property, timeout, seed=seed, trust_pickle=trust_pickle)
    except RarelyError as error:
        return Answer("error", comment=str(error))


def _row(name: str, answer: Answer) -> dict[str, str]:
    told = (f"{name}.txt", answer.verdict, f"{answer.seconds:.2f}", answer.comment)
    return dict(zip(_COLUMNS, told, strict=True))


def _kept(names: Sequence[str], folder: Path) -> dict[str, Answer]:
    """What an earlier run has said, by the names of the instances."""
    told, kept = read_summary(folder / _SUMMARY), {}
    for name in names:
        file = folder / f"{name}.txt"
        if file.exists():
            seconds, comment = told.get(file.name, (0.0, ""))
            kept[name] = Answer(read_result(file).verdict, seconds, comment, kept=True)
    return kept


def read_summary(file: Path) -> dict[str, tuple[float, str]]:
    """Seconds and comment of each instance, by the name of its result file; nothing where there is no summary."""
    if not is_file(file):
        return {}
    try:
        rows = csv.DictReader(io.StringIO(read_text(file), newline=""))
        return {from_csv(row["instance"]): (float(row["seconds"]), from_csv(row["comment"])) for row in rows}
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        reason = f"not a summary that `rarely verify --instances` wrote ({error!r:.200}); remove it, or add --force"
        raise FormatError(file, reason) from error
