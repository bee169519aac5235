"""Plain Monte Carlo on a device: counts of violations among very many inputs, which never leave it.

`violations` serves any network. Its cost on a GPU is memory traffic between layers, some 1e9 inputs a second for the
CollisionDetection network. The paper's baseline has 1e10 samples for each of 500 properties, so `Fused` writes a small
sequential network out as one Triton kernel, where an input lives and dies in registers.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rarely
from papers.webb2019 import common
from papers.webb2019.common import Context
from rarely.core.rng import Rng
from rarely.core.spend import Spend

COUNTS = ("round", "name", "verdict", "samples", "hits", "seconds", "device")
ENOUGH = 10_000  # violations after which plain Monte Carlo knows p to one per cent
CHUNK = {"cuda": 2**23, "cpu": 2**17}  # inputs of all problems together in one pass
PARTS, BLOCK = 1024, 256  # programs of one problem, inputs of a program at a time
_SEEDS = 10_000_000  # apart: each program of a launch has a seed of its own

_KERNEL = """
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["seed", "loops"])
def count(low, width, normal, bound, hits, seed, loops, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    key = seed + row * tl.num_programs(1) + tl.program_id(1)
    {loads}
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for turn in range(loops):
        at = {draws} * (turn * BLOCK + lane)
        {inputs}
        {network}
        total += ({score} <= offset).to(tl.int32)
    tl.atomic_add(hits + row, tl.sum(total, 0).to(tl.int64))
"""


def stream(
    context: Context,
    title: str,
    problems: dict[str, list[rarely.Problem]],
    samples: dict[str, int],
    fused: Fused | None = None,
) -> None:
    """Count in rounds, into plain.csv; a problem leaves when it has ENOUGH violations. Both by known verdict."""
    if context.args.share[0] > 1:  # a round follows from the one before: the first process does them all
        return
    device = rarely.Execution(device=context.device).resolve()
    table = common.Table(context.out / "plain.csv", COUNTS, ("round", "verdict"))
    sizes = {kind: _rounds(end, 10**9 if fused else 10**8) for kind, end in samples.items()}
    rounds = [(number, kind, size) for kind in sizes for number, size in enumerate(sizes[kind])]
    with common.progress(title, len(rounds)) as display:
        for number, verdict, size in sorted(rounds):
            if context.late:
                return
            hits: dict[str, int] = defaultdict(int)
            for row in table.rows:
                hits[row["name"]] += int(row["hits"])
            left = [problem for problem in problems[verdict] if hits[problem.name] < ENOUGH]
            if left and not table.has(round=number, verdict=verdict):
                started = time.monotonic()
                found = (fused.violations if fused else violations)(left, size, number, device)
                each = (time.monotonic() - started) / len(left)
                drawn = Fused.rounded(size) if fused else size
                table.add([
                    {"round": number, "name": problem.name, "verdict": verdict, "samples": drawn, "hits": hit,
                     "seconds": each, "device": device}
                    for problem, hit in zip(left, found, strict=True)
                ])  # fmt: skip
            display.done(f"{verdict}: {len(left)} properties, {size:.0e} more samples each")


def _rounds(samples: int, largest: int) -> list[int]:
    """Growing sizes, so that common events leave early; bounded, so that a cut-off loses little."""
    sizes, size = [], 10_000
    while samples > 0:
        sizes.append(min(size, samples))
        samples -= sizes[-1]
        size = min(10 * size, largest)
    return sizes


@dataclass(frozen=True)
class Count:
    """What plain Monte Carlo knows of one problem."""

    samples: int
    hits: int
    seconds: float

    @property
    def log_prob(self) -> float:
        return math.log(self.hits / self.samples) if self.hits else -math.inf

    @property
    def error(self) -> float:
        """Standard deviation of log p."""
        return math.sqrt((1 - self.hits / self.samples) / self.hits) if self.hits else math.inf

    @property
    def bound(self) -> float:
        """Where nothing was found: log of the 95 % upper bound, 3 / samples."""
        return math.log(3.0 / self.samples)


def counted(out: Path, verdict: str) -> dict[str, Count]:
    """All rounds of plain.csv together, by name."""
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in common.read(out / "plain.csv"):
        if row["verdict"] == verdict:
            groups[row["name"]].append(row)
    return {
        name: Count(
            sum(int(row["samples"]) for row in rows),
            sum(int(row["hits"]) for row in rows),
            sum(float(row["seconds"]) for row in rows),
        )
        for name, rows in groups.items()
    }


def violations(problems: Sequence[rarely.Problem], samples: int, seed: int, device: torch.device) -> list[int]:
    """Violations among `samples` inputs of each problem. Nothing waits for the device before the end."""
    batches = rarely.Execution(device=str(device)).place(problems, Spend(len(problems)))
    rng = Rng(seed, device)
    total = torch.zeros(len(problems), dtype=torch.long, device=device)
    for batch in batches:
        chunk = max(1, CHUNK[device.type] // len(batch))
        rows = batch.rows.to(device)
        for start in range(0, samples, chunk):
            scores = batch.score(batch.sample(min(chunk, samples - start), rng))
            total.index_add_(0, rows, (scores >= 0).sum(1))
    return [int(hit) for hit in total.tolist()]


class Fused:
    """The same for problems with one small network, uniform inputs in boxes and one linear constraint each."""

    def __init__(self, network: nn.Sequential) -> None:
        text = kernel_source(network)
        # Triton reads a kernel's source from its file.
        path = Path(tempfile.mkdtemp()) / "webb2019_count.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("webb2019_count", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._kernel: Any = module.count

    @staticmethod
    def available(device: torch.device) -> bool:
        return device.type == "cuda" and importlib.util.find_spec("triton") is not None

    @staticmethod
    def rounded(samples: int) -> int:
        """The number of samples that a launch really draws."""
        return math.ceil(samples / (PARTS * BLOCK)) * PARTS * BLOCK

    def violations(
        self, problems: Sequence[rarely.Problem], samples: int, seed: int, device: torch.device
    ) -> list[int]:
        """Violations among `rounded(samples)` inputs of each."""
        boxes: list[Any] = [problem.inputs for problem in problems]
        rules: list[Any] = [problem.property for problem in problems]
        values = (
            torch.stack([box.low for box in boxes]),
            torch.stack([box.high - box.low for box in boxes]),
            torch.stack([rule.A.reshape(-1) for rule in rules]),
            torch.stack([rule.b.reshape(()) for rule in rules]),
        )
        low, width, normal, bound = (value.to(device, torch.float32).contiguous() for value in values)
        hits = torch.zeros(len(problems), dtype=torch.long, device=device)
        loops = self.rounded(samples) // (PARTS * BLOCK)
        grid = (len(problems), PARTS)
        self._kernel[grid](low, width, normal, bound, hits, seed * _SEEDS, loops, BLOCK=BLOCK, num_warps=4)
        return [int(hit) for hit in hits.tolist()]

    def check(self, problems: Sequence[rarely.Problem], device: torch.device, samples: int = 10**6) -> None:
        """Compare with the library's own network, at five standard deviations of each difference."""
        ours = self.violations(problems, samples, 1, device)
        theirs = violations(problems, samples, 1, device)
        for problem, mine, other in zip(problems, ours, theirs, strict=True):
            p = (mine + other) / (self.rounded(samples) + samples)
            expected = p * (self.rounded(samples) - samples)
            spread = math.sqrt((self.rounded(samples) + samples) * p * (1 - p))
            if abs(mine - other - expected) > 5 * spread + 5:
                common.stop(f"{problem.name}: the fused kernel counts {mine}, the network {other}; report this")


def kernel_source(network: nn.Sequential) -> str:
    """The Triton program for a network of Linear, ReLU and MaxPool1d layers."""
    inputs = next(layer.in_features for layer in network if isinstance(layer, nn.Linear))
    lines = list(network_lines(network, [f"x{i}" for i in range(inputs)]))
    outputs = lines.pop().split()
    quarters = math.ceil(inputs / 4)
    loads = [
        f"{table}{i} = tl.load({table} + {inputs} * row + {i})" for i in range(inputs) for table in ("low", "width")
    ]
    loads += [f"a{i} = tl.load(normal + {len(outputs)} * row + {i})" for i in range(len(outputs))]
    loads += ["offset = tl.load(bound + row)"]
    draws = [f"{', '.join(f'u{4 * q + k}' for k in range(4))} = tl.rand4x(key, at + {q})" for q in range(quarters)]
    points = [f"x{i} = low{i} + u{i} * width{i}" for i in range(inputs)]
    return _KERNEL.format(
        loads="\n    ".join(loads),
        draws=quarters,
        inputs="\n        ".join([*draws, *points]),
        network="\n        ".join(lines),
        score=" + ".join(f"a{i} * {name}" for i, name in enumerate(outputs)),
    )


def network_lines(network: nn.Sequential, names: list[str]) -> Iterator[str]:
    """One assignment per neuron; the last line is the names of the outputs."""
    for depth, layer in enumerate(network):
        fresh = f"v{depth}_"
        if isinstance(layer, nn.Linear):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            values = [
                " + ".join([f"{b!r}", *(f"{w!r} * {n}" for w, n in zip(row, names, strict=True))]) for row, b in rows
            ]
        elif isinstance(layer, nn.ReLU):
            values = [f"tl.maximum({name}, 0.0)" for name in names]
        elif isinstance(layer, nn.MaxPool1d) and isinstance(layer.kernel_size, int) and isinstance(layer.stride, int):
            size = layer.kernel_size
            values = [_largest(names[i : i + size]) for i in range(0, len(names) - size + 1, layer.stride)]
        else:
            raise TypeError(f"a {type(layer).__name__} cannot be fused")
        names = [f"{fresh}{i}" for i in range(len(values))]
        yield from (f"{name} = {value}" for name, value in zip(names, values, strict=True))
    yield " ".join(names)


def _largest(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"tl.maximum({names[0]}, {_largest(names[1:])})"
