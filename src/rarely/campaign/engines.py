"""Where chunks run: processes on this machine, or a Dask cluster. The driver sees one small protocol."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Protocol, cast

from rarely.campaign.tasks import Chunk, ChunkAnswer
from rarely.core.errors import RarelyError

_STARTS = 3  # of a worker that dies before it has said that it is ready


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


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    line: connection.Connection
    starts: int  # in a row without a word
    ready: bool = False
    chunk: Chunk | None = None

    def take(self, chunk: Chunk) -> None:
        self.chunk = chunk
        with suppress(OSError):  # it died while it had nothing to do: `completed` will notice
            self.line.send(chunk)


class LocalEngine:
    """Processes on this machine, one chunk each at a time. A process that dies is replaced."""

    def __init__(self, workers: int) -> None:
        self._workers = [_start(1) for _ in range(workers)]

    def free(self) -> int:
        return sum(worker.chunk is None for worker in self._workers)

    def submit(self, chunk: Chunk) -> None:
        next(worker for worker in self._workers if worker.chunk is None).take(chunk)

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        lines = {worker.line: i for i, worker in enumerate(self._workers)}
        heard = [self._hear(lines[line]) for line in connection.wait(list(lines), timeout)]  # type: ignore[index]
        return [answer for answer in heard if answer is not None]

    def _hear(self, i: int) -> ChunkAnswer | None:
        worker = self._workers[i]
        try:
            message = worker.line.recv()
        except (EOFError, OSError):
            return self._replace(i)
        if message is None:
            worker.ready = True
            return None
        worker.chunk = None
        return cast(ChunkAnswer, message)

    def _replace(self, i: int) -> ChunkAnswer | None:
        dead = self._workers[i]
        dead.line.close()
        code = dead.process.wait()
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        if not dead.ready and dead.starts >= _STARTS:
            raise RarelyError(f"workers cannot be started: they end with {end} before they take any work")
        self._workers[i] = _start(1 if dead.ready else dead.starts + 1)
        if dead.chunk is None:
            return None
        if not dead.ready:  # it never saw the chunk
            self._workers[i].take(dead.chunk)
            return None
        return ChunkAnswer(dead.chunk, failure=f"the worker process died while it ran this ({end})")

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.line.close()
        for worker in self._workers:
            worker.process.wait()


def _start(starts: int) -> _Worker:
    """A worker process that talks over a socket. Not multiprocessing: that would run a user's script again."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "rarely.campaign.engines", str(theirs.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return _Worker(process, connection.Connection(ours.detach()), starts)


def serve() -> None:
    """`python -m rarely.campaign.engines FD`: what a worker process does. It ends when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then stops its workers
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    line = connection.Connection(int(sys.argv[1]))
    from rarely.campaign.work import answer

    try:
        line.send(None)  # ready
        while True:
            line.send(answer(line.recv()))
    except (EOFError, OSError):
        return


def _end_with(driver: int) -> None:
    """End this process soon after its driver, even in the middle of a long chunk."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    serve()
