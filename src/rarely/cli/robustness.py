"""`rarely robustness`: how often random noise changes a classifier's answer, for many images and radii."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, plain_table, prints, probability, screen, write_json
from rarely.cli.running import run_problems

if TYPE_CHECKING:
    from rarely.cli.robustness_study import Row, Summary


class Norm(StrEnum):
    inf = "inf"
    two = "2"
    one = "1"


def _numbers(text: str) -> Any:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter("numbers separated by commas are expected, as in 0.1,0.2") from None


@opt.estimating
def robustness(
    network: opt.NetworkFile,
    inputs: Annotated[
        Path,
        typer.Option(metavar="FILE|FOLDER", help="Images: .npy, .npz or a folder of pictures. Bytes become 0 to 1."),
    ],
    eps: Annotated[str, typer.Option(parser=_numbers, metavar="R[,R...]", help="Radii, in the units of the images.")],
    method: opt.Method,
    run: opt.RunSettings,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels, .npy. Default: those in the .npz, else the network's own answers."),
    ] = None,
    norm: Annotated[Norm, typer.Option(help="Noise is uniform in the ball of this norm.")] = Norm.inf,
    clip: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Range of legal pixels; the ball is cut to it."),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            parser=_numbers, metavar="M[,M...]", help="Subtracted from pixels before the network, per channel."
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            parser=_numbers, metavar="S[,S...]", help="Divides pixels before the network; radii stay in pixel units."
        ),
    ] = None,
    architecture: opt.Architecture = None,
    trust_pickle: opt.TrustPickle = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per image and radius.")
    ] = None,
    plot: opt.PlotFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Estimate how often random noise changes a classifier's answer.

    One row per image and radius; all of them run as batches. Images that are misclassified without noise are named.
    """
    from rarely.cli import robustness_study as study

    check_writable(json_file, csv_file, plot)
    estimator = method.make()
    radii: Any = eps
    rows = study.plan(
        study.open_network(network, mean, std, architecture=architecture, trust_pickle=trust_pickle),
        inputs, labels, radii, norm.value, clip,
    )  # fmt: skip
    waiting = [row for row in rows if row.problem is not None]
    if waiting:
        problems = [row.problem for row in waiting if row.problem is not None]
        outcomes = run_problems(problems, estimator, run, title="robustness", quiet=quiet)
        for i, row in enumerate(waiting):
            row.estimate = outcomes.estimates.get(i)
    summaries = study.summarise(rows, radii)
    write_json(json_file, study.as_data(rows, summaries, norm.value, clip))
    if csv_file is not None:
        _write_csv(csv_file, rows)
    if prints(quiet, json_file):
        _show(rows, summaries)
    if plot is not None and any(row.estimate for row in rows):
        study.draw_curve(rows, plot)
    if waiting:
        outcomes.exit_if_interrupted()


def _show(rows: Sequence[Row], summaries: Sequence[Summary]) -> None:
    console = screen()
    table = plain_table("image", "label", "eps", "outcome", "probability", "interval", "calls")
    for row in rows:
        if row.estimate is not None:
            chance, interval = probability(row.estimate)
            outcome, calls = row.estimate.outcome.value, f"{row.estimate.calls:,}"
        else:
            chance = interval = calls = ""
            outcome = f"misclassified as {row.predicted}" if row.misclassified else "not finished"
        table.add_row(row.name, str(row.label), f"{row.eps:g}", outcome, chance, interval, calls)
    console.print(table)
    table = plain_table("eps", "images", "median log p", "quartiles", "no violation found", "misclassified")
    for summary in summaries:
        low, middle, high = summary.quartiles
        table.add_row(
            f"{summary.eps:g}", str(summary.images), f"{middle:.2f}", f"{low:.2f} to {high:.2f}",
            f"{summary.share_below_floor:.0%}", str(summary.misclassified),
        )  # fmt: skip
    console.print(table)


def _write_csv(file: Path, rows: Sequence[Row]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(
            ["image", "label", "predicted", "eps", "outcome", "log_prob", "log_prob_std", "low", "high", "upper_bound",
             "calls"]
        )  # fmt: skip
        for row in rows:
            e = row.estimate
            known: list[object] = ["misclassified" if row.misclassified else "not finished", *[""] * 6]
            if e is not None:
                known = [
                    e.outcome.value,
                    e.log_prob,
                    e.log_prob_std,
                    e.interval.low,
                    e.interval.high,
                    e.upper_bound,
                    e.calls,
                ]
            writer.writerow([row.name, row.label, row.predicted, row.eps, *known])
