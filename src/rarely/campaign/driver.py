"""The loop of a running campaign: chunks out, answers in, results into the store, a word on how it stands.

A chunk that fails is tried three times, then one problem at a time, so that only the guilty are failed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rarely.campaign.engines import Engine
from rarely.campaign.tasks import Chunk, ChunkAnswer, make_chunk
from rarely.campaign.writer import TaskResult, Writer

TRIES = 3
_PATIENCE = 0.5  # seconds between two words when nothing arrives


@dataclass(frozen=True)
class Standing:
    """Where a campaign stands."""

    total: int
    done: int
    failed: int
    running: int  # problems that workers have now
    calls: int  # network calls of this run, a gradient counted as three
    fresh: int  # problems finished by this run
    seconds: float  # of this run

    @property
    def calls_per_second(self) -> float:
        return self.calls / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None until there is one."""
        left = self.total - self.done - self.failed
        return self.seconds * left / self.fresh if self.fresh else None


Watch = Callable[[Standing], None]


class Driver:
    """Runs what is missing. It may be stopped at any moment; the next one goes on from the store."""

    def __init__(self, writer: Writer, engine: Engine, seed: int, known: tuple[int, int, int], watch: Watch) -> None:
        self._writer, self._engine, self._watch = writer, engine, watch
        self._retries = Retries(seed)
        self._total, self._done, self._failed = known
        self._running = self._calls = self._fresh = 0
        self._started = time.monotonic()

    def run(self, missing: Iterator[Chunk]) -> None:
        """Drive all chunks through the engine; only as many as it takes at once are in memory."""
        self._watch(self.standing())
        while True:
            for chunk in self._next(missing):
                self._engine.submit(chunk)
                self._running += len(chunk.tasks)
            if not self._running:
                return
            for answer in self._engine.completed(_PATIENCE):
                self._running -= len(answer.chunk.tasks)
                results = self._retries.take(answer)
                if results is not None:
                    self._writer.commit(results)
                    self._count(results)
            self._watch(self.standing())

    def _next(self, missing: Iterator[Chunk]) -> Iterator[Chunk]:
        waiting = self._retries.waiting
        while self._engine.free():
            chunk = waiting.popleft() if waiting else next(missing, None)
            if chunk is None:
                return
            yield chunk

    def _count(self, results: list[TaskResult]) -> None:
        good = [result.solved for result in results if result.solved is not None]
        self._done += len(good)
        self._failed += len(results) - len(good)
        self._fresh += len(results)
        self._calls += sum(solved.calls for solved in good)

    def standing(self) -> Standing:
        seconds = time.monotonic() - self._started
        return Standing(self._total, self._done, self._failed, self._running, self._calls, self._fresh, seconds)


@dataclass
class _Case:
    """A chunk that has failed."""

    whole: Chunk
    failures: int = 0
    alone: dict[int, TaskResult] = field(default_factory=dict)  # by place, once the problems run one by one
    tries: dict[int, int] = field(default_factory=dict)


class Retries:
    """Turns answers into results, or into chunks to run again (`waiting`).

    A chunk's numbers depend on what is in it. So that a worker killed by chance leaves no trace in them, results of
    problems that ran alone count only where one of them failed, or where the whole chunk fails whatever is done.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._cases: dict[int, _Case] = {}
        self.waiting: deque[Chunk] = deque()

    def take(self, answer: ChunkAnswer) -> list[TaskResult] | None:
        """The final results of the answer's chunk, or None where it must wait for more."""
        case = self._cases.get(answer.chunk.number)
        if case is None or answer.chunk == case.whole:
            return self._whole(answer, case or _Case(answer.chunk))
        return self._alone(answer, case)

    def _whole(self, answer: ChunkAnswer, case: _Case) -> list[TaskResult] | None:
        chunk = answer.chunk
        if not answer.failure:
            self._cases.pop(chunk.number, None)
            found = zip(chunk.tasks, answer.solved, strict=True)
            return [TaskResult(task.index, case.failures + 1, solved) for task, solved in found]
        self._cases[chunk.number] = case
        case.failures += 1
        if case.failures % TRIES:
            self.waiting.append(chunk)
        elif len(chunk.tasks) == 1:
            return self._end(case, [TaskResult(chunk.tasks[0].index, case.failures, None, answer.failure)])
        elif case.alone:
            return self._end(case, self._by_place(case))
        else:
            self.waiting.extend(make_chunk(chunk.number, self._seed, chunk.method, (task,)) for task in chunk.tasks)
        return None

    def _alone(self, answer: ChunkAnswer, case: _Case) -> list[TaskResult] | None:
        (task,) = answer.chunk.tasks
        tries = case.tries[task.index] = case.tries.get(task.index, 0) + 1
        if answer.failure and tries < TRIES:
            self.waiting.append(answer.chunk)
            return None
        solved = None if answer.failure else answer.solved[0]
        case.alone[task.index] = TaskResult(task.index, case.failures + tries, solved, answer.failure)
        if len(case.alone) < len(case.whole.tasks):
            return None
        if any(result.solved is None for result in case.alone.values()):
            return self._end(case, self._by_place(case))
        self.waiting.append(case.whole)
        return None

    def _by_place(self, case: _Case) -> list[TaskResult]:
        return [case.alone[task.index] for task in case.whole.tasks]

    def _end(self, case: _Case, results: list[TaskResult]) -> list[TaskResult]:
        del self._cases[case.whole.number]
        return results
