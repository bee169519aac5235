"""Where chunks run: processes on this machine, or a Dask cluster. The driver sees one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import connection
from typing import Protocol, runtime_checkable

from rarely.campaign.host import Host, Limits
from rarely.campaign.tasks import Chunk, ChunkAnswer


class Engine(Protocol):
    """Runs chunks. Every chunk submitted comes back as one answer; a worker that died is one, too."""

    def free(self) -> int:
        """How many chunks it would take now."""
        ...

    def submit(self, chunk: Chunk) -> None: ...

    def completed(self, timeout: float) -> Sequence[ChunkAnswer]:
        """Answers that arrived, after waiting for one at most `timeout` seconds."""
        ...

    def close(self) -> None:
        """Stop the workers at once."""
        ...


@runtime_checkable
class MayWait(Protocol):
    """An engine whose workers may be away for a while."""

    def waiting(self) -> str:
        """What it waits for, in words; empty while it works."""
        ...


class LocalEngine:
    """Processes on this machine, one chunk each at a time."""

    def __init__(self, workers: int, limits: Limits) -> None:
        self._hosts = [Host() for _ in range(workers)]
        self._limits = limits

    def free(self) -> int:
        return sum(host.chunk is None for host in self._hosts)

    def submit(self, chunk: Chunk) -> None:
        next(host for host in self._hosts if host.chunk is None).give(chunk, self._limits.of(chunk))

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        connection.wait([host.line for host in self._hosts], timeout)
        return [answer for answer in [host.look() for host in self._hosts] if answer is not None]

    def close(self) -> None:
        for host in self._hosts:
            host.close()
