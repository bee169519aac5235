"""Where and how networks run: device, precision, rows per pass. With rng.py the only file that knows devices."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rarely.errors import InputError
from rarely.networks.adapt import Network
from rarely.problem import Batch, Counter, Problem, make_batch
from rarely.rng import Rng

_BYTES_PER_FORWARD = 4 * 2**20  # activations kept in flight on a CPU: what stays in the caches is fastest
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

    def place(self, problems: Sequence[Problem]) -> tuple[list[Batch], Counter]:
        """Group problems that share a network and an input shape into batches. Order is kept by Batch.rows."""
        device, counter = self.resolve(), Counter(len(problems))
        groups: dict[tuple[int, tuple[int, ...], int | None], list[int]] = {}
        for i, problem in enumerate(problems):
            model = problem.inputs
            key = (id(problem.network), tuple(model.event_shape), model.normal_dim)
            groups.setdefault(key, []).append(i)
        batches = []
        for rows in groups.values():
            first = problems[rows[0]]
            network = first.adapted.placed(device, self.dtype)
            if self.compile and network.module is not None:
                compiled = torch.compile(network.module, dynamic=False)
                network = Network(compiled, network.differentiable, network.dtype, network.module)
            chunk = self.rows or _rows_per_forward(network, first, device)
            dtype = network.dtype
            if dtype in _SHORT:  # only the network runs in it: levels of 8 bits would be ties, and chains would stick
                network, dtype = replace(network, call=_at_precision(network.call, dtype)), torch.float32
            forward = _chunked(network.call, chunk)
            batches.append(make_batch(problems, rows, counter, network, forward, chunk, device, dtype))
        return batches, counter


def devices() -> dict[str, str]:
    """What a run can be placed on: the name to ask for, and what it is."""
    found = {"cpu": f"cores: {os.cpu_count()}, threads of torch: {torch.get_num_threads()}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return found


def fitting_batches(problems: Sequence[Problem], estimator: object) -> Iterator[list[int]]:
    """Rows that share a network and whose particles fit into memory together."""
    groups: dict[tuple[int, tuple[int, ...], int | None], list[int]] = {}
    for row, problem in enumerate(problems):
        model = problem.inputs
        groups.setdefault((id(problem.network), tuple(model.event_shape), model.normal_dim), []).append(row)
    particles = getattr(estimator, "particles", 10_000) * getattr(estimator, "islands", 1)
    for (_, shape, _), rows in groups.items():
        size = max(1, int(_NUMBERS_AT_ONCE / (particles * math.prod(shape))))
        yield from (rows[i : i + size] for i in range(0, len(rows), size))


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


def _at_precision(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: call(x.to(dtype)).to(x.dtype)


def _chunked(call: Callable[[Tensor], Tensor], chunk: int) -> Callable[[Tensor], Tensor]:
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
