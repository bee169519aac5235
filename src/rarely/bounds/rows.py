"""Many sub-problems as tensors that have a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """A dataclass whose fields are tensors of equally many rows."""

    def pick(self, index: Tensor | slice) -> Self:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    def joined(self, others: Sequence[Self]) -> Self:
        """Itself and then others."""
        return type(self)(*(torch.cat([getattr(part, f.name) for part in (self, *others)]) for f in fields(self)))

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))
