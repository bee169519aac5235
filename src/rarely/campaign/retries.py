"""What becomes of chunks that fail: three tries, then one problem at a time, so that only the guilty are failed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rarely.campaign.expansion import make_chunk
from rarely.campaign.tasks import Answer, Chunk
from rarely.campaign.writer import Result

TRIES = 3


@dataclass
class _Case:
    """A chunk that has failed."""

    whole: Chunk
    failures: int = 0
    alone: dict[int, Result] = field(default_factory=dict)  # by place, once the problems run one by one
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

    def take(self, answer: Answer) -> list[Result] | None:
        """The final results of the answer's chunk, or None where it must wait for more."""
        case = self._cases.get(answer.chunk.number)
        if case is None or answer.chunk == case.whole:
            return self._whole(answer, case or _Case(answer.chunk))
        return self._alone(answer, case)

    def _whole(self, answer: Answer, case: _Case) -> list[Result] | None:
        chunk = answer.chunk
        if not answer.failure:
            self._cases.pop(chunk.number, None)
            found = zip(chunk.tasks, answer.solved, strict=True)
            return [Result(task.index, case.failures + 1, solved) for task, solved in found]
        self._cases[chunk.number] = case
        case.failures += 1
        if case.failures % TRIES:
            self.waiting.append(chunk)
        elif len(chunk.tasks) == 1:
            return self._end(case, [Result(chunk.tasks[0].index, case.failures, None, answer.failure)])
        elif case.alone:
            return self._end(case, self._by_place(case))
        else:
            self.waiting.extend(make_chunk(chunk.number, self._seed, chunk.method, (task,)) for task in chunk.tasks)
        return None

    def _alone(self, answer: Answer, case: _Case) -> list[Result] | None:
        (task,) = answer.chunk.tasks
        tries = case.tries[task.index] = case.tries.get(task.index, 0) + 1
        if answer.failure and tries < TRIES:
            self.waiting.append(answer.chunk)
            return None
        solved = None if answer.failure else answer.solved[0]
        case.alone[task.index] = Result(task.index, case.failures + tries, solved, answer.failure)
        if len(case.alone) < len(case.whole.tasks):
            return None
        if any(result.solved is None for result in case.alone.values()):
            return self._end(case, self._by_place(case))
        self.waiting.append(case.whole)
        return None

    def _by_place(self, case: _Case) -> list[Result]:
        return [case.alone[task.index] for task in case.whole.tasks]

    def _end(self, case: _Case, results: list[Result]) -> list[Result]:
        del self._cases[case.whole.number]
        return results
