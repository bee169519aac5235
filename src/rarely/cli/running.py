"""Running problems in batches with a progress display, so that Ctrl-C loses nothing that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rarely.cli.output import end_interrupted, screen

if TYPE_CHECKING:
    from rich.progress import Progress as Display

    from rarely.cli.options import RunSettings
    from rarely.core.problem import Problem
    from rarely.methods import Estimator, Progress
    from rarely.questions.result import Estimate


@dataclass
class Outcomes:
    """What is known of each problem: its estimate, or where it stood when the run was interrupted."""

    problems: Sequence[Problem]
    estimates: dict[int, Estimate] = field(default_factory=dict)
    standing: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def finished(self) -> list[Estimate]:
        return [self.estimates[row] for row in sorted(self.estimates)]

    def exit_if_interrupted(self) -> None:
        """Say where the unfinished problems stood, and end as a shell expects after Ctrl-C."""
        if not self.interrupted:
            return
        known = [f"{self.problems[row].name or 'the problem'}: {text}" for row, text in self.standing.items()]
        end_interrupted(f"; {len(self.estimates)} of {len(self.problems)} problems were finished", *known)


def run_problems(
    problems: Sequence[Problem], estimator: Estimator | None, settings: RunSettings, *, title: str, quiet: bool
) -> Outcomes:
    """Estimate all problems; `settings.timeout` is for all of them together."""
    from rarely.questions.estimate import Running

    outcomes = Outcomes(problems)
    if not problems:
        return outcomes
    running = Running(problems, estimator, **settings.keywords())
    with progress_display(quiet, len(problems)) as display:
        task = display.add_task(title, total=len(problems), what="")
        try:
            for event in running:
                outcomes.standing.update(zip(event.rows.tolist(), _standings(event), strict=True))
                finished = sum(result is not None for result in running.results)
                display.update(task, completed=finished, what=_describe(event, len(event.rows)))
        except KeyboardInterrupt:
            outcomes.interrupted = True
    for row, estimate in enumerate(running.results):
        if estimate is not None:
            outcomes.estimates[row] = estimate
            outcomes.standing.pop(row, None)
    return outcomes


def progress_display(quiet: bool, total: int) -> Display:
    """A line on stderr while work goes on, and only on a terminal. A bar needs several things to count."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = screen(stderr=True)
    counted = (BarColumn(20), MofNCompleteColumn()) if total > 1 else ()
    what = TextColumn("{task.fields[what]}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn(), what)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def _describe(event: Progress, problems: int) -> str:
    lowest = float(event.log_prob.min())
    reached = f"log p {lowest:.1f}" if math.isfinite(lowest) else "no violation yet"
    running = f"{event.active} of {problems} running, " if problems > 1 else ""
    return f"{event.stage}: {running}{reached}, {event.calls:,} calls"


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
