"""`rarely campaign`: plan, run, look at, compare and export many problems."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, end_interrupted, plain_table, prints, screen, write_json

if TYPE_CHECKING:
    from rarely.campaign.compare import Comparison, Pair
    from rarely.campaign.store import Store

FAILURES = 1  # exit code of a run that ended with failed problems
_SHOWN = 20  # lines of a comparison on the screen

campaign = typer.Typer(
    no_args_is_help=True,
    help="Run many problems from one plan: resumable, on several processes or a cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a campaign.", show_default=False)]


class EngineName(StrEnum):
    local = "local"
    dask = "dask"


@campaign.command()
def plan(file: PlanFile, json_file: opt.JsonFile = None, quiet: opt.Quiet = False) -> None:
    """Check a plan and show what it would run, without running it."""
    from rarely.campaign.campaign import Campaign
    from rarely.report.charts import large

    summary = Campaign(file).summary()
    write_json(json_file, asdict(summary))
    if not prints(quiet, json_file):
        return
    table = plain_table("group", "problems", right=[1])
    for name, count in summary.groups[:_SHOWN]:
        table.add_row(name, f"{count:,}")
    if len(summary.groups) > _SHOWN:
        table.add_row(f"and {len(summary.groups) - _SHOWN} more", "")
    console = screen()
    console.print(table)
    for settings in summary.settings:
        console.print(f"estimator: {settings}", markup=False)
    chunks = f"{summary.chunks:,} chunk{'s' if summary.chunks > 1 else ''}"
    calls = f"about {large(summary.calls)} network calls if log p is near -20"
    console.print(f"{summary.problems:,} problems in {chunks}; {calls}")


@campaign.command()
def run(
    file: PlanFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results; run again with it to go on.")],
    engine: Annotated[EngineName, typer.Option(help="Processes on this machine, or Dask.")] = EngineName.local,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; default: one for each core.", show_default=False)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A running Dask cluster, as in tcp://host:8786.")
    ] = None,
    device: opt.Device = "auto",
    new: Annotated[bool, typer.Option("--new", help="Start again; an older store is kept under another name.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed problems again.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a plan, or go on with it: what is finished is never done twice.

    Exit code 0: all problems are done; 1: some failed; 130: interrupted.
    """
    from rarely.campaign.campaign import Campaign
    from rarely.cli.running import view

    study = Campaign(file)
    try:
        with view(quiet) as watch:
            store = study.run(
                out, engine=engine.value, workers=workers, scheduler=scheduler, device=device, new=new,
                retry_failed=retry_failed, watch=watch,
            )  # fmt: skip
    except KeyboardInterrupt:
        given = {"--engine": engine, "--workers": workers, "--scheduler": scheduler, "--device": device}
        told = [(name, str(value)) for name, value in given.items() if value not in ("local", "auto", None)]
        again = shlex.join(["rarely", "campaign", "run", str(file), "--out", str(out), *chain(*told)])
        end_interrupted(f"; what is finished is kept. To go on: {again}")
    with store:
        if not quiet:
            _show_status(store)
        if store.counts()["failed"]:
            raise typer.Exit(FAILURES)


@campaign.command()
def status(folder: Folder, json_file: opt.JsonFile = None, quiet: opt.Quiet = False) -> None:
    """Show how far a campaign is, also while it runs."""
    from rarely.campaign.store import Store

    with Store.open(folder) as store:
        write_json(
            json_file,
            {
                "name": store.header.name,
                "created": store.header.created,
                "command": store.header.command,
                "counts": store.counts(),
                "outcomes": store.outcomes(),
                "calls": store.calls(),
            },
        )
        if prints(quiet, json_file):
            _show_status(store)


@campaign.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a campaign.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder of another one.", show_default=False)],
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write one line per pair.")] = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Compare the same problems in two campaigns: other networks, epochs or versions.

    Problems are matched by item, norm, radius and replicate. A difference is log p in B minus log p in A.
    """
    from rarely.campaign.compare import compare_stores
    from rarely.campaign.store import Store
    from rarely.campaign.tables import write_csv

    check_writable(csv_file, json_file)
    with Store.open(first) as a, Store.open(second) as b:
        found = compare_stores(a, b)
    write_json(json_file, _as_data(found))
    if csv_file is not None:
        rows = [_pair_row(pair) for pair in found.pairs]
        write_csv(csv_file, list(rows[0]) if rows else ["problem"], rows)
    if prints(quiet, json_file):
        _show_comparison(found)


@campaign.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Table to write: .csv, .json or .parquet.")],
    quiet: opt.Quiet = False,
) -> None:
    """Write all problems of a campaign as one table."""
    from rarely.campaign.store import Store
    from rarely.campaign.tables import export_store

    check_writable(out)
    with Store.open(folder) as store:
        rows = export_store(store, out)
    if not quiet:
        screen().print(f"{rows:,} problems written to {out}", markup=False)


def _show_status(store: Store) -> None:
    counts = store.counts()
    console = screen()
    table = plain_table(store.header.name, "problems", right=[1])
    for name, count in (*counts.items(), *((f"  {name}", count) for name, count in store.outcomes().items())):
        table.add_row(name, f"{count:,}")
    console.print(table)
    console.print(f"{store.calls():,} network calls")
    for number, record in enumerate(store.records("failed")):
        if number == _SHOWN:
            console.print(f"and {counts['failed'] - _SHOWN} more failed problems", style="red")
            break
        console.print(f"failed: {record.name}: {record.reason}", style="red", markup=False, soft_wrap=True)
    if counts["waiting"]:
        console.print(f"to go on: {store.header.command}", markup=False, soft_wrap=True)


def _show_comparison(found: Comparison) -> None:
    console = screen()
    console.print(
        f"{len(found.pairs):,} problems matched and done in both; {found.unfinished:,} matched but not done; "
        f"{found.only_a:,} only in A, {found.only_b:,} only in B"
    )
    table = plain_table("problem", "log p in A", "log p in B", "difference", f"{found.confidence:.0%} interval", "")
    ranked = sorted(found.pairs, key=lambda pair: -abs(pair.difference) if pair.difference is not None else -math.inf)
    for pair in ranked[:_SHOWN]:
        change, interval = "", ""
        if pair.difference is not None:
            change, interval = f"{pair.difference:+.2f}", f"{pair.low:+.2f} to {pair.high:+.2f}"
        table.add_row(pair.name, _log_prob(pair.a), _log_prob(pair.b), change, interval, pair.verdict)
    console.print(table)
    if len(ranked) > _SHOWN:
        console.print(f"the {_SHOWN} largest differences of {len(ranked):,}; all of them with --csv or --json")
    for verdict, count in found.verdicts().items():
        console.print(f"{count:,} {verdict}")
    for name, spread in (("mean", found.mean), ("median", found.median)):
        if spread is not None:
            console.print(
                f"{name} difference of log p {spread.value:+.3f}, {found.confidence:.0%} in "
                f"[{spread.low:+.3f}, {spread.high:+.3f}] over problems"
            )


def _log_prob(record: Any) -> str:
    value: float = record.estimate.log_prob
    return f"{value:.2f}" if math.isfinite(value) else record.estimate.outcome.value


def _pair_row(pair: Pair) -> dict[str, Any]:
    a, b = pair.a.estimate, pair.b.estimate
    assert a is not None
    assert b is not None
    return {
        "problem": pair.name,
        "network_a": pair.a.network,
        "network_b": pair.b.network,
        "outcome_a": a.outcome.value,
        "outcome_b": b.outcome.value,
        "log_prob_a": a.log_prob,
        "log_prob_b": b.log_prob,
        "difference": pair.difference,
        "low": pair.low,
        "high": pair.high,
        "verdict": pair.verdict,
    }


def _as_data(found: Comparison) -> dict[str, Any]:
    return {
        "schema": 1,
        "confidence": found.confidence,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "unfinished": found.unfinished,
        "verdicts": found.verdicts(),
        "mean": found.mean and asdict(found.mean),
        "median": found.median and asdict(found.median),
        "pairs": [_pair_row(pair) for pair in found.pairs],
    }
