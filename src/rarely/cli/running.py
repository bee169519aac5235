"""Work that shows its progress: problems in batches, so that Ctrl-C loses nothing that is known, and campaigns."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rarely.cli.output import end_interrupted, screen

if TYPE_CHECKING:
    from rich.console import Console

    from rarely.campaign.driver import Standing
    from rarely.cli.options import RunSettings
    from rarely.core.problem import Problem
    from rarely.methods import Estimator, Progress
    from rarely.questions.estimate import Running
    from rarely.questions.result import Estimate

_SECONDS_BETWEEN_LINES = 10.0  # of a campaign that no terminal shows
_TOLD = 100  # problems up to which each is told as soon as it is finished
_NOT_BEGUN = "not begun"


@dataclass
class Outcomes:
    """What is known of each problem: its estimate, or where it stood when the run was interrupted."""

    problems: Sequence[Problem]
    estimates: dict[int, Estimate] = field(default_factory=dict)
    standing: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def finished(self) -> list[Estimate]:
        """What is known in numbers, maybe not to the end."""
        return [self.estimates[row] for row in sorted(self.estimates)]

    def stood(self) -> dict[str, str]:
        """The problems that are not finished, by name, and where they stood."""
        return {self.problems[row].name or "the problem": text for row, text in self.standing.items()}

    def exit_if_interrupted(self) -> None:
        """Say where the unfinished problems stood, and end as a shell expects after Ctrl-C."""
        if not self.interrupted:
            return
        known = [f"{name}: {text}" for name, text in self.stood().items()]
        finished = len(self.problems) - len(self.standing)
        end_interrupted(f"; {finished} of {len(self.problems)} problems were finished", *known)


def run_problems(
    problems: Sequence[Problem], estimator: Estimator | None, settings: RunSettings, *, title: str, quiet: bool
) -> Outcomes:
    """Estimate all problems; `settings.timeout` is for all of them together.

    What is answered while others are not is told at once. Ctrl-C ends the run as a time limit does; a second one ends
    it where it is.
    """
    from rarely.display.progress import describe, progress_display
    from rarely.questions.estimate import Running

    outcomes = Outcomes(problems)
    if not problems:
        return outcomes
    running = Running(problems, estimator, **settings.keywords())
    outcomes.standing = dict.fromkeys(range(len(problems)), _NOT_BEGUN)
    console = screen(stderr=True)
    with progress_display(console, len(problems), quiet=quiet) as display, _until_interrupted(running, console):
        task = display.add_task(title, total=len(problems), what="")
        try:
            for event in running:
                _note(outcomes, running, event, None if quiet else console)
                display.update(task, completed=len(outcomes.estimates), what=describe(event, len(event.rows)))
        except KeyboardInterrupt:
            outcomes.interrupted = True
    outcomes.interrupted |= running.spend.stopped
    for row, estimate in enumerate(running.results):
        unfinished = estimate is not None and "interrupted" in estimate.provenance
        if estimate is None or (unfinished and not estimate.calls):  # it had not begun
            continue
        outcomes.estimates[row] = estimate
        if not unfinished:
            outcomes.standing.pop(row, None)
    return outcomes


def _note(outcomes: Outcomes, running: Running, event: Progress, console: Console | None) -> None:
    """Keep where every problem stands, and tell what is finished while others go on, and what will take long."""
    if not running.spend.stopped:
        outcomes.standing.update(zip(event.rows.tolist(), _standings(event), strict=True))
    lines = [f"{event.stage}: {event.forecast}"] if event.forecast else []
    for row, estimate in enumerate(running.results):
        if estimate is not None and row not in outcomes.estimates and not running.spend.stopped:
            outcomes.estimates[row] = estimate
            outcomes.standing.pop(row, None)
            if len(running.results) <= _TOLD:
                lines.append(str(estimate))
    if console is not None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


@contextmanager
def _until_interrupted(running: Running, console: Console) -> Iterator[None]:
    """Ctrl-C has a run say what it knows; after that it is what it always was."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        running.stop()
        console.print("ending when the network calls under way return; Ctrl-C again ends at once", style="yellow")

    before = signal.getsignal(signal.SIGINT)
    usable = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler
    if usable:
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if usable:
            signal.signal(signal.SIGINT, before)


def _standings(event: Progress) -> list[str]:
    from rarely.questions.result import scientific

    lines = []
    for level, log_prob in zip(event.level.tolist(), event.log_prob.tolist(), strict=True):
        if log_prob == -math.inf:
            lines.append("no violation so far")
        elif level >= 0:
            lines.append(f"violated, p about {scientific(log_prob)} so far, unfinished")
        else:
            lines.append(f"no violation so far; scores above {level:.4g} have p about {scientific(log_prob)}")
    return lines


@contextmanager
def view(quiet: bool) -> Iterator[Callable[[Standing], None]]:
    """A function to be called with every standing, for as long as the campaign runs."""
    console = screen(stderr=True)
    if quiet:
        yield lambda standing: None
    elif console.is_terminal:
        with _live() as update:
            yield update
    else:
        yield _lines()


@contextmanager
def _live() -> Iterator[Callable[[Standing], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.fields[words]}")
    columns = (BarColumn(30), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), words)
    with Progress(*columns, console=screen(stderr=True), transient=True) as progress:
        task = progress.add_task("campaign", total=None, words="starting workers")

        def update(standing: Standing) -> None:
            finished = standing.done + standing.failed
            progress.update(task, total=standing.total, completed=finished, words=sentence(standing))

        yield update


def _lines() -> Callable[[Standing], None]:
    """A line at the start, at the end, and every few seconds between."""
    last = -_SECONDS_BETWEEN_LINES

    def update(standing: Standing) -> None:
        nonlocal last
        ended = standing.done + standing.failed == standing.total
        if ended or time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            screen(stderr=True).print(sentence(standing), markup=False, soft_wrap=True)

    return update


def sentence(standing: Standing) -> str:
    parts = [f"{standing.done:,} of {standing.total:,} done", standing.waiting or f"{standing.running:,} running"]
    if standing.failed:
        late = f" ({standing.late:,} out of time)" if standing.late else ""
        parts.append(f"{standing.failed:,} failed{late}")
    if standing.calls:
        parts.append(f"{standing.calls_per_second:,.0f} calls/s")
    left = standing.seconds_left
    if left and not standing.waiting:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """As a person would say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
