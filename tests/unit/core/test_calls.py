"""Slow functions: by rows, by processes, and with answers that survive what kills a run."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rarely import Gaussian, Problem, Running, Splitting, estimate, vectorize
from rarely.core.errors import InputError, NetworkError, StoreError
from rarely.core.journal import Journal
from rarely.core.workers import Workers

NORMAL = Gaussian([0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0])
SMALL = Splitting(40, islands=2)


def margin(x: np.ndarray) -> np.ndarray:
    """Of a batch, with sums whose last bits do not depend on how many rows there are."""
    return 4.0 + 0.5 * x[:, 2] - np.abs(x[:, 0]) - 0.1 * np.square(x[:, 1])


def margin_of_row(row: np.ndarray) -> float:
    return float(margin(row[None])[0])


def failing(x: Tensor, y: Tensor) -> Tensor:
    return -y.flatten()


def _said(found: Any) -> tuple[Any, ...]:
    """All of an estimate but the clock."""
    return found.log_prob, found.interval, found.evaluations, found.witnesses.inputs.tolist(), found.notes


def _none_left() -> bool:
    """No child, living or dead. Who asks for the children that multiprocessing knows would reap them."""
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0) and not multiprocessing.active_children()
    except ChildProcessError:
        return True


# By rows ------------------------------------------------------------------------------------------------------------


def test_a_function_of_one_input_is_a_network() -> None:
    @vectorize
    def of_row(row: np.ndarray) -> float:
        return float(4.0 + 0.5 * row[2] - abs(row[0]) - 0.1 * row[1] ** 2)

    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    by_rows, by_batch = (Problem(f, failing, NORMAL) for f in (of_row, margin))
    torch.testing.assert_close(by_rows.score(x), by_batch.score(x))
    assert not by_rows.adapted.differentiable


def test_rows_of_tensors_keep_their_gradient_and_may_give_several_numbers() -> None:
    problem = Problem(vectorize(lambda row: torch.stack([row.sum(), row.prod()])), lambda x, y: y[:, 0] - 5, NORMAL)
    assert problem.adapted.differentiable
    assert problem.outputs == 2


def test_what_is_no_function_has_no_rows() -> None:
    with pytest.raises(InputError, match="takes a function of one input, not int"):
        vectorize(3)  # type: ignore[arg-type]


# Workers ------------------------------------------------------------------------------------------------------------


def test_numbers_do_not_depend_on_workers() -> None:
    factor = 1.0
    problem = Problem(lambda x: factor * margin(x), failing, NORMAL)  # what cannot be pickled
    said = [_said(estimate(problem, SMALL, seed=1, workers=workers)) for workers in (None, 1, 3)]
    assert said[0] == said[1] == said[2]
    assert _none_left()


def test_answers_come_back_to_their_own_inputs() -> None:
    """The first input takes longest, so that answers in the order in which they come would be wrong."""
    workers = Workers(lambda x: (time.sleep(0.2 if x[0, 0] == 0 else 0.0), 10 * x)[1], 2)
    inputs = [torch.tensor([[float(k)]]) for k in range(6)]
    try:
        came = list(workers.each(inputs))
    finally:
        workers.close()
    assert [number for number, _ in came] != list(range(6))
    assert all(float(answer) == 10 * number for number, answer in came)


def test_an_error_in_a_worker_names_the_input() -> None:
    def sometimes(x: np.ndarray) -> np.ndarray:
        if abs(x[0, 0]) > 2:
            raise ValueError("the solver diverged")
        return margin(x)

    problem = Problem(sometimes, failing, NORMAL)
    with pytest.raises(NetworkError, match=r"failed on the input \[-?[2-9].*\]: ValueError: the solver diverged"):
        estimate(problem, SMALL, workers=2)
    assert _none_left()


@pytest.mark.parametrize(("end", "how"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9"),
                                          (lambda: os._exit(3), "exit code 3")])  # fmt: skip
def test_a_worker_that_dies_is_told(end: Any, how: str) -> None:
    here = os.getpid()

    def deadly(x: np.ndarray) -> np.ndarray:
        if os.getpid() != here and abs(x[0, 0]) > 2:
            end()
        return margin(x)

    with pytest.raises(NetworkError, match=rf"ended \({how}\) while it called the network on the input \["):
        estimate(Problem(deadly, failing, NORMAL), SMALL, workers=2)
    assert _none_left()


def test_a_run_that_is_left_leaves_no_workers() -> None:
    run = iter(Running([Problem(margin, failing, NORMAL)], SMALL, workers=2))
    next(run)
    assert len(multiprocessing.active_children()) == 2
    run.close()  # type: ignore[attr-defined]
    assert _none_left()


def test_answers_that_nobody_waited_for_are_not_given_to_others() -> None:
    workers = Workers(lambda x: 10 * x, 2)
    try:
        first = workers.each([torch.tensor([[float(k)]]) for k in range(8)])
        next(first)
        first.close()
        again = dict(workers.each([torch.tensor([[100.0 + k]]) for k in range(8)]))
    finally:
        workers.close()
    assert all(float(again[k]) == 10 * (100 + k) for k in range(8))


def _slowly(path: Path, pause: float, checkpoint: bool) -> None:
    """An estimate with two workers that tells of every call and leaves what it says beside `path`."""

    def slow(row: np.ndarray) -> float:
        time.sleep(pause)
        with open(f"{path}.calls", "a") as file:
            file.write(f"{os.getpid()}\n")
        return margin_of_row(row)

    problem = Problem(vectorize(slow), failing, NORMAL)
    try:
        kept = path if checkpoint else None
        found = estimate(problem, SMALL, seed=1, device="cpu", workers=2, checkpoint=kept)  # a fork has no GPU
    except KeyboardInterrupt:
        Path(f"{path}.interrupted").touch()
    else:
        Path(f"{path}.said").write_text(repr(_said(found)))


def _start(path: Path, pause: float, checkpoint: bool) -> Any:
    run = multiprocessing.get_context("fork").Process(target=_slowly, args=(path, pause, checkpoint))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run.start()
    return run


def _calls(path: Path) -> list[int]:
    calls = Path(f"{path}.calls")
    return [int(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def _until(what: Any) -> bool:
    """Whether it comes true in a minute: no test rests on how fast a machine is."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if what():
            return True
        time.sleep(0.01)
    return False


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    """Also when that is killed while they are in a call that takes long."""
    path = tmp_path / "run"
    run = _start(path, 0.02, checkpoint=False)
    assert _until(lambda: len(set(_calls(path)) - {run.pid}) == 2)
    workers = set(_calls(path)) - {run.pid}
    os.kill(run.pid, how)
    run.join()
    assert Path(f"{path}.interrupted").exists() == (how == signal.SIGINT)
    assert all(_until(lambda pid=pid: _gone(pid)) for pid in workers)


# Checkpoints --------------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_goes_on_and_says_the_same_bits(tmp_path: Path) -> None:
    """Killed at three moments, each later than the one before; no answer that was kept is asked for again."""
    _slowly(tmp_path / "whole", 0.0, checkpoint=False)
    expected, path = (tmp_path / "whole.said").read_text(), tmp_path / "run.rarely"
    for kept in (40, 200, 500):
        run = _start(path, 0.002, checkpoint=True)
        assert _until(lambda kept=kept: path.exists() and path.stat().st_size > 150 * kept)
        run.kill()
        run.join()
        assert not (tmp_path / "run.rarely.said").exists()
    _slowly(path, 0.0, checkpoint=True)
    assert (tmp_path / "run.rarely.said").read_text() == expected
    # Four runs ask eight inputs to see what the function is, and one for the file; a kill loses one for each worker.
    assert len(_calls(path)) <= len(_calls(tmp_path / "whole")) + 3 * (8 + 1 + 2) + 1


def test_a_finished_run_asks_for_nothing(tmp_path: Path) -> None:
    asked = [0]

    def counted(x: np.ndarray) -> np.ndarray:
        asked[0] += len(x)
        return margin(x)

    problem, path = Problem(counted, failing, NORMAL), tmp_path / "run.rarely"
    first = estimate(problem, SMALL, seed=2, checkpoint=path)
    before = asked[0]
    again = estimate(problem, SMALL, seed=2, checkpoint=path)
    assert _said(first) == _said(again) == _said(estimate(problem, SMALL, seed=2))
    assert asked[0] - before <= 1 + first.evaluations + 8  # one to check the file, and all of the run without it
    other = estimate(problem, SMALL, seed=3, checkpoint=path)  # other inputs, which are asked
    assert _said(other) == _said(estimate(problem, SMALL, seed=3))


def test_several_functions_share_a_file(tmp_path: Path) -> None:
    problems = [Problem(margin, failing, NORMAL), Problem(lambda x: margin(x) + 0.5, failing, NORMAL)]
    plain = [_said(found) for found in estimate(problems, SMALL, seed=4)]
    for _ in range(2):
        kept = estimate(problems, SMALL, seed=4, checkpoint=tmp_path / "both")
        assert [_said(found) for found in kept] == plain


def test_a_damaged_end_is_cut_off_wherever_it_was_damaged(tmp_path: Path) -> None:
    path, x = tmp_path / "answers", torch.arange(12.0).reshape(4, 3)
    journal = Journal(path)
    for row in x.split(1):
        journal.add(0, row, 2 * row)
    journal.close()
    whole = path.read_bytes()
    record = (len(whole) - len(b"rarely answers 1\n")) // len(x)
    for cut in (*range(1, record, 7), record):
        path.write_bytes(whole[:-cut])
        _after_damage(path, x, whole, kept=3)
    for place in range(1, record, 7):  # a byte of the last answer, of its length, of its checksum, or of its name
        path.write_bytes(whole[:-place] + bytes([whole[-place] ^ 0x40]) + whole[len(whole) - place + 1 :])
        _after_damage(path, x, whole, kept=3)


def _after_damage(path: Path, x: Tensor, whole: bytes, kept: int) -> None:
    journal = Journal(path)
    assert len(journal) == kept
    assert [journal.find(0, row) is not None for row in x.split(1)] == [True] * kept + [False] * (len(x) - kept)
    journal.add(0, x[kept : kept + 1], 2 * x[kept : kept + 1])
    journal.close()
    assert path.read_bytes() == whole


def test_an_answer_belongs_to_its_input_and_its_network(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "answers")
    x = torch.tensor([[1.0, 2.0]])
    journal.add(0, x, torch.tensor([[3.0]]))
    assert journal.find(0, x).tolist() == [[3.0]]  # type: ignore[union-attr]
    for network, other in ((1, x), (0, x + 1e-6), (0, x.double()), (0, x.T), (0, x[:, :1])):
        assert journal.find(network, other) is None
    journal.close()


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.rarely"
    estimate(Problem(margin, failing, NORMAL), SMALL, checkpoint=path)
    kept = path.read_bytes()
    refused = [
        (Problem(lambda x: x[:, 0] + 5, failing, Gaussian([0.0, 0.0], std=[1.0, 1.0])), "checkpoint of other problems"),
        (Problem(margin, failing, Gaussian([1.0, 0.0, 0.0], std=[1.0] * 3)), "checkpoint of other problems"),
        (Problem(lambda x: margin(x) + 0.1, failing, NORMAL), "does not answer as it did"),
    ]
    for problem, says in refused:
        with pytest.raises(StoreError, match=says):
            estimate(problem, SMALL, checkpoint=path)
        assert path.read_bytes() == kept


def test_files_that_cannot_be_a_checkpoint_are_told(tmp_path: Path) -> None:
    problem, letter = Problem(margin, failing, NORMAL), tmp_path / "letter.txt"
    letter.write_text("Dear all, this is no checkpoint.")
    with pytest.raises(StoreError, match="is not a checkpoint of rarely"):
        estimate(problem, SMALL, checkpoint=letter)
    assert letter.read_text().startswith("Dear all")
    with pytest.raises(StoreError, match="cannot be used as a checkpoint: Is a directory"):
        estimate(problem, SMALL, checkpoint=tmp_path)
    with pytest.raises(StoreError, match="it is not a file"):
        estimate(problem, SMALL, checkpoint="/dev/null")
    with pytest.raises(StoreError, match="No such file"):
        estimate(problem, SMALL, checkpoint=tmp_path / "nowhere" / "run")


def test_a_file_in_use_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.rarely"
    run = _start(path, 0.05, checkpoint=True)
    try:
        assert _until(lambda: path.exists() and path.stat().st_size > 200)
        with pytest.raises(StoreError, match="in use by another run"):
            estimate(Problem(margin, failing, NORMAL), SMALL, checkpoint=path)
    finally:
        run.kill()
        run.join()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "run.rarely", os.write

    def full(handle: int, data: bytes) -> int:
        if os.path.getsize(path) > 2_000 and os.fstat(handle).st_ino == path.stat().st_ino:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="cannot be written: No space left on device; the answers so far are kept"):
        estimate(Problem(vectorize(margin_of_row), failing, NORMAL), SMALL, checkpoint=path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 2}, "a torch module runs on batches"),
        ({"checkpoint": "run"}, "a torch module runs on batches"),
    ],
)
def test_what_cannot_help_is_told_before_anything_runs(options: dict[str, Any], says: str) -> None:
    network: Any = nn.Linear(3, 1).eval() if "at least" not in says else margin
    with pytest.raises(InputError, match=says):
        Running([Problem(network, failing, NORMAL)], SMALL, **options)


def test_a_stopped_run_leaves_no_workers_either() -> None:
    run = Running([Problem(lambda x: (time.sleep(0.002), margin(x))[1], failing, NORMAL)], workers=2)
    threading.Timer(0.3, run.stop).start()
    for _ in run:
        pass
    assert run.results[0] is not None
    assert _none_left()
