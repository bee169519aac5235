"""What becomes of failing chunks, on made-up answers."""

from __future__ import annotations

from collections.abc import Callable

from rarely.campaign.driver import TRIES, Retries
from rarely.campaign.tasks import Chunk, ChunkAnswer, File, Method, PropertyPlace, Solved, Task, make_chunk
from rarely.campaign.writer import TaskResult

METHOD = Method({"method": "auto"}, 0.95, None, "cpu")


def chunk(size: int) -> Chunk:
    place = PropertyPlace(File("x", ""), None)
    tasks = tuple(Task(i, f"{i:016x}", f"p{i}", "", "", "", "", None, 0, None, place) for i in range(size))
    return make_chunk(0, 1, METHOD, tasks)


def drive(whole: Chunk, fails: Callable[[Chunk], bool], reason: str = "broken") -> tuple[list[TaskResult], list[Chunk]]:
    """Run until there are results; each answer says by its log_prob in how large a company it was made."""
    retries, todo, ran = Retries(1), [whole], []
    while todo:
        now = todo.pop(0)
        ran.append(now)
        solved = tuple(Solved("{}", "violated", float(len(now.tasks)), 0.0, 1, None) for _ in now.tasks)
        results = retries.take(ChunkAnswer(now, failure=reason) if fails(now) else ChunkAnswer(now, solved))
        if results is not None:
            assert not retries.waiting
            assert not todo
            return results, ran
        todo.extend(retries.waiting)
        retries.waiting.clear()
    raise AssertionError("nothing left to run and no results")


def test_a_chunk_that_works_is_taken_as_it_is() -> None:
    results, ran = drive(chunk(4), lambda c: False)
    assert [r.attempts for r in results] == [1] * 4
    assert len(ran) == 1


def test_a_passing_failure_leaves_no_trace_but_the_count() -> None:
    failures = iter([True, True, False])
    results, ran = drive(chunk(4), lambda c: next(failures))
    assert ran == [chunk(4)] * 3
    assert [(r.attempts, r.solved and r.solved.log_prob) for r in results] == [(3, 4.0)] * 4


def test_only_the_guilty_are_failed() -> None:
    results, ran = drive(chunk(4), lambda c: any(task.index == 2 for task in c.tasks))
    assert [r.solved is None for r in results] == [False, False, True, False]
    assert results[2].reason == "broken"
    assert results[2].attempts == 2 * TRIES
    assert all(r.reason == "" and r.solved and r.solved.log_prob == 1.0 for r in results if r.place != 2)
    assert len(ran) == TRIES + 3 + TRIES


def test_bad_luck_does_not_change_the_numbers() -> None:
    """Three deaths by chance: all problems work alone, so the chunk runs whole again and that is what counts."""
    results, ran = drive(chunk(4), lambda c: len(ran_so_far) < TRIES and not ran_so_far.append(c))
    assert [r.solved and r.solved.log_prob for r in results] == [4.0] * 4
    assert len(ran) == TRIES + 4 + 1


ran_so_far: list[Chunk] = []


def test_what_fails_only_in_company_is_taken_alone() -> None:
    results, ran = drive(chunk(4), lambda c: len(c.tasks) > 1)
    assert [r.solved and r.solved.log_prob for r in results] == [1.0] * 4
    assert len(ran) == TRIES + 4 + TRIES


def test_a_single_problem_fails_after_three_tries() -> None:
    results, ran = drive(chunk(1), lambda c: True)
    assert results == [TaskResult(0, TRIES, None, "broken")]
    assert len(ran) == TRIES


LATE = "out of time: more than 1 s"


def test_what_is_out_of_time_is_not_tried_again() -> None:
    results, ran = drive(chunk(1), lambda c: True, LATE)
    assert results == [TaskResult(0, 1, None, LATE)]
    results, ran = drive(chunk(4), lambda c: any(task.index == 2 for task in c.tasks), LATE)
    assert [r.solved is None for r in results] == [False, False, True, False]
    assert (results[2].reason, results[2].attempts) == (LATE, 2)
    assert len(ran) == 1 + 4


def test_a_chunk_late_by_chance_runs_whole_again() -> None:
    late = iter([True])
    results, ran = drive(chunk(4), lambda c: next(late, False), LATE)
    assert [r.solved and r.solved.log_prob for r in results] == [4.0] * 4
    assert len(ran) == 1 + 4 + 1


def test_a_chunk_late_only_in_company_is_failed() -> None:
    """Answers of problems alone would be other numbers, which no later run would replace."""
    results, ran = drive(chunk(4), lambda c: len(c.tasks) > 1, LATE)
    assert {r.reason for r in results} == {
        f"{LATE} together, each of which ends in time alone: they need a larger chunk_seconds"
    }
    assert len(ran) == 1 + 4 + 1
