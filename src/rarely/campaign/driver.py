"""The loop of a running campaign: chunks out, answers in, results into the store, a word on how it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rarely.campaign.engines import Engine
from rarely.campaign.retries import Retries
from rarely.campaign.tasks import Chunk
from rarely.campaign.writer import Result, Writer

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

    def values(self) -> dict[str, float]:
        """What a logger of `rarely.questions.tracking` takes."""
        values = {"done": self.done, "failed": self.failed, "calls_per_second": self.calls_per_second}
        return {f"rarely/{name}": value for name, value in values.items()}


Watch = Callable[[Standing], None]


class Driver:
    """Runs what is missing. It may be stopped at any moment; the next one goes on from the store."""

    def __init__(self, writer: Writer, engine: Engine, seed: int, known: tuple[int, int, int], watch: Watch) -> None:
        self._writer, self._engine, self._watch = writer, engine, watch
        self._retries = Retries(seed)
        self._total, self._done, self._failed = known
        self._running = self._calls = self._fresh = 0
        self._started = time.monotonic()

    def run(self, missing: Iterator[Chunk]) -> Standing:
        """Drive all chunks through the engine; only as many as it takes at once are in memory."""
        self._watch(self.standing())
        while True:
            for chunk in self._next(missing):
                self._engine.submit(chunk)
                self._running += len(chunk.tasks)
            if not self._running:
                return self.standing()
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

    def _count(self, results: list[Result]) -> None:
        good = [result.solved for result in results if result.solved is not None]
        self._done += len(good)
        self._failed += len(results) - len(good)
        self._fresh += len(results)
        self._calls += sum(solved.calls for solved in good)

    def standing(self) -> Standing:
        seconds = time.monotonic() - self._started
        return Standing(self._total, self._done, self._failed, self._running, self._calls, self._fresh, seconds)
