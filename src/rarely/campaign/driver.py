"""The loop of a running campaign: chunks out, answers in, results into the store, a word on how it stands.

A chunk that fails is tried three times, then one problem at a time, so that only the guilty are failed. One that is out
of time is not tried again before that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rarely.campaign.engines import Engine, MayWait
from rarely.campaign.host import OUT_OF_TIME
from rarely.campaign.tasks import Chunk, ChunkAnswer, make_chunk
from rarely.campaign.writer import TaskResult, Writer
from rarely.core.errors import InputError

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
    late: int = 0  # of the failed: out of time
    waiting: str = ""  # what the workers wait for, in words; empty while they work

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

    def __init__(self, writer: Writer, engine: Engine, seed: int, before: Standing, watch: Watch) -> None:
        self._writer, self._engine, self._watch = writer, engine, watch
        self._retries = Retries(seed)
        self._total, self._done, self._failed, self._late = before.total, before.done, before.failed, before.late
        self._running = self._calls = self._fresh = 0
        self._started = time.monotonic()

    def rehearse(self, samples: Iterable[tuple[Chunk, Chunk]]) -> None:
        """Build the first and the last problem of each source, where they will run.

        Where neither can be built, a wrong shape, say, the run should end now and not fail every problem. Not in this
        process: a network may hang or end it. What does is met again in the run, which fails it alone.
        """
        for first, last in samples:
            if self._tried(first).refused and (answer := self._tried(last)).refused:
                raise InputError(answer.failure)

    def _tried(self, chunk: Chunk) -> ChunkAnswer:
        waiting = [chunk]
        while True:
            if waiting and self._engine.free():
                self._engine.submit(waiting.pop())
            for answer in self._engine.completed(_PATIENCE):
                return answer
            self._watch(self.standing())

    def run(self, missing: Iterator[Chunk]) -> None:
        """Drive all chunks through the engine; only as many as it takes at once are in memory."""
        self._watch(self.standing())
        while True:
            left = self._submit(missing)
            if not left and not self._running:
                return
            for answer in self._engine.completed(_PATIENCE):
                self._running -= len(answer.chunk.tasks)
                results = self._retries.take(answer)
                if results is not None:
                    self._writer.commit(results)
                    self._count(results)
            self._watch(self.standing())

    def _submit(self, missing: Iterator[Chunk]) -> bool:
        """Give the engine what it takes; False where nothing is left, so far as the engine let us look."""
        waiting = self._retries.waiting
        while self._engine.free():
            chunk = waiting.popleft() if waiting else next(missing, None)
            if chunk is None:
                return False
            self._engine.submit(chunk)
            self._running += len(chunk.tasks)
        return True  # perhaps: an engine that takes nothing now, its cluster being away, must not end the run

    def _count(self, results: list[TaskResult]) -> None:
        good = [result.solved for result in results if result.solved is not None]
        self._done += len(good)
        self._failed += len(results) - len(good)
        self._late += sum(result.reason.startswith(OUT_OF_TIME) for result in results)
        self._fresh += len(results)
        self._calls += sum(solved.calls for solved in good)

    def standing(self) -> Standing:
        seconds = time.monotonic() - self._started
        waiting = self._engine.waiting() if isinstance(self._engine, MayWait) else ""
        return Standing(
            self._total, self._done, self._failed, self._running, self._calls, self._fresh, seconds, self._late, waiting
        )  # fmt: skip


@dataclass
class _Case:
    """A chunk that has failed."""

    whole: Chunk
    failures: int = 0
    left: int = TRIES  # before the next thing is tried
    alone: dict[int, TaskResult] = field(default_factory=dict)  # by place, once the problems run one by one
    tries: dict[int, int] = field(default_factory=dict)


class Retries:
    """Turns answers into results, or into chunks to run again (`waiting`).

    A chunk's numbers depend on what is in it. So that a worker killed by chance leaves no trace in them, results of
    problems that ran alone count only where one of them failed, or where the whole chunk fails whatever is done.
    Where one of them was out of time, `--retry-failed` runs the whole chunk again, and then their numbers are those of
    a run without limit.
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
        late = answer.failure.startswith(OUT_OF_TIME)
        case.left = 0 if late else case.left - 1
        if case.left:
            self.waiting.append(chunk)
            return None
        case.left = TRIES
        if len(chunk.tasks) == 1:
            return self._end(case, [TaskResult(chunk.tasks[0].index, case.failures, None, answer.failure)])
        if case.alone and late:  # answers of problems alone would be other numbers than without a limit, and for good
            reason = f"{answer.failure} together, each of which ends in time alone: they need a larger chunk_seconds"
            return self._end(case, [TaskResult(task.index, case.failures + 1, None, reason) for task in chunk.tasks])
        if case.alone:
            return self._end(case, self._by_place(case))
        self.waiting.extend(make_chunk(chunk.number, self._seed, chunk.method, (task,)) for task in chunk.tasks)
        return None

    def _alone(self, answer: ChunkAnswer, case: _Case) -> list[TaskResult] | None:
        (task,) = answer.chunk.tasks
        tries = case.tries[task.index] = case.tries.get(task.index, 0) + 1
        if answer.failure and tries < TRIES and not answer.failure.startswith(OUT_OF_TIME):
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
