"""Chunks on a Dask cluster: one of its own on this machine, or a running one by its address."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rarely.campaign.tasks import Chunk, ChunkAnswer
from rarely.campaign.work import answer
from rarely.core.errors import InputError, MissingExtra

# Dask has its workers give memory back at once, and a sampler that asks for it again at every step takes twice as long.
_KEEP_MEMORY = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
_AHEAD = 2  # chunks for each thread of the cluster: one runs, one is on its way


class DaskEngine:
    """Futures of `dask.distributed`. Dask itself moves the work of a worker that died to another one."""

    def __init__(self, workers: int, scheduler: str | None, device: str) -> None:
        try:
            from dask import config
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise MissingExtra("the dask engine needs dask: pip install 'rarely[dask]'") from error
        self._cluster = None
        if scheduler is None:
            with _ignoring_interrupts(), config.set(_KEEP_MEMORY):
                self._cluster = LocalCluster(
                    n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0",
                    silence_logs=logging.CRITICAL,
                )  # fmt: skip
        try:
            self._client = Client(self._cluster or scheduler, timeout=20)
        except (OSError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {scheduler} ({error})") from error
        self._done: queue.Queue[Any] = queue.Queue()
        self._running: dict[Any, Chunk] = {}
        self._device = device
        self._count = 0

    def free(self) -> int:
        threads: int = sum(self._client.nthreads().values())
        return max(0, _AHEAD * max(1, threads) - len(self._running))

    def submit(self, chunk: Chunk) -> None:
        self._count += 1
        future = self._client.submit(
            answer, chunk, key=f"rarely-{chunk.number}-{self._count}", pure=False,
            resources={"GPU": 1} if self._has_gpus() else None,
        )  # fmt: skip
        self._running[future] = chunk
        future.add_done_callback(self._done.put)

    def _has_gpus(self) -> bool:
        """Whether workers declare GPUs (`dask worker --resources GPU=1`): each then runs one chunk for each of them."""
        if not self._device.startswith("cuda"):
            return False
        return any("GPU" in worker["resources"] for worker in self._client.scheduler_info()["workers"].values())

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        answers = []
        try:
            answers.append(self._answer(self._done.get(timeout=timeout)))
            while True:
                answers.append(self._answer(self._done.get_nowait()))
        except queue.Empty:
            return answers

    def _answer(self, future: Any) -> ChunkAnswer:
        chunk = self._running.pop(future)
        try:
            found: ChunkAnswer = future.result()
        except Exception as error:  # the worker died too often, or does not have rarely, or Dask gave up
            return ChunkAnswer(chunk, failure=f"{type(error).__name__}: {error}")
        return found

    def close(self) -> None:
        self._client.cancel(list(self._running))
        self._client.close()
        if self._cluster is not None:
            self._cluster.close(timeout=10)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes started in here leave Ctrl-C to the driver, which then stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
