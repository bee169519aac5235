"""Where chunks run: processes on this machine, or a Dask cluster. The driver sees one small protocol."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Protocol

from rarely.campaign.tasks import Answer, Chunk
from rarely.core.errors import RarelyError

_STARTS = 3  # of a worker that dies before it has said that it is ready


class Engine(Protocol):
    """Runs chunks. Every chunk submitted comes back as one answer; a worker that died is one, too."""

    def free(self) -> int:
        """How many chunks it would take now."""
        ...

    def submit(self, chunk: Chunk) -> None: ...

    def completed(self, timeout: float) -> Sequence[Answer]:
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


class LocalEngine:
    """Processes on this machine, one chunk each at a time. A process that dies is replaced."""

    def __init__(self, workers: int) -> None:
        self._workers = [_start(1) for _ in range(workers)]

    def free(self) -> int:
        return sum(worker.chunk is None for worker in self._workers)

    def submit(self, chunk: Chunk) -> None:
        worker = next(worker for worker in self._workers if worker.chunk is None)
        worker.chunk = chunk
        with suppress(OSError):  # it died while it had nothing to do: `completed` will notice
            worker.line.send(chunk)

    def completed(self, timeout: float) -> list[Answer]:
        lines = {worker.line: i for i, worker in enumerate(self._workers)}
        answers = []
        for line in connection.wait(list(lines), timeout):
            found = self._hear(lines[line])  # type: ignore[index]
            if found is not None:
                answers.append(found)
        return answers

    def _hear(self, i: int) -> Answer | None:
        worker = self._workers[i]
        try:
            message = worker.line.recv()
        except (EOFError, OSError):
            return self._replace(i)
        if message is None:
            worker.ready = True
            return None
        worker.chunk = None
        answer: Answer = message
        return answer

    def _replace(self, i: int) -> Answer | None:
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
            self._workers[i].chunk = dead.chunk
            with suppress(OSError):
                self._workers[i].line.send(dead.chunk)
            return None
        return Answer(dead.chunk, failure=f"the worker process died while it ran this ({end})")

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.line.close()
        for worker in self._workers:
            worker.process.wait()


def _start(starts: int) -> _Worker:
    """A worker process that talks over a socket. Not multiprocessing: that would run a user's script again."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "rarely.campaign.worker", str(theirs.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return _Worker(process, connection.Connection(ours.detach()), starts)
