"""What runs on the side of Dask's workers, and workers of our own on this machine.

A Dask worker hands each chunk to a host, one for each of its threads. So it always answers its scheduler, holds no
memory of networks, and survives what networks do.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Collection
from multiprocessing import connection

from rarely.campaign.host import STARTS, Child, Host, start
from rarely.campaign.tasks import ChunkAnswer
from rarely.core.errors import RarelyError

_LOOK = 0.5  # seconds between two looks at a host
_OF_THREAD = threading.local()
_AHEAD: list[Host] = []  # started for threads that have had no chunk yet


def dask_setup(_: object) -> None:
    """What `--preload` calls in a worker of our own: its host starts while others answer the first questions."""
    _AHEAD.append(_new_host())


def _new_host() -> Host:
    # Dask has its workers give memory back at once, and a sampler that asks for it again at every step takes twice as
    # long. Hosts inherit the environment.
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    return Host()


def answer_in_host(content: bytes, limit: float | None) -> bytes:
    """The answer for a pickled chunk, from this thread's host."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    if not hasattr(_OF_THREAD, "host"):
        _OF_THREAD.host = _AHEAD.pop() if _AHEAD else _new_host()
    host: Host = _OF_THREAD.host
    host.give(pickle.loads(content), limit)
    while (answer := host.look()) is None:
        connection.wait([host.line], _LOOK)
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":  # the driver is gone: the place is for others
            host.close()
            del _OF_THREAD.host
            return b""
    return packed(answer)


def packed(answer: ChunkAnswer) -> bytes:
    return pickle.dumps((answer.solved, answer.failure, answer.refused))


class OwnWorkers:
    """Dask workers on this machine, which are replaced when they die or hang.

    Not by Dask's nannies: a `SpecCluster` gives up one that is not back soon enough, for good.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._address = address
        self._count = 0
        self._children = [self._start(1) for _ in range(workers)]

    def _start(self, starts: int) -> tuple[Child, str, int]:
        self._count += 1
        name = f"rarely-{self._count}"
        command = [
            "-m", "distributed.cli.dask_worker", self._address, "--name", name, "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--memory-limit", "0", "--death-timeout", "60",
            "--preload", "rarely.campaign.dask_worker",
        ]  # fmt: skip
        quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical"}
        return start(command, quiet), name, starts

    def tend(self, connected: Collection[str]) -> None:
        """Replace what is dead or hangs; `connected` are the names of the workers that the scheduler knows."""
        for i, (child, name, starts) in enumerate(self._children):
            if name in connected:
                self._children[i] = (child, name, starts := 0)
            if child.process.poll() is None and not child.hangs():
                continue
            end = child.end()
            if starts >= STARTS:
                raise RarelyError(f"Dask workers cannot be started: they end with {end} before they are connected")
            self._children[i] = self._start(starts + 1)

    def close(self) -> None:
        for child, _, _ in self._children:
            child.end()
