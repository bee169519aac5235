"""Networks that sleep, leave, stop or hold the interpreter: nothing hangs or is lost, and only they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_helpers import Inline, content
from test_campaign_kills import await_end_of, children, needs_proc

from rarely import Campaign
from rarely.campaign import host
from rarely.campaign.driver import Standing
from rarely.campaign.host import Limits
from rarely.campaign.tasks import Chunk
from rarely.core.errors import InputError, RarelyError

WILD = """
import ctypes, os, signal, sys, time
from pathlib import Path
import torch


def once():
    flag = Path(__file__).with_name("stopped")
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGSTOP)


def hold():
    Path(__file__).with_name("holding").write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)  # without giving the interpreter back


def interrupt():
    raise KeyboardInterrupt


WAYS = {
    "sleep": lambda: time.sleep(600), "exit": lambda: sys.exit(3), "interrupt": interrupt, "leave": lambda: os._exit(0),
    "stop": once, "hold": hold,
}


def net(x):
    kind = os.environ.get("RARELY_TEST_WILD")
    if kind and (x > 0.9).any():
        WAYS[kind]()
    return torch.cat([x, -x], 1)
"""
GUILTY = {1, 4}


@pytest.fixture
def wild(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Nine problems in three chunks; number 1 and number 4 do what the environment says."""
    (tmp_path / "wild.py").write_text(WILD)
    images = np.array([0.1, 1.0, 0.2, 0.3, 1.0, 0.15, 0.04, 0.05, 0.06], np.float32)[:, None]
    np.savez(tmp_path / "data.npz", images=images, labels=np.zeros(9, np.int64))
    plan.update(networks=[{"path": f"{tmp_path}/wild.py:net", "name": "net"}])
    plan["campaign"].update(replicates=1, batch=3)
    plan["problems"][0]["radii"] = [0.08]
    return plan


@pytest.fixture(params=["local", pytest.param("dask", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def indices(records: Any) -> set[int]:
    return {record.index for record in records}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("leave", "the worker process died while it ran this (exit code 0)"),
    ],
)
def test_a_network_that_leaves_fails_its_own_problems_alone(
    wild: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any, kind: str, reason: str
) -> None:
    monkeypatch.setenv("RARELY_TEST_WILD", kind)
    with Campaign(wild).run(tmp_path / "out", engine=engine, workers=2) as store:
        failed = list(store.records("failed"))
        assert store.counts() == {"waiting": 0, "done": 7, "failed": 2}
    assert indices(failed) == GUILTY
    assert {record.reason for record in failed} == {reason}


def test_what_a_network_does_before_the_run_begins_fails_its_own_problems_alone(
    wild: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last problem are built before the others: that was done in the driver, which ended with 0."""
    data = dict(np.load(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", images=data["images"][[1, 0, 2, 3, 4]], labels=data["labels"][:5])
    monkeypatch.setenv("RARELY_TEST_WILD", "leave")
    wild["campaign"]["batch"] = 1
    with Campaign(wild).run(tmp_path / "out", workers=2) as store:
        assert indices(store.records("failed")) == {0, 4}
        assert store.counts()["done"] == 3


def test_a_sleeping_network_is_out_of_time_and_may_try_again(
    wild: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    monkeypatch.setenv("RARELY_TEST_WILD", "sleep")
    wild["budget"] = {"seconds": 4, "chunk_seconds": 6}
    standings: list[Standing] = []
    out = tmp_path / "out"
    with Campaign(wild).run(out, engine=engine, workers=2, watch=standings.append) as store:
        assert store.counts() == {"waiting": 0, "done": 7, "failed": 2}
        failed = list(store.records("failed"))
        assert indices(failed) == GUILTY
        assert {record.reason for record in failed} == {"out of time: more than 4 s"}
        assert {record.attempts for record in failed} == {2}, "one in company, one alone"
    assert (standings[-1].failed, standings[-1].late) == (2, 2)
    monkeypatch.delenv("RARELY_TEST_WILD")
    wild["budget"] = {"seconds": 500}
    with Campaign(wild).run(out, engine=engine, workers=1) as store:
        assert store.counts()["failed"] == 2, "a failure is a result, whatever the limit"
    Campaign(wild).run(out, engine=engine, workers=1, retry_failed=True, watch=standings.append).close()
    assert standings[-1].done == 9
    del wild["budget"]
    Campaign(wild).run(tmp_path / "whole", engine=Inline()).close()
    assert content(out) == content(tmp_path / "whole")


def test_a_stopped_worker_is_replaced(
    wild: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    monkeypatch.setattr(host, "_STOPPED", 1.0)  # not in Dask's workers
    monkeypatch.setenv("RARELY_TEST_WILD", "stop")
    Campaign(wild).run(tmp_path / "out", engine=engine, workers=1).close()
    assert (tmp_path / "stopped").exists()
    monkeypatch.delenv("RARELY_TEST_WILD")
    Campaign(wild).run(tmp_path / "whole", engine=Inline()).close()
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@needs_proc
def test_a_worker_that_holds_the_interpreter_ends_with_its_driver(
    wild: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(Campaign(wild).plan.to_toml())
    command = [sys.executable, "-m", "rarely", "campaign", "run", plan, "--out", tmp_path / "out", "--engine", engine]
    environment = {**os.environ, "RARELY_TEST_WILD": "hold"}
    driver = subprocess.Popen([*command, "--workers", "1"], env=environment, stderr=subprocess.DEVNULL)
    holding = tmp_path / "holding"
    deadline = time.monotonic() + 60
    while not (holding.exists() and holding.read_text()):
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pool = [*children(driver.pid), int(holding.read_text())]
    os.kill(pool[0], signal.SIGSTOP)  # not even a stopped one may stay
    driver.kill()
    driver.wait()
    await_end_of(pool)


def test_a_limit_that_nothing_exceeds_changes_no_number(plan: dict[str, Any], tmp_path: Path) -> None:
    plan["campaign"]["replicates"] = 1
    Campaign(plan).run(tmp_path / "whole", engine=Inline()).close()
    plan["budget"] = {"seconds": 300, "chunk_seconds": 600}
    Campaign(plan).run(tmp_path / "limited", workers=1).close()
    assert content(tmp_path / "limited") == content(tmp_path / "whole")
    plan["budget"] = {"seconds": 5000}
    Campaign(plan).run(tmp_path / "whole", engine=Inline()).close()  # another limit is no other campaign


@pytest.mark.parametrize(
    ("limits", "of_four", "of_one"),
    [
        (Limits(), None, None),
        (Limits(seconds=2), 8, 2),
        (Limits(chunk_seconds=5), 5, 5),
        (Limits(seconds=2, chunk_seconds=5), 5, 2),
    ],
)
def test_limits_of_chunks(limits: Limits, of_four: float | None, of_one: float | None) -> None:
    chunk = Chunk(0, 0, None, (None,) * 4)  # type: ignore[arg-type]
    assert (limits.of(chunk), limits.of(Chunk(0, 0, None, (None,)))) == (of_four, of_one)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [{"seconds": 0}, {"seconds": 5, "chunk_seconds": 3}, {"chunk_seconds": -1}])
def test_senseless_limits_are_refused(wild: dict[str, Any], budget: dict[str, float]) -> None:
    with pytest.raises(InputError, match="budget"):
        Campaign({**wild, "budget": budget})


def test_a_worker_of_another_rarely_ends_the_run(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started late, after this checkout was changed."""
    monkeypatch.setattr(host, "versions", lambda: {"rarely": "0.1.0 with the sources of this morning"})
    with pytest.raises(RarelyError, match="was changed while the campaign was running; what is finished is kept"):
        Campaign(plan).run(tmp_path / "out", workers=1)


def test_what_dask_workers_import_is_light() -> None:
    code = "import sys, rarely.campaign.dask_worker; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
