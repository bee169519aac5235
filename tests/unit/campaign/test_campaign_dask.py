"""Schedulers that die, workers that come, go and stop: a campaign waits, goes on or says why, and loses nothing."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign_helpers import Inline, content
from test_campaign_kills import children, done, needs_proc

from rarely import Campaign
from rarely.campaign import dask_engine, host
from rarely.campaign.dask_engine import DaskEngine
from rarely.campaign.driver import Standing
from rarely.campaign.host import Child, Limits
from rarely.campaign.tasks import ChunkAnswer
from rarely.campaign.versions import versions
from rarely.core.errors import InputError, RarelyError

pytest.importorskip("distributed")

OVERLAP = """
import os, time
from pathlib import Path
import torch

OVERLAP = Path(__file__).with_name("overlap")


def net(x):
    busy = Path(__file__).with_name(f"busy-{os.getppid()}")  # of the Dask worker
    try:
        os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        OVERLAP.touch()
    if not OVERLAP.exists():  # another process may take seconds to start
        time.sleep(float(os.environ["RARELY_TEST_PAUSE"]))
    busy.unlink(missing_ok=True)
    return torch.cat([x.sum(1, keepdim=True), x[:, :2]], 1)
"""


class Cluster:
    """A scheduler and workers as processes of their own, as on a real cluster."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.folder = folder
        self.workers: list[Child] = []
        self.begin()

    def begin(self) -> None:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--no-show", "--dashboard-address", "127.0.0.1:0"]
        self.scheduler = self._start(["-m", "distributed.cli.dask_scheduler", *where])
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def _start(self, command: list[str], **environment: str) -> Child:
        quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical", **environment}
        return host.start(command, quiet)

    def work(self, *options: str, count: int = 1, **environment: str) -> None:
        command = ["-m", "distributed.cli.dask_worker", self.address, "--no-nanny", "--no-dashboard"]
        command += ["--nthreads", "1"] if "--nthreads" not in options else []
        for _ in range(count):
            self.workers.append(self._start([*command, *options], **environment))

    def lose_workers(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def end(self) -> None:
        self.lose_workers()
        self.scheduler.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.end()


@pytest.fixture
def slowly(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """20 problems in ten chunks, which take long enough to be disturbed."""
    monkeypatch.setenv("RARELY_TEST_PAUSE", "0.01")
    plan["campaign"].update(replicates=1, batch=2)
    return plan


def once(act: Callable[[], Any], when: Callable[[Standing], bool]) -> Callable[[Standing], None]:
    """A watch that acts at one moment of a run."""
    left = [act]

    def watch(standing: Standing) -> None:
        if left and when(standing):
            left.pop()()

    return watch


def some_done(standing: Standing) -> bool:
    return standing.done > 0


def check(plan: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing, and every number is that of a run that nobody disturbed."""
    monkeypatch.delenv("RARELY_TEST_PAUSE", raising=False)
    whole = out.with_name("whole")
    Campaign(plan).run(whole, engine=Inline()).close()
    found = content(out)
    assert {row[2] for row in found.values()} == {"done"}
    assert found == content(whole)


def test_a_killed_scheduler_ends_the_run_in_a_sentence_and_another_goes_on(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_engine, "_PATIENCE", 3.0)
    cluster.work()
    kill = once(cluster.scheduler.process.kill, some_done)
    with pytest.raises(RarelyError, match=r"does not answer any more.*the same command goes on"):
        Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=kill)
    assert 0 < done(tmp_path / "out") < 20
    cluster.end()
    cluster.begin()
    cluster.work()
    Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address).close()
    check(slowly, tmp_path / "out", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_the_command_ends_with_2_when_the_scheduler_is_gone(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, way: signal.Signals
) -> None:
    cluster.work()
    file, out = tmp_path / "plan.toml", tmp_path / "out"
    file.write_text(Campaign(slowly).plan.to_toml())
    command = [sys.executable, "-m", "rarely", "campaign", "run", file, "--out", out, "--engine", "dask"]
    driver = subprocess.Popen([*command, "--scheduler", cluster.address], stderr=subprocess.PIPE, text=True)
    while not done(out):
        assert driver.poll() is None
        time.sleep(0.02)
    cluster.scheduler.process.send_signal(way)
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == 2
    assert "Traceback" not in said
    assert "distributed" not in said
    assert "does not answer any more" in said


@pytest.mark.slow
def test_a_scheduler_that_is_back_in_time_gets_everything_again(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace() -> None:
        cluster.end()
        cluster.begin()
        cluster.work()

    cluster.work()
    watch = once(replace, some_done)
    Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=watch).close()
    check(slowly, tmp_path / "out", monkeypatch)


def test_all_workers_lost_and_others_come(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    lose, come = once(cluster.lose_workers, some_done), once(cluster.work, lambda standing: bool(said))

    def watch(standing: Standing) -> None:
        lose(standing)
        said.extend(filter(None, [standing.waiting if not cluster.workers else ""]))
        come(standing)

    cluster.work(count=2)
    Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=watch).close()
    assert said
    assert set(said) == {f"waiting: no worker is connected to {cluster.address}"}
    check(slowly, tmp_path / "out", monkeypatch)


def test_no_workers_at_first(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    standings: list[Standing] = []
    come = once(cluster.work, lambda standing: len(standings) > 3)

    def watch(standing: Standing) -> None:
        standings.append(standing)
        come(standing)

    Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=watch).close()
    assert {standing.waiting for standing in standings[:3]} == {f"waiting: no worker is connected to {cluster.address}"}
    check(slowly, tmp_path / "out", monkeypatch)


@needs_proc
@pytest.mark.slow
def test_workers_of_its_own_killed_over_and_over(
    slowly: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, also while they start: a cluster that gives one up would be left with none."""
    monkeypatch.setenv("RARELY_TEST_PAUSE", "0.03")
    chance, kills = random.Random(3), itertools.count()
    seen = [0]

    def watch(standing: Standing) -> None:
        if standing.done > seen[0]:
            seen[0] = standing.done
            time.sleep(chance.uniform(0, 0.5))
            for pid in children(os.getpid()):
                next(kills)
                os.kill(pid, signal.SIGKILL)

    Campaign(slowly).run(tmp_path / "out", engine="dask", workers=2, watch=watch).close()
    assert next(kills) > 5
    check(slowly, tmp_path / "out", monkeypatch)


@needs_proc
@pytest.mark.slow
def test_a_stopped_worker_of_its_own_is_replaced(
    slowly: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_STOPPED", 1.0)
    stop = once(lambda: os.kill(children(os.getpid())[0], signal.SIGSTOP), some_done)
    Campaign(slowly).run(tmp_path / "out", engine="dask", workers=1, watch=stop).close()
    check(slowly, tmp_path / "out", monkeypatch)


@pytest.mark.slow
def test_a_stopped_worker_elsewhere_loses_its_chunk_to_others(
    slowly: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its scheduler has given it up: after five minutes, unless it is told otherwise as here."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "2s")
    cluster = Cluster(tmp_path)
    try:
        cluster.work(count=2)
        stop = once(lambda: cluster.workers[0].process.send_signal(signal.SIGSTOP), some_done)
        Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=stop).close()
    finally:
        cluster.end()
    check(slowly, tmp_path / "out", monkeypatch)


ADAPTIVE = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        cluster.adapt(minimum=0, maximum=2, interval="0.2s")
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_cluster_that_grows_on_demand(
    slowly: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    script = tmp_path / "adaptive.py"
    script.write_text(ADAPTIVE)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as grows:
        address = grows.stdout.readline().strip()
        Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=address, device=device).close()
        grows.communicate()
    assert content(tmp_path / "out")
    monkeypatch.delenv("RARELY_TEST_PAUSE")
    Campaign(slowly).run(tmp_path / "whole", engine=Inline(), device=device).close()
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("early", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_gpu_has_one_chunk_at_a_time(slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, early: bool) -> None:
    """Also when no worker was known yet as the first chunks were to be submitted."""
    (tmp_path / "net.py").write_text(OVERLAP)
    slowly["networks"] = [{"path": f"{tmp_path}/net.py:net", "name": "net"}]
    standings: list[Standing] = []
    options = ("--nthreads", "2", "--resources", "GPU=1")
    come = once(lambda: cluster.work(*options, RARELY_TEST_PAUSE="0.02"), lambda standing: early or len(standings) > 3)
    if early:
        come(Standing(0, 0, 0, 0, 0, 0, 0.0))

    def watch(standing: Standing) -> None:
        standings.append(standing)
        come(standing)

    with Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, watch=watch) as store:
        assert store.counts() == {"waiting": 0, "done": 20, "failed": 0}
    assert not (tmp_path / "overlap").exists()


def test_without_gpus_two_threads_do_overlap(slowly: dict[str, Any], tmp_path: Path, cluster: Cluster) -> None:
    """What the test above looks for is there to be seen; and on a CPU, GPUs do not count."""
    (tmp_path / "net.py").write_text(OVERLAP)
    slowly["networks"] = [{"path": f"{tmp_path}/net.py:net", "name": "net"}]
    cluster.work("--nthreads", "2", "--resources", "GPU=1", RARELY_TEST_PAUSE="0.3")
    Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address, device="cpu").close()
    assert (tmp_path / "overlap").exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('__version__ = "0.0.9"', r"has rarely 0\.0\.9; the driver has rarely .*Install the same there"),
        ('raise ImportError("not for you")', r"cannot use rarely \(.*not for you\)"),
    ],
)
def test_another_rarely_at_a_worker(
    slowly: dict[str, Any], tmp_path: Path, cluster: Cluster, source: str, says: str
) -> None:
    other = tmp_path / "other" / "rarely"
    (other / "campaign").mkdir(parents=True)
    (other / "__init__.py").write_text(source)
    (other / "campaign" / "__init__.py").touch()
    (other / "campaign" / "dask_worker.py").write_text("answer_in_host = None")
    of_this_one = {name: version for name, version in versions().items() if name != "rarely"}
    (other / "campaign" / "versions.py").write_text(
        f"from rarely import __version__\n\ndef versions():\n    return {of_this_one} | {{'rarely': __version__}}\n"
    )
    boot = (
        f"import sys; sys.path.insert(0, {str(other.parent)!r}); from distributed.cli.dask_worker import main; main()"
    )
    cluster.workers.append(cluster._start(["-c", boot, cluster.address, "--no-nanny", "--no-dashboard"]))
    with pytest.raises(RarelyError, match=says):
        Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler=cluster.address)


def test_nobody_at_the_address(
    slowly: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask_engine, "_PATIENCE", 1.0)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        Campaign(slowly).run(tmp_path / "out", engine="dask", scheduler="tcp://127.0.0.1:1")
    assert capfd.readouterr() == ("", "")


def levels() -> dict[str, int]:
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    return {name: logging.getLogger(name).level for name in names}


def test_the_loggers_of_dask_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    before = levels()
    assert before["distributed.client"] != before["distributed"], "one has a level of its own"
    engine = DaskEngine(1, None, "cpu", Limits())
    try:
        assert not logging.getLogger("distributed.client").isEnabledFor(logging.CRITICAL)
    finally:
        engine.close()
    assert {name: levels()[name] for name in before} == before

    clusters = []
    monkeypatch.setattr(distributed, "LocalCluster", lambda **how: clusters.append(Refusing()) or clusters[-1])
    monkeypatch.setattr(dask_engine, "_PATIENCE", 1.0)
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        DaskEngine(1, None, "cpu", Limits())
    assert clusters[0].closed, "nothing stays open where the client cannot connect"
    assert {name: levels()[name] for name in before} == before


class Refusing:
    """A cluster at whose address nobody is."""

    scheduler_address = "tcp://127.0.0.1:1"
    closed = False

    def close(self, timeout: float) -> None:
        self.closed = True


class Away(Inline):
    """An engine whose cluster is away whenever nothing runs, for a few looks."""

    def __init__(self) -> None:
        failed: list[int] = []
        super().__init__(lambda chunk: "" if chunk.number in failed else failed.append(chunk.number) or "lost")
        self.looks = 0

    def free(self) -> int:
        self.looks += 1
        return super().free() if self.looks % 3 == 0 else 0

    def completed(self, timeout: float) -> list[ChunkAnswer]:
        return super().completed(timeout) if self._waiting else []


def test_a_cluster_that_is_away_does_not_end_the_run(plan: dict[str, Any], tmp_path: Path) -> None:
    """It did: with nothing running and nothing taken, the rest was left, with exit code 0."""
    with Campaign(plan).run(tmp_path / "out", engine=Away()) as store:
        assert store.counts() == {"waiting": 0, "done": 60, "failed": 0}
