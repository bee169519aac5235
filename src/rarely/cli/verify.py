"""`rarely verify`: a VNN-COMP verdict for one instance, or for a whole benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, end_interrupted, plain_table, screen, show_error, write_file

if TYPE_CHECKING:
    from rarely.campaign.benchmark import Answer


def verify(
    network: Annotated[
        str | None,
        typer.Argument(metavar="NETWORK", help="Network: .onnx, .onnx.gz, .onnx:output, or an .rlv with both."),
    ] = None,
    prop: Annotated[str | None, typer.Argument(metavar="PROPERTY", help="Property: .vnnlib or .vnnlib.gz.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", "-t", help="Seconds for an instance; default: the benchmark's own, or 60."),
    ] = None,
    result: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict as VNN-COMP asks, with the counterexample.")
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="A benchmark: lines of network, property, timeout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a benchmark's result files go; those there are kept.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run instances again that have a result file.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    trust_pickle: opt.TrustPickle = False,
    quiet: opt.Quiet = False,
) -> None:
    """Decide a VNN-COMP instance: sat, unsat, unknown or timeout.

    sat comes with a counterexample that violates when replayed in onnxruntime, with no tolerance; unsat only with a
    proof, for the network as it runs; where rounding might matter it is "unsat in real arithmetic". A probability alone
    never decides: then the verdict is unknown, and the probability a comment on stderr.
    """
    from rarely.campaign.benchmark import Answer, decide_files
    from rarely.core.errors import InputError, RarelyError

    if instances is not None:
        if network is not None or result is not None or results is None:
            raise InputError("--instances goes with --results DIR, and without NETWORK, PROPERTY and --result")
        _run_benchmark(instances, results, timeout, force=force, seed=seed, trust_pickle=trust_pickle, quiet=quiet)
        return
    if network is None or results is not None or force:
        raise InputError("verify takes NETWORK and PROPERTY, or --instances FILE.csv with --results DIR")
    check_writable(result)
    try:
        answer = decide_files(network, prop, timeout or 60.0, seed=seed, trust_pickle=trust_pickle)
    except RarelyError:
        write_file(result, Answer("error").write)
        raise
    deliver(lambda: _say(answer), not quiet, lambda: write_file(result, answer.write))


def _say(answer: Answer) -> None:
    screen().print(answer.word)
    if answer.comment:
        screen(stderr=True).print(f"# {answer.comment}", markup=False, soft_wrap=True)


def _run_benchmark(csv_file: Path, folder: Path, timeout: float | None, *, quiet: bool, **how: Any) -> None:
    from rarely.campaign.benchmark import run_instances
    from rarely.display.progress import progress_display
    from rarely.io.formats.vnncomp import instance_name, read_instances

    instances = read_instances(csv_file)
    names = [*map(instance_name, instances), ""]
    answers: list[Answer] = []
    interrupted = False
    with progress_display(screen(stderr=True), len(instances), quiet=quiet) as display:
        task = display.add_task("verifying", total=len(instances), what=names[0])
        try:
            for answer in run_instances(instances, folder, timeout, **how):
                answers.append(answer)
                if answer.verdict == "error" and not answer.kept:
                    show_error(answer.comment)
                display.update(task, advance=1, what=names[len(answers)])
        except KeyboardInterrupt:
            interrupted = True
    if not quiet:
        _show(answers, len(instances))
    if interrupted:
        end_interrupted("; run the same command again to go on")


def _show(answers: Sequence[Answer], total: int) -> None:
    from rarely.io.formats.vnncomp import VERDICTS

    table = plain_table("verdict", "instances", "seconds", "median", "longest", right=range(1, 5))
    for kind in VERDICTS:
        times = [answer.seconds for answer in answers if answer.verdict == kind]
        if times:
            table.add_row(kind, str(len(times)), f"{sum(times):.1f}", f"{median(times):.2f}", f"{max(times):.2f}")
    screen().print(table)
    screen().print(f"{len(answers)} of {total} instances decided or tried")
