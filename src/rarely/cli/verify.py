"""`rarely verify`: a VNN-COMP verdict for one instance, or for a whole benchmark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rarely.cli.output import screen

if TYPE_CHECKING:
    from rarely.io.replay import Counterexample


@dataclass(frozen=True)
class Instance:
    """What was said of one instance: a verdict of VNN-COMP, and the counterexample of a `sat`."""

    verdict: str
    seconds: float
    counterexample: Counterexample | None = None
    comment: str = ""

    def write(self, path: Path) -> None:
        from rarely.io.formats.vnncomp import write_result

        found = self.counterexample
        write_result(path, self.verdict, found.x if found else None, found.y if found else None)


def verify(
    network: Annotated[
        str | None, typer.Argument(metavar="NETWORK", help="Network: .onnx, .onnx.gz, or an .rlv file with both.")
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
    trust_pickle: Annotated[
        bool, typer.Option("--trust-pickle", help="Open pickled files. That can run any code in them.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Decide a VNN-COMP instance: sat, unsat, unknown or timeout.

    sat comes with a counterexample that violates when replayed in onnxruntime, with no tolerance; unsat only with a
    proof. A probability alone never decides: then the verdict is unknown, and the probability a comment on stderr.
    """
    from rarely.core.errors import InputError, RarelyError

    if instances is not None:
        from rarely.cli.benchmark import run_benchmark

        if network is not None or result is not None or results is None:
            raise InputError("--instances goes with --results DIR, and without NETWORK, PROPERTY and --result")
        run_benchmark(instances, results, timeout, force=force, seed=seed, trust_pickle=trust_pickle, quiet=quiet)
        return
    if network is None or results is not None or force:
        raise InputError("verify takes NETWORK and PROPERTY, or --instances FILE.csv with --results DIR")
    try:
        verdict = decide_files(network, prop, timeout or 60.0, seed=seed, trust_pickle=trust_pickle)
    except RarelyError:
        if result is not None:
            Instance("error", 0.0).write(result)
        raise
    if result is not None:
        verdict.write(result)
    if not quiet:
        screen().print(verdict.verdict)
        if verdict.comment:
            screen(stderr=True).print(f"# {verdict.comment}", markup=False, soft_wrap=True)


def decide_files(
    network: str | Path, prop: str | Path | None, timeout: float, *, seed: int = 0, trust_pickle: bool = False
) -> Instance:
    """The verdict for one pair of files. Loading counts towards the timeout."""
    from rarely.io.problems import load_pair, problems_from
    from rarely.io.replay import Referee
    from rarely.questions.verify import verify

    started = time.monotonic()
    loaded, specification = load_pair(network, prop, trust_pickle=trust_pickle)
    referee, problems = Referee(network, loaded, specification), problems_from(loaded, specification)
    left = max(0.1, timeout - (time.monotonic() - started))
    answer = verify(problems, left, seed=seed, judge=referee.judge)
    return Instance(answer.status, time.monotonic() - started, referee.accepted, answer.sentence)
