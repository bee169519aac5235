"""`rarely verify --instances`: every instance of a VNN-COMP benchmark, with a table at the end."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import typer

from rarely.cli.output import plain_table, screen
from rarely.cli.running import progress_display
from rarely.cli.verify import Instance as Verdict
from rarely.cli.verify import decide_files
from rarely.core.errors import InputError, RarelyError
from rarely.io.formats.vnncomp import VERDICTS, Instance, read_instances, read_result

SUMMARY = "results.csv"


def run_benchmark(
    instances_csv: Path,
    folder: Path,
    timeout: float | None,
    *,
    force: bool,
    seed: int,
    trust_pickle: bool,
    quiet: bool,
) -> None:
    """Write one result file per instance and `results.csv`; `timeout` lowers those of the benchmark."""
    instances = read_instances(instances_csv)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from error
    seconds = _known_seconds(folder / SUMMARY)
    verdicts: dict[str, Verdict] = {}
    interrupted = False
    with progress_display(quiet, len(instances)) as display:
        task = display.add_task("verifying", total=len(instances), what="")
        try:
            for instance in instances:
                name = result_name(instance)
                file = folder / name
                display.update(task, what=Path(name).stem)
                if file.exists() and not force:
                    verdicts[name] = Verdict(read_result(file).verdict, seconds.get(name, 0.0))
                else:
                    limit = instance.timeout if timeout is None else min(timeout, instance.timeout)
                    verdicts[name] = _decide(instance, limit, seed, trust_pickle)
                    verdicts[name].write(file)
                    _write_summary(folder / SUMMARY, verdicts)
                display.advance(task)
        except KeyboardInterrupt:
            interrupted = True
    if not quiet:
        _show(verdicts, len(instances))
    if interrupted:
        screen(stderr=True).print("interrupted; run the same command again to go on", style="yellow")
        raise typer.Exit(130)


def result_name(instance: Instance) -> str:
    network, prop = (Path(path.name.removesuffix(".gz")).stem for path in (instance.network, instance.property))
    return f"{network}_{prop}.txt"


def _decide(instance: Instance, timeout: float, seed: int, trust_pickle: bool) -> Verdict:
    try:
        return decide_files(instance.network, instance.property, timeout, seed=seed, trust_pickle=trust_pickle)
    except RarelyError as error:
        screen(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return Verdict("error", 0.0, None, str(error))


def _known_seconds(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {row["instance"]: float(row["seconds"]) for row in csv.DictReader(lines)}


def _write_summary(file: Path, verdicts: dict[str, Verdict]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["instance", "verdict", "seconds", "comment"])
        writer.writerows([name, v.verdict, f"{v.seconds:.2f}", v.comment] for name, v in verdicts.items())


def _show(verdicts: dict[str, Verdict], total: int) -> None:
    table = plain_table("verdict", "instances", "seconds", "median", "longest")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in VERDICTS:
        times = [v.seconds for v in verdicts.values() if v.verdict == kind]
        if times:
            table.add_row(kind, str(len(times)), f"{sum(times):.1f}", f"{median(times):.2f}", f"{max(times):.2f}")
    screen().print(table)
    screen().print(f"{len(verdicts)} of {total} instances decided or tried")
