"""The only source of randomness: a torch generator on the device where the numbers are used."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from rarely.core.arguments import whole
from rarely.core.errors import InputError

T = TypeVar("T")

_LANES = 4  # streams that a large draw on a CPU is split into
_LARGE = 2**20  # numbers from which splitting pays
_SHARES = 4  # chains of a population that use one row of a large draw
_ENOUGH = 256  # chains from which sharing goes unnoticed


class Rng:
    """Random numbers from one seed. The same seed, shapes and device give the same bits."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device)
        if abs(seed := whole(seed, "seed")) >= 2**63:
            raise InputError(f"seed must fit into 64 bits, got {seed}")
        self.generator.manual_seed(seed)
        self.in_lanes = True  # large draws on a CPU, in streams that are seeded once
        self._lanes: list[torch.Generator] = []

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        if self._large(shape):
            return self._in_lanes(shape, dtype, Tensor.normal_)
        return torch.randn(tuple(shape), generator=self.generator, device=self.device, dtype=dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform on [0, 1)."""
        if self._large(shape):
            return self._in_lanes(shape, dtype, Tensor.uniform_)
        return torch.rand(tuple(shape), generator=self.generator, device=self.device, dtype=dtype)

    def moves(self, shape: Sequence[int], dtype: torch.dtype, most: int) -> Iterator[tuple[slice, Tensor, float]]:
        """Normals (B, N, d) that move N chains of B populations: which chains, at most `most`, their normals, a sign.

        Drawing is half the cost of a small network on a CPU, so large draws there give each row to four chains, rotated
        by a random number of places, twice with its sign changed. Every chain still sees independent standard normals
        at every step, so each move is exact and splitting unbiased; two chains rarely meet twice, so means over a
        population vary no more than with separate draws (even functions a few percent). Populations share nothing.
        """
        b, n, d = shape
        shares = _SHARES if self._large(shape) and n >= _ENOUGH else 1
        size = -(-n // shares)
        pool = self.normal((b, size, d), dtype)
        turns = torch.randint(size, (shares,), generator=self.generator).tolist() if shares > 1 else [0]
        for share, (first, turn) in enumerate(zip(range(0, n, size), turns, strict=True)):
            last, wrap = min(first + size, n), first + size - turn
            stops = sorted({*range(first, last, most), min(wrap, last), last})
            for start, stop in itertools.pairwise(stops):
                row = (start - first + turn) % size
                yield slice(start, stop), pool[:, row : row + stop - start], 1.0 - 2.0 * (share % 2)

    def _large(self, shape: Sequence[int]) -> bool:
        return self.in_lanes and self.device.type == "cpu" and math.prod(shape) >= _LARGE

    def _in_lanes(self, shape: Sequence[int], dtype: torch.dtype, fill: Callable[..., Tensor]) -> Tensor:
        """torch draws on one thread, at more than half the cost of a small network: here one thread to a stream.

        The streams do not depend on the number of threads, so neither do the bits.
        """
        if not self._lanes:
            self._lanes = [torch.Generator().manual_seed(self.seed()) for _ in range(_LANES)]
        out = torch.empty(tuple(shape), dtype=dtype)
        parts = zip(torch.tensor_split(out.view(-1), _LANES), self._lanes, strict=True)
        tasks = [partial(fill, part, generator=lane) for part, lane in parts]
        workers = min(torch.get_num_threads(), _LANES)
        groups = [tasks[i::workers] for i in range(workers)]
        threads = [threading.Thread(target=_run_all, args=(group,)) for group in groups[1:]]
        for thread in threads:
            thread.start()
        _run_all(groups[0])  # here: a thread less to start
        for thread in threads:
            thread.join()
        return out

    def restore(self, state: Tensor) -> None:
        """Go on from a state of the generator, in a generator that no failed recording has touched."""
        self.generator = torch.Generator(self.device)
        self.generator.set_state(state)

    def seed(self) -> int:
        """A seed for a stream of its own."""
        return int(torch.randint(2**62, (), generator=self.generator, device=self.device))

    def at(self, device: torch.device) -> Rng:
        """This one, or on another device one that goes on from its seeds."""
        return self if device.type == self.device.type else Rng(self.seed(), device)

    def key(self) -> Tensor:
        """64 random bits (1,) where the numbers are used: the key of a program that makes its own."""
        return torch.randint(-(2**63), 2**63 - 1, (1,), generator=self.generator, device=self.device)

    def globally(self, draw: Callable[[], T]) -> T:
        """Run code that draws from torch's global generator (a user's sampler), seeded by this one."""
        devices, seed = [self.device] if self.device.type == "cuda" else [], self.seed()
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            return draw()


def _of_torch() -> Rng:
    rng = Rng(0)
    rng.generator, rng.in_lanes = torch.default_generator, False
    return rng


TORCHS = _of_torch()  # torch's own generator, governed by `torch.manual_seed`: for draws that somebody looks at


def _run_all(tasks: Sequence[Callable[[], object]]) -> None:
    for task in tasks:
        task()
