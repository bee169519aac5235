"""`rarely compare`: two files of results side by side; and what it shares with `rarely campaign compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, plain_table, prints, screen, write_file, write_json

if TYPE_CHECKING:
    from rarely.campaign.compare import Comparison, Pair

SHOWN = 20  # lines of a comparison, or of anything else, on the screen
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per pair.")]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page of it: one file that opens offline.")
]
_RESULT = "JSON written by `rarely estimate` or `rarely robustness`."


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help=_RESULT, show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.", show_default=False)],
    csv_file: CsvFile = None,
    html_file: HtmlFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Compare two results, or two lists of them: which differ, and how many times as probable B is.

    Problems are matched by name, or by their place where no name is the same. `rarely campaign compare` does the same
    for campaigns.
    """
    from rarely.campaign.compare import compare_records
    from rarely.core.errors import InputError
    from rarely.report.tally import read_records

    for file in (first, second):
        if file.is_dir():
            raise InputError(f"{file} is a folder; of two campaigns: rarely campaign compare {first} {second}")
    check_writable(csv_file, html_file, json_file)
    a, b = (list(read_records([file])) for file in (first, second))
    found = compare_records(a, b, SHOWN)
    deliver_comparison(found, (str(first), str(second)), csv_file, html_file, json_file, quiet)


def deliver_comparison(
    found: Comparison, names: tuple[str, str], csv_file: Path | None, html_file: Path | None, json_file: Path | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Show and write a comparison."""
    from rarely.campaign.tables import write_csv
    from rarely.report.comparison import write_comparison

    deliver(
        lambda: _show(found, names), prints(quiet, json_file),
        lambda: write_json(json_file, _as_data(found), pairs=map(_row, found.matches.pairs())),
        lambda: write_file(csv_file, lambda file: write_csv(file, _PAIR, map(_row, found.matches.pairs()))),
        lambda: write_file(html_file, lambda file: write_comparison(file, found, names)),
    )  # fmt: skip


def _show(found: Comparison, names: tuple[str, str]) -> None:
    from rich.markup import escape

    from rarely.campaign.compare import in_a_sentence, ratio

    console = screen()
    console.print(f"A: {names[0]}, B: {names[1]}", markup=False, soft_wrap=True)
    console.print(in_a_sentence(found), markup=False, soft_wrap=True)
    table = plain_table("problem", "p in A", "p in B", "B / A", f"{found.confidence:.0%} interval", "")
    for pair in found.largest:
        times, interval = "", ""
        if pair.difference is not None and pair.low is not None and pair.high is not None:
            times, interval = ratio(pair.difference), f"{ratio(pair.low)} to {ratio(pair.high)}"
        chances = (record.estimate.cells[0] for record in (pair.a, pair.b) if record.estimate is not None)
        table.add_row(escape(pair.name), *chances, times, interval, pair.verdict)
    console.print(table)
    if found.done > SHOWN:
        console.print(f"the {SHOWN} largest differences of {found.done:,}; all of them with --csv, --html or --json")
    if found.undefined:
        console.print(f"{found.undefined:,} without a difference, which stand last: one side or both have no number")
    for verdict, count in found.verdicts.items():
        console.print(f"{count:,} {verdict}")
    for name, spread in (("mean", found.mean), ("median", found.median)):
        if spread is not None:
            console.print(
                f"{name} difference of log p {spread.value:+.3f}, {found.confidence:.0%} in "
                f"[{spread.low:+.3f}, {spread.high:+.3f}] over problems: a factor of {ratio(spread.value)}"
            )


_PAIR = (
    "problem", "network_a", "network_b", "outcome_a", "outcome_b", "log_prob_a", "log_prob_b", "difference", "low",
    "high", "verdict",
)  # fmt: skip


def _row(pair: Pair) -> dict[str, Any]:
    a, b = pair.a.estimate, pair.b.estimate
    assert a is not None
    assert b is not None
    told = (
        pair.name, pair.a.network, pair.b.network, a.outcome.value, b.outcome.value, a.log_prob, b.log_prob,
        pair.difference, pair.low, pair.high, pair.verdict,
    )  # fmt: skip
    return dict(zip(_PAIR, told, strict=True))


def _as_data(found: Comparison) -> dict[str, Any]:
    return {
        "schema": 1,
        "confidence": found.confidence,
        "only_a": found.matches.only_a,
        "only_b": found.matches.only_b,
        "unfinished": found.unfinished,
        "undefined": found.undefined,
        "verdicts": found.verdicts,
        "mean": found.mean and asdict(found.mean),
        "median": found.median and asdict(found.median),
    }
