"""Benchmarks of VNN-COMP against their known verdicts, decided as `rarely verify` decides them.

RARELY_DATA=... python benchmarks/verifier.py [--benchmarks oval21] [--timeout 100] [--processes 2] [--device cuda]
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from common import options, parser, table, write_json
from rarely.campaign.benchmark import decide_files

OWN = ("acasxu", "mnistfc")  # with folders of their own; the others are in `vnncomp`


@dataclass(frozen=True)
class Instance:
    """A pair of files whose verdict is known."""

    benchmark: str
    row: int  # among those of its benchmark, from 0
    network: Path
    property: Path
    verdict: str


@dataclass(frozen=True)
class Outcome:
    """What was said of an instance."""

    benchmark: str
    row: int
    network: str
    spec: str
    known: str
    said: str
    seconds: float
    comment: str

    @property
    def right(self) -> bool:
        return self.said == self.known

    @property
    def wrong(self) -> bool:
        return self.said in ("sat", "unsat") and not self.right


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.xz")


def known_instances(data: Path, name: str, folder: Path) -> list[Instance]:
    """The instances of one benchmark that are known to be sat or unsat; archives are unpacked into `folder`."""
    if name in OWN:
        home = data / name if name == "acasxu" else _unpacked(data / name / f"{name}.tar.xz", folder)
        networks, properties = (home / "onnx", home / "vnnlib") if name == "acasxu" else (home, home)
        pairs = [(row["network"], row["property"], row) for row in _rows(data / name / f"{name}_verdicts.csv")]
    else:
        networks = properties = _unpacked(data / "vnncomp" / f"{name}.tar.xz", folder)
        rows = [row for row in _rows(data / "vnncomp" / "verdicts.csv") if row["benchmark"] == name]
        pairs = [(row["onnx"], row["vnnlib"], row) for row in rows]
    known = [(a, b, row["verdict"]) for a, b, row in pairs if row["verdict"] in ("sat", "unsat")]
    return [Instance(name, i, networks / a, properties / b, verdict) for i, (a, b, verdict) in enumerate(known)]


def _decide(job: tuple[Instance, float, str]) -> Outcome:
    instance, timeout, device = job
    names = instance.network.stem, instance.property.stem
    try:
        answer = decide_files(instance.network, instance.property, timeout, device=device)
        said, seconds, comment = answer.verdict, answer.seconds, answer.comment
    except Exception as error:  # a crash on one instance is counted, and the others are still decided
        said, seconds, comment = "error", 0.0, f"{type(error).__name__}: {error}"
    return Outcome(instance.benchmark, instance.row, *names, instance.verdict, said, seconds, comment)


def _one_thread() -> None:
    torch.set_num_threads(1)


def decided(instances: Sequence[Instance], timeout: float, processes: int, device: str) -> Iterator[Outcome]:
    """Their outcomes as they come, on so many processes of one thread each."""
    jobs = [(instance, timeout, device) for instance in instances]
    with multiprocessing.get_context("spawn").Pool(processes, _one_thread) as pool:
        yield from pool.imap_unordered(_decide, jobs)


def line(o: Outcome) -> str:
    mark = "WRONG" if o.wrong else "ok" if o.right else "-"
    return f"{mark:5} {o.benchmark} {o.row} {o.network} {o.spec}: {o.said} ({o.known}), {o.seconds:.1f} s: {o.comment}"


def summary(outcomes: Sequence[Outcome], name: str) -> tuple[object, ...]:
    some = [o for o in outcomes if o.benchmark == name]
    counts = [(sum(o.right for o in some if o.known == v), sum(o.known == v for o in some)) for v in ("sat", "unsat")]
    took = [o.seconds for o in some]
    cells = (f"{right} of {count}" for right, count in counts)
    return name, *cells, sum(o.wrong for o in some), round(sum(took), 1), round(max(took, default=0.0), 1)


def main() -> None:
    names = "acasxu,mnistfc,oval21,cifar10_resnet,cifar_biasfield,cersyve,verivital,lsnc_relu,test"
    wanted: argparse.ArgumentParser = parser(__doc__)
    wanted.add_argument("--benchmarks", default=names)
    wanted.add_argument("--instances", type=int, metavar="N", help="the first N of each benchmark")
    wanted.add_argument("--half", choices=("even", "odd"), help="every other row: tune on one half, report the other")
    wanted.add_argument("--verdict", choices=("sat", "unsat"), help="those of one verdict")
    wanted.add_argument("--rows", help="these rows alone, e.g. 0,4,7")
    wanted.add_argument("--timeout", type=float, default=100.0, help="seconds for each instance")
    wanted.add_argument("--processes", type=int, default=2, help="instances at a time, of one thread each")
    args = options(wanted)
    chosen = args.benchmarks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        instances = [i for name in chosen for i in known_instances(args.data, name, Path(folder))[: args.instances]]
        if args.half:
            instances = [i for i in instances if i.row % 2 == (args.half == "odd")]
        if args.verdict:
            instances = [i for i in instances if i.verdict == args.verdict]
        if args.rows:
            instances = [i for i in instances if i.row in {int(r) for r in args.rows.split(",")}]
        outcomes = []
        for outcome in decided(instances, args.timeout, args.processes, args.device):
            print(line(outcome), flush=True)
            outcomes.append(outcome)
    header = ("benchmark", "right sat", "right unsat", "WRONG", "seconds in all", "slowest")
    print(f"\n{table(header, [summary(outcomes, name) for name in chosen])}\n")
    write_json(args.json, args.device, [asdict(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
