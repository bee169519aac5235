"""Processes that call a slow function, one input at a time each."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from rarely.core.errors import NetworkError

_SHOWN = 6  # numbers of an input that an error names

Rows = Callable[[Tensor], Tensor]


class Workers:
    """`count` copies of this process that wait for inputs.

    Copies, made by `fork`: they hold the function as it is, also one that was written in a script or a notebook, and
    run no script again. Each input is a call of its own, so that answers do not depend on how many workers share them.
    """

    def __init__(self, call: Rows, count: int) -> None:
        self._call, self._count = call, count
        self._workers: dict[connection.Connection, BaseProcess] = {}
        self._lives: list[int] = []  # pipes that end with this process, and end their worker

    def each(self, inputs: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Answers (1, *out) to inputs (1, *event) with their numbers, as they come."""
        if not self._workers:
            self._start()
        waiting, idle = deque(enumerate(inputs)), list(self._workers)
        busy: dict[connection.Connection, int] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    line, (number, x) = idle.pop(), waiting.popleft()
                    busy[line] = number
                    self._tell(line, x)
                for ready in connection.wait(list(busy)):
                    assert isinstance(ready, connection.Connection)
                    number = busy.pop(ready)
                    yield number, self._heard(ready, inputs[number])
                    idle.append(ready)
        finally:
            if busy or waiting:  # answers that nobody waits for must not be taken for those of other inputs
                self.close()

    def close(self) -> None:
        """End them, now, and leave none behind."""
        for line, process in self._workers.items():
            process.kill()
            process.join()
            process.close()
            line.close()
        for life in self._lives:
            os.close(life)
        self._workers, self._lives = {}, []

    def _start(self) -> None:
        context = get_context("fork")
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            reads, writes = os.pipe()
            self._lives.append(writes)
            others = [line.fileno() for line in self._workers] + [ours.fileno(), *self._lives]
            process = context.Process(target=_serve, args=(self._call, theirs, reads, others), daemon=True)
            with warnings.catch_warnings():  # of forks beside threads: a worker uses none that it did not start
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            os.close(reads)
            self._workers[ours] = process

    def _tell(self, line: connection.Connection, x: Tensor) -> None:
        try:
            line.send(x.detach().cpu().numpy())
        except OSError as error:
            raise self._died(line, x) from error

    def _heard(self, line: connection.Connection, x: Tensor) -> Tensor:
        try:
            good, answer = line.recv()
        except (EOFError, OSError) as error:
            raise self._died(line, x) from error
        if not good:
            raise NetworkError(f"the network failed on the input {_shown(x)}: {answer}")
        return torch.from_numpy(answer).to(x.device)

    def _died(self, line: connection.Connection, x: Tensor) -> NetworkError:
        process = self._workers[line]
        process.join()
        code = process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return NetworkError(
            f"a worker process ended ({how}) while it called the network on the input {_shown(x)}; call it there "
            "without workers to see why, or take fewer workers if memory ran out"
        )


def _serve(call: Rows, line: connection.Connection, life: int, others: Sequence[int]) -> None:
    """What a worker does until its line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it, and which ends it
    for handle in others:  # a line is closed when no process holds its other end
        os.close(handle)
    # The kernel sends a signal when the last writing end is closed: also while the function holds the interpreter.
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    if sys.platform == "linux":  # elsewhere SIGIO, which ends a process, too
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)
    torch.set_num_threads(1)  # those of the process that was copied are not here, and others have the other cores
    while True:
        try:
            x = line.recv()
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            with torch.no_grad():
                answer = True, call(torch.from_numpy(x)).cpu().numpy()
        except BaseException as error:  # the user's own code, which may also try to leave
            answer = False, f"{type(error).__name__}: {error}"
        line.send(answer)


def _shown(x: Tensor) -> str:
    numbers = x.flatten().tolist()
    more = f", ... ({len(numbers)} numbers)" if len(numbers) > _SHOWN else ""
    return f"[{', '.join(f'{value:.6g}' for value in numbers[:_SHOWN])}{more}]"
