"""Where and how networks run: device, precision, rows per pass. With rng.py the only file that knows devices."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rarely.core.errors import InputError
from rarely.core.network import Network
from rarely.core.problem import Batch, Counter, Forward, Problem, make_batch
from rarely.core.rng import Rng
from rarely.core.snapshots import Rows, Snapshots, agree, architecture, one_by_one, together

_BYTES_PER_FORWARD = 16 * 2**20  # activations kept in flight on a CPU: what stays in the caches is fastest
_MIN_ROWS = 64
_NUMBERS_AT_ONCE = 3e7  # of all particles of one batch: a few copies of them must fit into memory
_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Execution:
    """How to run: `device` "auto", "cpu", "cuda", ...; `dtype` None for the network's own; `rows` per forward pass."""

    device: str = "auto"
    dtype: torch.dtype | None = None
    rows: int | None = None
    compile: bool = False
    threads: int | None = None  # of a CPU; for tiny networks, or on a busy machine, one can be faster than two
    tf32: bool = False  # matrix products of a GPU in TensorFloat-32

    def __post_init__(self) -> None:
        for name in ("rows", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Threads and matrix precision as asked for, put back afterwards."""
        threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            if self.tf32:
                torch.set_float32_matmul_precision("high")
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)

    def resolve(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise InputError(f"device {self.device!r} is not one torch knows; use auto, cpu or cuda") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("device cuda was asked for, but torch sees no GPU; use --device cpu or auto")
        return device

    def shortens(self, problem: Problem, batch: Batch) -> bool:
        """Whether the batch runs in a shorter precision than the problem's network has of its own."""
        own, run = (torch.finfo(network.dtype).eps for network in (problem.adapted, batch.network))
        return run > own or (self.tf32 and batch.device.type == "cuda")

    def place(self, problems: Sequence[Problem]) -> tuple[list[Batch], Counter]:
        """Group problems that share a network, or its architecture, and an input shape into batches.

        Order is kept by Batch.rows.
        """
        device, counter = self.resolve(), Counter(len(problems))
        groups = _groups(problems, id if self.compile else architecture)
        return [self._batch(problems, rows, counter, device) for rows in groups], counter

    def _batch(self, problems: Sequence[Problem], rows: list[int], counter: Counter, device: torch.device) -> Batch:
        distinct = {id(problems[i].network): problems[i].adapted for i in rows}
        networks = [network.placed(device, self.dtype) for network in distinct.values()]
        first = networks[0]
        if self.compile and first.module is not None:
            compiled = torch.compile(first.module, dynamic=False)
            networks[0] = first = Network(compiled, first.differentiable, first.dtype, first.module)
        chunk, dtype = self.rows or _rows_per_forward(first, problems[rows[0]], device), first.dtype
        if dtype in _SHORT:  # only the network runs in it: levels of 8 bits would be ties, and chains would stick
            dtype = torch.float32
        calls = [_at_precision(network.call, network.dtype) for network in networks]
        forward, whole = _flat(_chunked(calls[0], chunk)), _flat(calls[0])
        if len(networks) > 1:
            number = {key: k for k, key in enumerate(distinct)}
            owner = torch.tensor([number.get(id(problem.network), -1) for problem in problems])
            separate = one_by_one([_chunked(call, chunk) for call in calls]), one_by_one(calls)
            forward, whole = (Snapshots(owner, groups) for groups in separate)
            modules = [network.module for network in networks if network.module is not None]
            first = replace(first, module=torch.nn.ModuleList(modules))
            if device.type != "cuda":
                chunk *= len(networks)  # each takes its own share of the rows
            else:
                stacked, probe = together(modules, first.dtype), problems[rows[0]].inputs.sample(4, Rng(0))
                if agree(stacked, calls, probe.to(device, dtype)):
                    forward, whole = Snapshots(owner, partial(stacked, chunk=chunk)), Snapshots(owner, stacked)
        return make_batch(problems, rows, counter, first, forward, whole, chunk, device, dtype)


def devices() -> dict[str, str]:
    """What a run can be placed on: the name to ask for, and what it is."""
    found = {"cpu": f"cores: {os.cpu_count()}, threads of torch: {torch.get_num_threads()}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return found


def fitting_batches(problems: Sequence[Problem], estimator: object) -> Iterator[list[int]]:
    """Rows that go into one batch and whose particles fit into memory together."""
    particles = getattr(estimator, "particles", 10_000) * getattr(estimator, "islands", 1)
    for rows in _groups(problems, architecture):
        size = max(1, int(_NUMBERS_AT_ONCE / (particles * math.prod(problems[rows[0]].inputs.event_shape))))
        yield from (rows[i : i + size] for i in range(0, len(rows), size))


def _groups(problems: Sequence[Problem], kind: Callable[[Network], Hashable]) -> list[list[int]]:
    """Problems whose networks are of one kind and whose inputs have one shape."""
    networks = {id(problem.network): problem.adapted for problem in problems}
    kinds = {key: kind(network) for key, network in networks.items()}  # once each: naming an architecture takes time
    groups: dict[Hashable, list[int]] = {}
    for row, problem in enumerate(problems):
        model = problem.inputs
        groups.setdefault((kinds[id(problem.network)], tuple(model.event_shape), model.normal_dim), []).append(row)
    return list(groups.values())


def _rows_per_forward(network: Network, problem: Problem, device: torch.device) -> int:
    """Rows whose activations fit: measured from the outputs of every module on one input."""
    if network.module is None:
        return 65536
    total = [int(torch.Size(problem.inputs.event_shape).numel())]

    def count(_: torch.nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            total[0] += output.numel()

    hooks = [m.register_forward_hook(count) for m in network.module.modules() if not list(m.children())]
    try:
        with torch.no_grad(), network.evaluating():
            shape = tuple(problem.inputs.event_shape)
            network.call(torch.zeros((1, *shape), device=device, dtype=network.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    budget = _BYTES_PER_FORWARD
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        budget = int(0.3 * free)
    return max(_MIN_ROWS, budget // (4 * total[0]))


def _at_precision(call: Rows, dtype: torch.dtype) -> Rows:
    return (lambda x: call(x.to(dtype)).to(x.dtype)) if dtype in _SHORT else call


def _flat(call: Rows) -> Forward:
    def forward(x: Tensor, _: Tensor) -> Tensor:
        y = call(x.flatten(0, 1))
        return y.reshape(*x.shape[:2], *y.shape[1:])

    return forward


def _chunked(call: Rows, chunk: int) -> Rows:
    """Run rows in pieces; an out-of-memory halves the piece and goes on."""
    size = chunk

    def forward(x: Tensor) -> Tensor:
        nonlocal size
        while True:
            try:
                if x.shape[0] <= size:
                    return call(x)
                return torch.cat([call(x[i : i + size]) for i in range(0, x.shape[0], size)])
            except torch.OutOfMemoryError:
                if size <= _MIN_ROWS:
                    raise
                size = max(_MIN_ROWS, min(size, x.shape[0]) // 2)
                torch.cuda.empty_cache()

    return forward


def record(step: Callable[[], None], batch: Batch, rng: Rng) -> Callable[[], None] | None:
    """Record what `step` does to the tensors it reads and writes, without doing it, as a CUDA graph to be replayed.

    None where that cannot be: no GPU, a network that is not a module, or a step that waits for the host.
    """
    if batch.device.type != "cuda" or batch.network.module is None:
        return None
    graph, before = torch.cuda.CUDAGraph(), rng.generator.get_state()
    graph.register_generator_state(rng.generator)
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
    side.wait_stream(here)
    # By hand: the context manager of torch also empties the memory cache and collects garbage, at 50 ms a time.
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
    except RuntimeError:
        rng.restore(before)
        return None
    here.wait_stream(side)
    return graph.replay
