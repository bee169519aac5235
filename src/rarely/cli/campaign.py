"""`rarely campaign`: plan, run, look at, compare and export many problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rarely.cli import options as opt
from rarely.cli.compare import SHOWN, CsvFile, HtmlFile, deliver_comparison
from rarely.cli.help import Command, Group
from rarely.cli.output import (
    check_writable,
    deliver,
    end_interrupted,
    plain_table,
    prints,
    screen,
    write_json,
    writing,
)

if TYPE_CHECKING:
    from rarely.campaign.campaign import PlanSummary
    from rarely.campaign.store import Store

FAILURES = 1  # exit code of a run that ended with failed problems

campaign = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Run many problems from one plan: resumable, on several processes or a cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The plan.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a campaign.", show_default=False)]


class EngineName(StrEnum):
    local = "local"
    dask = "dask"


@campaign.command(cls=Command)
def plan(file: PlanFile, json_file: opt.JsonFile = None, quiet: opt.Quiet = False) -> None:
    """Check a plan and show what it would run, without running it."""
    from rarely.campaign.campaign import Campaign

    check_writable(json_file)
    summary = Campaign(file).summary()
    deliver(lambda: _show_plan(summary), prints(quiet, json_file), lambda: write_json(json_file, asdict(summary)))


@campaign.command(cls=Command)
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

    Exit code 0: all problems are done; 1: some failed; 2: it could not run, or not go on; 130: interrupted.
    """
    from rarely.campaign.campaign import Campaign, run_command
    from rarely.cli.running import view

    study = Campaign(file)
    try:
        with view(quiet) as watch:
            store = study.run(
                out, engine=engine.value, workers=workers, scheduler=scheduler, device=device, new=new,
                retry_failed=retry_failed, watch=watch,
            )  # fmt: skip
    except KeyboardInterrupt:
        again = run_command(file, out, engine.value, workers, scheduler, device)
        end_interrupted(f"; what is finished is kept. To go on: {again}")
    with store:
        if not quiet:
            _show_status(store)
        if store.counts()["failed"]:
            raise typer.Exit(FAILURES)


@campaign.command(cls=Command)
def status(folder: Folder, json_file: opt.JsonFile = None, quiet: opt.Quiet = False) -> None:
    """Show how far a campaign is, also while it runs."""
    from rarely.campaign.store import Store

    check_writable(json_file)
    with Store.open(folder) as store:
        known = {
            "name": store.header.name,
            "created": store.header.created,
            "command": store.header.command,
            "counts": store.counts(),
            "outcomes": store.outcomes(),
            "calls": store.calls(),
            "uncovered": store.uncovered,
        }
        deliver(lambda: _show_status(store), prints(quiet, json_file), lambda: write_json(json_file, known))


@campaign.command(cls=Command)
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a campaign.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder of another one.", show_default=False)],
    csv_file: CsvFile = None,
    html_file: HtmlFile = None,
    json_file: opt.JsonFile = None,
    quiet: opt.Quiet = False,
) -> None:
    """Compare the same problems in two campaigns: other networks, epochs or versions.

    Problems are matched by item, norm, radius and replicate. B / A is p in B over p in A; a difference, log p in B
    minus log p in A.
    """
    from rarely.campaign.compare import compare_stores
    from rarely.campaign.store import Store

    check_writable(csv_file, html_file, json_file)
    with Store.open(first) as a, Store.open(second) as b:
        found = compare_stores(a, b, SHOWN)
        deliver_comparison(found, (a.header.name, b.header.name), csv_file, html_file, json_file, quiet)


@campaign.command(cls=Command)
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Table to write: .csv, .json or .parquet.")],
    quiet: opt.Quiet = False,
) -> None:
    """Write all problems of a campaign as one table."""
    from rarely.campaign.store import Store
    from rarely.campaign.tables import check_suffix, export_store

    check_suffix(out)
    check_writable(out)
    with Store.open(folder) as store:
        store.check()
        with writing(out) as draft:
            rows = export_store(store, draft)
    if not quiet:
        screen().print(f"{rows:,} problems written to {out}", markup=False)


def _show_plan(summary: PlanSummary) -> None:
    from rarely.report.charts import large

    table = plain_table("group", "problems", right=[1])
    for name, count in summary.groups[:SHOWN]:
        table.add_row(name, f"{count:,}")
    if len(summary.groups) > SHOWN:
        table.add_row(f"and {len(summary.groups) - SHOWN} more", "")
    console = screen()
    console.print(table)
    for settings in summary.settings:
        console.print(f"estimator: {settings}", markup=False)
    chunks = f"{summary.chunks:,} chunk{'s' if summary.chunks > 1 else ''}"
    calls = f"about {large(summary.calls)} network calls if log p is near -20"
    console.print(f"{summary.problems:,} problems in {chunks}; {calls}")
    _show_uncovered(summary.uncovered)


def _show_status(store: Store) -> None:
    counts = store.counts()
    console = screen()
    table = plain_table(store.header.name, "problems", right=[1])
    for name, count in (*counts.items(), *((f"  {name}", count) for name, count in store.outcomes().items())):
        table.add_row(name, f"{count:,}")
    console.print(table)
    console.print(f"{store.calls():,} network calls")
    _show_uncovered(store.uncovered)
    for number, record in enumerate(store.records("failed")):
        if number == SHOWN:
            console.print(f"and {counts['failed'] - SHOWN} more failed problems", style="red")
            break
        console.print(f"failed: {record.name}: {record.reason}", style="red", markup=False, soft_wrap=True)
    if counts["waiting"]:
        console.print(f"to go on: {store.header.command}", markup=False, soft_wrap=True)


def _show_uncovered(uncovered: Sequence[str]) -> None:
    """What a resumed run would not notice."""
    for one in uncovered[:SHOWN]:
        screen().print(f"not covered by the fingerprint: {one}", markup=False, soft_wrap=True)
    if len(uncovered) > SHOWN:
        screen().print(f"and {len(uncovered) - SHOWN} more that it does not cover")
