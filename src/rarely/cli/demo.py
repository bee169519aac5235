"""`rarely demo`: the shipped problems, with figures, in under a minute and without a download."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_json
from rarely.cli.running import run_problems

if TYPE_CHECKING:
    from rarely.demo import DemoProblem
    from rarely.questions.result import Estimate


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures and results.")] = Path("rarely-demo"),
    seed: opt.Seed = 0,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Run the shipped problems: a sign classifier under noise, and a cruise controller's braking.

    Prints what was found and leaves figures behind. Takes less than a minute and downloads nothing.
    """
    from rarely.core.errors import InputError
    from rarely.demo import run

    check_writable(json_file)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; the demo writes into a folder")
    started = time.monotonic()
    questions, problems = run.problems()
    outcomes = run_problems(problems, None, opt.RunSettings(seed=seed), title="demo", quiet=quiet)
    outcomes.exit_if_interrupted()
    estimates = outcomes.finished()
    shown, seconds = prints(quiet, json_file), time.monotonic() - started
    deliver(
        lambda: _show(questions, estimates), shown,
        lambda: write_json(json_file, estimates), lambda: _write(questions, estimates, out, seconds, shown=shown),
    )  # fmt: skip


def _write(
    questions: Sequence[DemoProblem], estimates: Sequence[Estimate], out: Path, seconds: float, *, shown: bool
) -> None:
    from rarely.core.errors import InputError
    from rarely.demo import run

    try:
        written = run.write(questions, estimates, out)
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror or error}") from error
    if shown:
        screen().print(f"{len(estimates)} questions answered in {seconds:.0f} s. Written:")
        for file in written:
            screen().print(f"  {file}", markup=False)


def _show(questions: Sequence[DemoProblem], estimates: Sequence[Estimate]) -> None:
    from rich.text import Text

    from rarely.questions.showing import in_words

    table = plain_table("question", "answer", "probability", "95% interval", "calls", "s")
    table.show_lines = True
    for column in table.columns[2:]:
        column.justify, column.no_wrap = "right", True
    for question, estimate in zip(questions, estimates, strict=True):
        chance, interval = estimate.cells
        table.add_row(
            Text.assemble((question.name, "bold"), "\n", question.description), in_words(estimate), chance,
            interval.replace(" to ", "\n"), f"{estimate.calls:,}", f"{estimate.seconds:.0f}",
        )  # fmt: skip
    screen().print(table)
