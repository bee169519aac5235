"""The only source of randomness: a torch generator on the device where the numbers are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Rng:
    """Random numbers from one seed. The same seed, shapes and device give the same bits."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device)
        self.generator.manual_seed(seed)

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(tuple(shape), generator=self.generator, device=self.device, dtype=dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform on [0, 1)."""
        return torch.rand(tuple(shape), generator=self.generator, device=self.device, dtype=dtype)

    def seed(self) -> int:
        """A seed for a stream of its own."""
        return int(torch.randint(2**62, (), generator=self.generator, device=self.device))

    def spawn(self) -> Rng:
        return Rng(self.seed(), self.device)

    def globally(self, draw: Callable[[], T]) -> T:
        """Run code that draws from torch's global generator (a user's sampler), seeded by this one."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed())
            return draw()
