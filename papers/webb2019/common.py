"""What the experiments share: options, a table that survives interruption, progress, the machine in words.

Needs torch and numpy alone; rich makes the progress prettier.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch

import rarely

RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, object]


# Options -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """One run of one experiment."""

    name: str
    args: argparse.Namespace
    data: Path
    out: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def quick(self) -> bool:
        return bool(self.args.quick)

    @property
    def device(self) -> str:
        return str(self.args.device)

    @property
    def left(self) -> float:
        """Seconds that `--seconds` leaves."""
        return math.inf if self.args.seconds is None else self.args.seconds - (time.monotonic() - self.started)

    @property
    def late(self) -> bool:
        """Whether `--seconds` are over: begin nothing new, the next run goes on from here."""
        return self.left <= 0

    def file(self, *parts: str) -> Path:
        """A file of the data folder, or an end with a sentence."""
        path = self.data.joinpath(*parts)
        if not path.exists():
            stop(f"{path} is not there; give the folder with the data by --data or RARELY_DATA")
        return path

    def fill(self, settings: Mapping[str, object]) -> None:
        """Values of the options that were not given."""
        for name, value in settings.items():
            if getattr(self.args, name) is None:
                setattr(self.args, name, value)

    def mine(self, units: Iterable[Any]) -> list[Any]:
        """The units that fall to this process under `--share`."""
        part, parts = self.args.share
        return [unit for i, unit in enumerate(units) if i % parts == part - 1]


def start(
    name: str,
    doc: str | None,
    argv: Sequence[str] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> Context:
    """Parse the options that every experiment has, and its own; leave a note of the machine in the output folder."""
    parser = argparse.ArgumentParser(f"python -m papers.webb2019.{name}", description=doc)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, help="folder with the data (default: $RARELY_DATA)")
    parser.add_argument("--out", type=Path, help="folder for tables and figures (default: beside this script)")
    parser.add_argument("--quick", action="store_true", help="small settings: a minute or two on two cores")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--figures-only", action="store_true", help="draw what the tables hold, run nothing")
    parser.add_argument("--seconds", type=float, help="stop cleanly after this long; the same command goes on")
    parser.add_argument(
        "--share", type=_share, default=(1, 1), metavar="I/N",
        help="do the I-th of N parts, so that N processes can share a GPU and one table",
    )  # fmt: skip
    if options is not None:
        options(parser)
    args = parser.parse_args(argv)
    data = args.data or Path(os.environ.get("RARELY_DATA") or "data")
    out = args.out or (RESULTS / "quick" / name if args.quick else RESULTS / name)
    out.mkdir(parents=True, exist_ok=True)
    context = Context(name, args, data, out)
    if not args.figures_only:
        _stamp(context)
    return context


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N, as in 2/4")
    return int(part), int(parts)


def stop(sentence: str) -> NoReturn:
    """End with a sentence and exit status 2."""
    print(f"webb2019: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def machine(device: str) -> dict[str, str]:
    where = rarely.Execution(device=device).resolve()
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"{os.cpu_count()} CPU cores"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "rarely": rarely.__version__}
    return {"machine": name, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", **versions}


def _stamp(context: Context) -> None:
    settings = {key: str(value) for key, value in vars(context.args).items()}
    line = json.dumps({"experiment": context.name, **machine(context.device), "settings": settings})
    with (context.out / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


# Tables --------------------------------------------------------------------------------------------------------------


class Table:
    """A CSV file that grows by whole units of work. A unit that is there when the file is opened need not run again.

    The rows of a unit are written by one call and forced to the disk, so that a killed run loses its last unit at
    most, and several processes can append to one file.
    """

    def __init__(self, path: Path, columns: Sequence[str], unit: Sequence[str]) -> None:
        self.path, self.columns, self._unit = path, list(columns), list(unit)
        self.rows: list[dict[str, str]] = []
        if not path.exists():
            self._create()
        self._read()
        self._done = {self._key(row) for row in self.rows}

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        header, *lines = text.splitlines()
        if header.split(",") != self.columns:
            stop(f"{self.path} has other columns than this version writes; move it away and run again")
        torn = not text.endswith("\n")
        self.rows = list(csv.DictReader(io.StringIO("\n".join([header, *(lines[:-1] if torn else lines)]))))
        if torn:  # a crash in the middle of a write: its unit is the last one, and runs again
            last = self._key(self.rows[-1]) if self.rows else ()
            self.rows = [row for row in self.rows if self._key(row) != last]
            self.path.unlink()
            self._create()
            self._append(self.rows)

    def _create(self) -> None:
        """The file with its header, complete when it appears: another process may look for it."""
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(",".join(self.columns) + "\n", encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, self.path)
        draft.unlink()

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(_text(row[name]) for name in self._unit)

    def has(self, **unit: object) -> bool:
        return self._key(unit) in self._done

    def add(self, rows: Sequence[Row]) -> None:
        """The rows of one unit, all at once."""
        written = [{name: _text(row[name]) for name in self.columns} for row in rows]
        self._append(written)
        self.rows += written
        self._done |= {self._key(row) for row in written}

    def _append(self, rows: Sequence[Row]) -> None:
        buffer = io.StringIO()
        csv.DictWriter(buffer, self.columns, lineterminator="\n").writerows(rows)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, buffer.getvalue().encode())
            os.fsync(file)
        finally:
            os.close(file)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table, none when it is not there yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(str(value) for value in row) + " |" for row in rows)])


# Progress ------------------------------------------------------------------------------------------------------------


class Display:
    """`done` after each unit of work, `note` inside a long one (it can be the `progress` of `rarely.estimate`)."""

    def __init__(self, title: str, total: int, show: Callable[[int, str], None]) -> None:
        self.title, self.total, self.finished, self._show = title, total, 0, show

    def done(self, text: str = "") -> None:
        self.finished += 1
        self._show(self.finished, text)

    def note(self, event: object) -> None:
        stage, active, calls = (getattr(event, name, None) for name in ("stage", "active", "calls"))
        text = str(event) if stage is None else f"{stage}, {active} running, {calls:.2g} calls"
        self._show(self.finished, text)


@contextmanager
def progress(title: str, total: int) -> Iterator[Display]:
    """A bar where rich and a terminal are there, else a line per unit and every ten seconds."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        rich = False
    else:
        rich = sys.stderr.isatty()
    if not rich:
        yield Display(title, total, _plain_lines(title, total))
        return
    from rich.console import Console

    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, TextColumn("{task.fields[text]}"), console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=total, text="")
        yield Display(title, total, lambda done, text: shown.update(task, completed=done, text=text))


def _plain_lines(title: str, total: int) -> Callable[[int, str], None]:
    started = last = time.monotonic()
    seen = -1

    def show(done: int, text: str) -> None:
        nonlocal last, seen
        now = time.monotonic()
        if done > seen or now - last > 10:
            print(f"{title} [{done}/{total}] {now - started:.0f} s  {text}", file=sys.stderr, flush=True)
            last, seen = now, max(seen, done)

    return show


# Numbers -------------------------------------------------------------------------------------------------------------


def log_mean(values: Sequence[float]) -> tuple[float, float]:
    """log of the mean of exp(values), and the standard error of that log over the values (0 for a single one)."""
    top = max(values)
    if top == -math.inf:
        return -math.inf, 0.0
    scaled = [math.exp(value - top) for value in values]
    n, mean = len(scaled), sum(scaled) / len(scaled)
    variance = sum((s - mean) ** 2 for s in scaled) / (n - 1) if n > 1 else 0.0
    return top + math.log(mean), math.sqrt(variance / n) / mean
