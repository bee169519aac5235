"""What the tests of campaigns share: a network in a Python file, an engine without processes, a store's content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rarely.campaign.store import Store
from rarely.campaign.tasks import Chunk, ChunkAnswer
from rarely.campaign.work import answer

NETWORK = """
import os, time
import torch

PAUSE = float(os.environ.get("RARELY_TEST_PAUSE", "0"))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weight = torch.nn.Parameter(torch.randn(6, 3, generator=generator), requires_grad=False)

    def forward(self, x):
        time.sleep(PAUSE)
        return x @ self.weight
"""


class Inline:
    """An engine in this process, which can be told to fail."""

    def __init__(self, fails: Callable[[Chunk], str] = lambda chunk: "") -> None:
        self.fails, self.ran, self.closed = fails, [], False
        self._waiting: list[Chunk] = []

    def free(self) -> int:
        return 2 - len(self._waiting)

    def submit(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        chunk = self._waiting.pop()  # last in, first out: order must not matter
        if chunk.rehearsal:
            return [answer(chunk)]
        self.ran.append(chunk)
        reason = self.fails(chunk)
        return [ChunkAnswer(chunk, failure=reason) if reason else answer(chunk)]

    def close(self) -> None:
        self.closed = True


def content(folder: Path) -> dict[str, Any]:
    """All that must be equal whatever happened on the way: everything but times and the number of attempts."""
    found = {}
    with Store.open(folder) as store:
        store.check()
        for record in store.records():
            estimate = None if record.estimate is None else json.loads(record.estimate.to_json())
            if estimate is not None:
                del estimate["seconds"]
            kept = store.witnesses(record.key)
            arrays = None if kept is None else (kept.inputs.tobytes(), kept.scores.tobytes(), kept.original.tobytes())
            found[record.key] = (record.index, record.name, record.state, record.reason, estimate, arrays)
    return found
