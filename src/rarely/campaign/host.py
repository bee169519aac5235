"""A child process that answers chunks, one at a time. Whatever a network does in there, the chunk gets an answer.

Both engines run chunks in hosts: a time limit, a crash and a process that hangs are handled here and nowhere else. This
module is light: a Dask worker imports it, and must neither wait for torch nor hold its memory.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import cast

from rarely.campaign.tasks import Chunk, ChunkAnswer
from rarely.campaign.versions import versions
from rarely.core.errors import RarelyError

OUT_OF_TIME = "out of time"
"""How the reason of a problem begins that did not end within its limit."""

STARTS = 3  # of a process that dies before it has said that it is ready
_STOPPED = 10.0  # seconds that a process may be stopped (SIGSTOP), and that a message may take
_IDLE = 600.0  # seconds without a chunk after which a host ends: one that nobody needs should hold no memory
_LOOK = 5.0  # seconds that count at most between two looks: more went by only if this process itself was stopped


@dataclass(frozen=True)
class Limits:
    """Seconds of one problem and of a chunk; None: no limit."""

    seconds: float | None = None
    chunk_seconds: float | None = None

    def of(self, chunk: Chunk) -> float | None:
        together = None if self.seconds is None else self.seconds * len(chunk.tasks)
        first, second = self.chunk_seconds, together
        if len(chunk.tasks) == 1:
            first, second = second, first
        return second if first is None else first


@dataclass
class Child:
    """A process that ends with this one, however that happens."""

    process: subprocess.Popen[bytes]
    life: int  # the writing end of a pipe; the kernel kills the child when nobody holds it any more
    _stopped_since: float | None = field(default=None, init=False)

    def hangs(self) -> bool:
        """Whether it has been stopped for so long that nobody can be waiting for it."""
        if os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
            self._stopped_since = None
            return False
        now = time.monotonic()
        self._stopped_since = self._stopped_since or now
        return now - self._stopped_since > _STOPPED

    def end(self) -> str:
        """Kill it, if it is not dead yet, and say how it ended."""
        self.process.kill()
        os.close(self.life)
        try:
            code = self.process.wait(timeout=_STOPPED)
        except subprocess.TimeoutExpired:  # the kernel holds it, in a file system that does not answer, say
            return "it cannot be killed"
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def start(command: Sequence[str], environment: dict[str, str], *handles: int) -> Child:
    """Start Python with this process's way of finding modules.

    Its life hangs on a pipe: the kernel sends a signal to the owner of the reading end when the last writing end is
    closed. No code runs in the child for that, so it also ends while a network holds the interpreter; and unlike
    PR_SET_PDEATHSIG it does not depend on the thread that started it.
    """
    reads, writes = os.pipe()
    environment = {**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, *command], pass_fds=[reads, *handles], env=environment, stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the driver, which then ends its children
    )  # fmt: skip
    fcntl.fcntl(reads, fcntl.F_SETOWN, process.pid)
    if hasattr(fcntl, "F_SETSIG"):  # Linux; elsewhere SIGIO, which ends a process unless it is stopped
        fcntl.fcntl(reads, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reads, fcntl.F_SETFL, os.O_ASYNC)
    os.close(reads)
    return Child(process, writes)


class Host:
    """A place for one chunk at a time. The process behind it is replaced when it dies."""

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self._limit: float | None = None
        self._start(1)

    def _start(self, starts: int) -> None:
        """Over a socket, not by multiprocessing: that would run a user's script again."""
        ours, theirs = socket.socketpair()
        patience = struct.pack("ll", int(_STOPPED), 0)
        for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # of ours alone
            ours.setsockopt(socket.SOL_SOCKET, way, patience)
        command = ["-m", "rarely.campaign.host", str(theirs.fileno())]
        self._child = start(command, dict(os.environ), theirs.fileno())
        theirs.close()
        self.line = connection.Connection(ours.detach())
        self._starts = starts  # in a row without a word
        self._ready = False

    def give(self, chunk: Chunk, limit: float | None) -> None:
        """Begin with a chunk, which must be answered within `limit` seconds."""
        self.look()  # it may have ended while it had nothing to do
        self.chunk, self._limit = chunk, limit
        self._used, self._looked = 0.0, time.monotonic()
        try:
            self.line.send(chunk)
        except OSError:  # dead, or it does not read: `look` will notice
            self._child.process.kill()

    def look(self) -> ChunkAnswer | None:
        """The answer, if there is one by now. Does not wait; to be called about once a second."""
        try:
            if self.line.poll():
                return self._hear(self.line.recv())
        except (EOFError, OSError):
            return self._replace()
        if self._child.process.poll() is not None:  # what it started may still hold the line
            return self._replace()
        if self._child.hangs():
            return self._replace("the worker process was stopped and did not go on")
        if self.chunk is not None and self._ready and self._limit is not None:
            now = time.monotonic()
            self._used += min(now - self._looked, _LOOK)
            self._looked = now
            if self._used > self._limit:
                what = f" for these {len(self.chunk.tasks)} problems" if len(self.chunk.tasks) > 1 else ""
                return self._replace(f"{OUT_OF_TIME}: more than {self._limit:g} s{what}")
        return None

    def _hear(self, message: object) -> ChunkAnswer | None:
        if isinstance(message, dict):
            if message != versions():
                raise RarelyError(
                    "rarely, or what it computes with, was changed while the campaign was running; what is finished is "
                    "kept. Put it back to go on, or start again with --new"
                )
            self._ready, self._looked = True, time.monotonic()
            return None
        self.chunk = None
        return cast(ChunkAnswer, message)

    def _replace(self, reason: str = "") -> ChunkAnswer | None:
        """Another process in the place of this one, and the answer for what it was at."""
        end = self._child.end()
        self.line.close()
        if not self._ready and self._starts >= STARTS:
            raise RarelyError(f"workers cannot be started: they end with {end} before they take any work")
        saw, chunk, self.chunk = self._ready, self.chunk, None
        self._start(1 if saw else self._starts + 1)
        if chunk is None:
            return None
        if not saw:
            self.give(chunk, self._limit)
            return None
        return ChunkAnswer(chunk, failure=reason or f"the worker process died while it ran this ({end})")

    def close(self) -> None:
        """End the process at once."""
        self._child.end()
        self.line.close()


def serve() -> None:
    """`python -m rarely.campaign.host FD`: what the process does."""
    line = connection.Connection(int(sys.argv[1]))
    versions()  # of what is imported now
    from rarely.campaign.work import answer

    with suppress(EOFError, OSError):
        line.send(versions())  # ready
        while line.poll(_IDLE):
            chunk = line.recv()
            try:
                found = answer(chunk)
            except BaseException as error:  # a network may also raise SystemExit or KeyboardInterrupt
                found = ChunkAnswer(chunk, failure=f"{type(error).__name__}: {error}".removesuffix(": "))
            line.send(found)
    os._exit(0)  # whatever threads a network has left


if __name__ == "__main__":
    serve()
