"""Chunks on a Dask cluster: one of its own on this machine, or a running one by its address.

Nothing here waits for the cluster: answers come in through a queue, and what the cluster is like is asked about in the
background. Workers may come and go; only a scheduler that is silent for too long ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import queue
import time
from collections.abc import Coroutine, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rarely.campaign.dask_worker import OwnWorkers
from rarely.campaign.host import Limits
from rarely.campaign.tasks import Chunk, ChunkAnswer
from rarely.campaign.versions import versions
from rarely.core.errors import InputError, MissingExtra, RarelyError

_AHEAD = 2  # chunks for each place in the cluster: one runs, one is on its way
_DEMAND = 4  # chunks that wait while there are no workers, so that a cluster which grows on demand sees some
_PATIENCE = 20.0  # seconds that a scheduler may be silent
_LOOK = 1.0  # seconds between two questions to the scheduler


class DaskEngine:
    """Futures of `dask.distributed`. Dask itself moves the work of a worker that died to another one."""

    def __init__(self, workers: int, scheduler: str | None, device: str, limits: Limits) -> None:
        try:
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise MissingExtra("the dask engine needs dask: pip install 'rarely[dask]'") from error
        self._limits, self._device = limits, device
        self._own: OwnWorkers | None = None
        with ExitStack() as stack:  # what is open is closed where the next thing fails
            stack.enter_context(_quiet())
            self._address = scheduler or ""
            if scheduler is None:
                cluster = LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=logging.CRITICAL)
                stack.callback(cluster.close, timeout=10)
                self._address = cluster.scheduler_address
            try:
                self._client = Client(self._address, timeout=_PATIENCE, set_as_default=False)
                stack.callback(self._leave)
                self._cluster_info = self._client.sync(self._client.scheduler.identity, callback_timeout=_PATIENCE)
            except (TimeoutError, OSError, ValueError) as error:
                raise InputError(f"no Dask scheduler answers at {self._address} ({error})") from error
            if scheduler is None:
                self._own = OwnWorkers(self._address, workers)
                stack.callback(self._own.close)
            self._open = stack.pop_all()
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._running: dict[Any, Chunk] = {}
        self._later: list[Chunk] = []  # what a scheduler forgot, or what waits for the first worker
        self._asked: Any = None
        self._count = 0
        self._gpus = False
        self._silent_since: float | None = None
        self._background = [self._in_background(self._ask())]

    def _in_background(self, work: Coroutine[Any, Any, None]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)

    async def _ask(self) -> None:
        """Keep what is known of the cluster fresh, for as long as the engine lives."""
        while True:
            try:
                self._cluster_info = await asyncio.wait_for(self._client.scheduler.identity(), _PATIENCE / 2)
                self._silent_since = None
            except Exception:  # whatever it was, there is no answer
                self._silent_since = self._silent_since or time.monotonic()
            await asyncio.sleep(_LOOK)

    def _places(self) -> int:
        """Chunks that the cluster can run at once.

        Where workers declare GPUs (`dask worker --resources GPU=1`), each runs one chunk for each of them.
        """
        workers = self._cluster_info["workers"].values()
        gpus = sum(int(worker["resources"].get("GPU", 0)) for worker in workers)
        self._gpus = self._gpus or (gpus > 0 and self._device != "cpu")
        return gpus if self._gpus else sum(worker["nthreads"] for worker in workers)

    def _decided(self) -> bool:
        """Whether it is known if chunks are for GPUs. Before the first worker, it is not.

        A cluster that grows on demand starts no worker for nothing, so one is asked for by a task that does nothing.
        """
        if self._places() or self._gpus or self._own is not None or self._device == "cpu":
            self._asked = None
            return True
        if self._asked is None or self._asked.done():
            self._asked = self._client.submit(int, pure=False)
        return False

    def free(self) -> int:
        if self._silent_since is not None:
            return 0
        return max(0, (_AHEAD * self._places() or _DEMAND) - len(self._running) - len(self._later))

    def waiting(self) -> str:
        if self._silent_since is not None:
            return f"waiting: the scheduler at {self._address} does not answer"
        if self._own is not None or self._places():
            return ""
        return f"waiting: no worker{' with a GPU' if self._gpus else ''} is connected to {self._address}"

    def submit(self, chunk: Chunk) -> None:
        if not self._running and not self._decided():
            self._later.append(chunk)
            return
        self._count += 1
        future = self._client.submit(
            _on_worker, pickle.dumps(chunk), self._limits.of(chunk), versions(), pure=False,
            key=f"rarely-{chunk.number}-{self._count}", resources={"GPU": 1} if self._gpus else None,
        )  # fmt: skip
        self._running[future] = chunk
        self._in_background(self._fetch(future))

    async def _fetch(self, future: Any) -> None:
        try:
            self._arrived.put((future, await future))
        except BaseException as error:  # CancelledError, too: the scheduler was lost
            self._arrived.put((future, error))

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        self._tend()
        arrived = []
        with suppress(queue.Empty):
            arrived.append(self._arrived.get(timeout=timeout))
            while True:
                arrived.append(self._arrived.get_nowait())
        return [answer for answer in [self._answer(*one) for one in arrived] if answer is not None]

    def _tend(self) -> None:
        """Replace workers of our own, submit what had to wait, and give up a scheduler that is gone."""
        silent = self._silent_since is not None and time.monotonic() - self._silent_since > _PATIENCE
        if silent or self._client.status == "closed":
            raise RarelyError(
                f"the Dask scheduler at {self._address} does not answer any more. What is finished is kept: start the "
                "cluster again, then the same command goes on"
            )
        if self._own is not None:
            self._own.tend([worker["name"] for worker in self._cluster_info["workers"].values()])
        if self._later and self._silent_since is None and self._client.status == "running":
            later, self._later = self._later, []
            for chunk in later:
                self.submit(chunk)

    def _answer(self, future: Any, found: Any) -> ChunkAnswer | None:
        chunk = self._running.pop(future)
        if isinstance(found, asyncio.CancelledError | futures.CancelledError):
            self._later.append(chunk)
            return None
        if isinstance(found, RarelyError):  # a worker that cannot work
            raise found
        if isinstance(found, BaseException):  # its workers were lost too often, or Dask gave up
            return ChunkAnswer(chunk, failure=f"{type(found).__name__}: {found}")
        solved, failure, refused = pickle.loads(found)
        if solved is None:
            raise RarelyError(f"{failure}. Install the same there as here; what is finished is kept")
        return ChunkAnswer(chunk, solved, failure, refused)

    def close(self) -> None:
        self._open.close()

    def _leave(self) -> None:
        with suppress(Exception):  # a cluster that does not answer forgets us by itself
            self._client.close(timeout=5)  # and with us what still runs


@contextmanager
def _quiet() -> Iterator[None]:
    """No word from Dask's loggers, which have levels of their own: what they say is said here, in sentences."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    before = [(logger, logger.level) for logger in map(logging.getLogger, names)]
    for logger, _ in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _on_worker(content: bytes, limit: float | None, wanted: dict[str, str]) -> bytes:
    """Solve a chunk on a Dask worker.

    This function travels by value, and the chunk as bytes: a worker, or a scheduler, may have no rarely or another one.
    """
    import pickle
    import socket

    try:
        from rarely.campaign.dask_worker import answer_in_host
        from rarely.campaign.versions import versions

        found = versions()
    except ImportError as error:
        return pickle.dumps((None, f"a Dask worker on {socket.gethostname()} cannot use rarely ({error})", True))
    if found != wanted:
        differ = [name for name in wanted if found.get(name) != wanted[name]]
        here, there = (", ".join(f"{name} {each.get(name)}" for name in differ) for each in (wanted, found))
        return pickle.dumps((None, f"a Dask worker on {socket.gethostname()} has {there}; the driver has {here}", True))
    return answer_in_host(content, limit)


_on_worker.__module__ = "__main__"  # what pickle cannot name, it sends by value
