"""Where and how networks run: device, precision, rows per pass. With rng.py the only file that knows devices."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rarely.core.arguments import floating, whole
from rarely.core.batch import Batch, Forward
from rarely.core.each_inputs import stack_inputs
from rarely.core.errors import InputError
from rarely.core.network import Network
from rarely.core.problem import Problem
from rarely.core.properties import stack_properties
from rarely.core.rng import Rng
from rarely.core.snapshots import Rows, Snapshots, agree, architecture, one_by_one, together
from rarely.core.spend import Exhausted, Spend
from rarely.core.stacking import place

_BYTES_PER_FORWARD = 16 * 2**20  # activations kept in flight on a CPU: what stays in the caches is fastest
_MIN_ROWS = 64
_NUMBERS_AT_ONCE = 3e7  # of all particles of one batch: a few copies of them must fit into memory
_COMPARED = 4  # inputs on which networks run together are compared with themselves alone
_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Execution:
    """How to run: `device` "auto", "cpu", "cuda", ...; `dtype` None for the network's own; `rows` per forward pass."""

    device: str = "auto"
    dtype: Any = None  # as torch or numpy call it; a torch.dtype from then on
    rows: int | None = None
    compile: bool = False
    threads: int | None = None  # of a CPU; for tiny networks, or on a busy machine, one can be faster than two
    tf32: bool = False  # matrix products and convolutions of a GPU in TensorFloat-32; torch's default for the latter

    def __post_init__(self) -> None:
        for name in ("rows", "threads"):
            value = getattr(self, name)
            if value is not None and whole(value, name) < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        object.__setattr__(self, "device", _device_name(self.device))
        object.__setattr__(self, "dtype", None if self.dtype is None else floating(self.dtype))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Threads, matrix precision and the current GPU as asked for, put back afterwards.

        Programs, recordings and random numbers go where the current GPU is, not where their tensors are.
        Ten bits of a convolution are ties between inputs: on a ResNet-20 with noise of 1/250 p came out 15 % too large.
        """
        threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        cudnn: Any = torch.backends.cudnn
        layers = (cudnn.conv, cudnn.rnn)
        before = [layer.fp32_precision for layer in layers]
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
            for layer in layers:
                layer.fp32_precision = "tf32" if self.tf32 else "ieee"
            device = self.resolve()  # "cuda" is the current one, whichever that is
            with torch.cuda.device(device) if device.type == "cuda" and device.index is not None else nullcontext():
                yield
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)
            for layer, own in zip(layers, before, strict=True):
                layer.fp32_precision = own

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

    def place(
        self, problems: Sequence[Problem], spend: Spend, rows: Sequence[int] | None = None, at_once: int = 1
    ) -> Iterator[Batch]:
        """Batches of the problems at `rows` that share a network, or its architecture, and an input shape.

        `at_once` inputs of each problem are alive at a time: a batch holds as many problems as memory allows. The time
        that is left is shared out evenly.
        """
        device = self.resolve()
        wanted = range(len(problems)) if rows is None else rows
        groups = _groups(problems, wanted, id if self.compile else architecture, at_once)
        waiting = sum(map(len, groups))
        for group in groups:
            with spend.within(spend.left_seconds * len(group) / waiting):
                yield self._batch(problems, group, spend, device)
            waiting -= len(group)

    def _batch(self, problems: Sequence[Problem], rows: list[int], spend: Spend, device: torch.device) -> Batch:
        distinct = {id(problems[i].network): problems[i].adapted for i in rows}
        networks = [network.placed(device, self.dtype).laid_out() for network in distinct.values()]
        first = networks[0]
        if self.device == "auto" and device.type == "cuda" and not _runs(first, problems[rows[0]], device):
            return self._batch(problems, rows, spend, torch.device("cpu"))
        if self.compile and first.module is not None:
            networks[0] = first = replace(first, call=torch.compile(first.module, dynamic=False))
        chunk, dtype = self.rows or _rows_per_forward(first, device), first.dtype
        if dtype in _SHORT:  # only the network runs in it: levels of 8 bits would be ties, and chains would stick
            dtype = torch.float32
        if device.type == "cpu":
            spend.expect(1, max(network.seconds for network in networks))
        calls = [_at_precision(network) for network in networks]
        forward, whole = _flat(_chunked(calls[0], chunk, spend)), _flat(calls[0])
        if len(networks) > 1:
            number = {key: k for k, key in enumerate(distinct)}
            owner = torch.tensor([number.get(id(problem.network), -1) for problem in problems])
            separate = one_by_one([_chunked(call, chunk, spend) for call in calls]), one_by_one(calls)
            forward, whole = (Snapshots(owner, groups) for groups in separate)
            modules = [network.module for network in networks if network.module is not None]
            first = replace(first, module=torch.nn.ModuleList(modules))
            if device.type != "cuda":
                chunk *= len(networks)  # each takes its own share of the rows
            else:
                stacked, probe = together(modules, first.dtype), problems[rows[0]].inputs.sample(_COMPARED, Rng(0))
                if _paid(spend, rows[0], 2 * len(networks) * _COMPARED) and agree(
                    stacked, calls, probe.to(device, None if first.whole else dtype)
                ):
                    forward, whole = Snapshots(owner, partial(stacked, chunk=chunk)), Snapshots(owner, stacked)
        chosen = [problems[i] for i in rows]
        prop = place(stack_properties([p.property for p in chosen]), device, dtype)
        inputs = place(stack_inputs([p.inputs for p in chosen]), device, dtype)
        numbers = torch.tensor(rows)
        return Batch(problems, numbers, first, prop, inputs, spend, forward, whole, chunk, device, dtype)


def _runs(network: Network, problem: Problem, device: torch.device) -> bool:
    """Whether a network and its property can do without a CPU.

    Integers of eight bits cannot, nor a function that holds its tensors, or makes arrays of what it is given.
    """
    if network.module is None and not network.differentiable:  # a function of arrays, which computes where it wants
        return True
    x = problem.inputs.sample(1, Rng(0)).to(device)
    try:
        with torch.no_grad(), network.evaluating():
            y = _at_precision(network)(network.taken(x))
            place(stack_properties([problem.property]), device, y.dtype).score(x.unsqueeze(0), y.unsqueeze(0))
    except torch.OutOfMemoryError:
        return True
    except Exception:  # the user's own code, which may be told the same on the CPU
        return False
    return True


def _device_name(given: Any) -> str:
    """As torch spells it; a number is that of a GPU."""
    if given is None:
        return "auto"
    return f"cuda:{given}" if isinstance(given, int) else str(given)


def devices() -> dict[str, str]:
    """What a run can be placed on: the name to ask for, and what it is."""
    found = {"cpu": f"cores: {os.cpu_count()}, threads of torch: {torch.get_num_threads()}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return found


def _groups(
    problems: Sequence[Problem], rows: Iterable[int], kind: Callable[[Network], Hashable], at_once: int
) -> list[list[int]]:
    """Problems whose networks are of one kind and whose inputs have one shape, as many as fit into memory together."""
    networks = {id(problems[row].network): problems[row].adapted for row in rows}
    kinds = {key: kind(network) for key, network in networks.items()}  # once each: naming an architecture takes time
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        problem, model = problems[row], problems[row].inputs
        groups.setdefault((kinds[id(problem.network)], tuple(model.event_shape), model.normal_dim), []).append(row)
    fitting = []
    for group in groups.values():
        numbers = max(1, at_once * math.prod(problems[group[0]].inputs.event_shape))
        size = max(1, int(_NUMBERS_AT_ONCE / numbers))
        fitting += [group[i : i + size] for i in range(0, len(group), size)]
    return fitting


def _rows_per_forward(network: Network, device: torch.device) -> int:
    """Rows whose activations fit."""
    if not network.numbers:
        return 65536
    budget = _BYTES_PER_FORWARD
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        budget = int(0.3 * free)
    return max(_MIN_ROWS, budget // (4 * network.numbers))


def _at_precision(network: Network) -> Rows:
    short = network.dtype in _SHORT
    return (lambda x: network.call(network.taken(x)).to(torch.float32)) if short else network.call


def _flat(call: Rows) -> Forward:
    def forward(x: Tensor, _: Tensor) -> Tensor:
        y = call(x.flatten(0, 1))
        return y.reshape(*x.shape[:2], *y.shape[1:])

    return forward


def _chunked(call: Rows, chunk: int, spend: Spend) -> Rows:
    """Run rows in passes that the clock allows; an out-of-memory halves the pass and goes on."""
    size = chunk

    def forward(x: Tensor) -> Tensor:
        nonlocal size
        found: list[Tensor] = []
        start = 0
        while start < len(x) or not found:
            part = x[start : start + spend.rows(size)]
            begun = time.monotonic()
            try:
                found.append(call(part))
            except torch.OutOfMemoryError:
                if size <= _MIN_ROWS:
                    raise
                size = max(_MIN_ROWS, min(size, len(part)) // 2)
                torch.cuda.empty_cache()
                continue
            if len(part) and x.device.type == "cpu":
                spend.took(len(part), time.monotonic() - begun)
            start += len(part)
        return found[0] if len(found) == 1 else torch.cat(found)

    return forward


def _paid(spend: Spend, row: int, calls: int) -> bool:
    try:
        spend.charge(torch.tensor([row]), calls)
    except Exhausted:
        return False
    return True


@contextmanager
def _sparing_the_default(device: torch.device) -> Iterator[None]:
    """Torch's own generator takes part in every recording, and one that fails would leave it unusable: lend a copy."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(own.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


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
        with _sparing_the_default(batch.device), torch.cuda.stream(side):
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
