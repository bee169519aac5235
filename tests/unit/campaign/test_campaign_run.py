"""Running campaigns: resuming, refusing, failing, and the same numbers by every way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_helpers import Inline, content

import rarely
from rarely import Campaign
from rarely.campaign.driver import Standing
from rarely.campaign.schema import FILE
from rarely.campaign.tasks import Chunk
from rarely.core.errors import FormatError, InputError, StoreError


class Stopped(Exception):
    pass


def stop_after(chunks: int) -> Any:
    left = iter(range(chunks))

    def fails(chunk: Chunk) -> str:
        if next(left, None) is None:
            raise Stopped
        return ""

    return fails


def test_interruptions_leave_no_trace(plan: dict[str, Any], tmp_path: Path) -> None:
    Campaign(plan).run(tmp_path / "whole", engine=Inline()).close()
    total = 0
    for chunks in (0, 1, 3, 2):
        engine = Inline(stop_after(chunks))
        with pytest.raises(Stopped):
            Campaign(plan).run(tmp_path / "pieces", engine=engine)
        assert engine.closed
        total += chunks
        with rarely.campaign.store.Store.open(tmp_path / "pieces") as store:
            assert store.counts()["done"] in range(7 * total - 6, 7 * total + 1)
    standings: list[Standing] = []
    engine = Inline()
    Campaign(plan).run(tmp_path / "pieces", engine=engine, watch=standings.append).close()
    assert len(engine.ran) == 9 - total
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")
    assert standings[0].done == 60 - sum(len(chunk.tasks) for chunk in engine.ran)
    assert standings[-1].done == 60
    assert standings[-1].seconds_left == 0
    engine = Inline()
    Campaign(plan).run(tmp_path / "pieces", engine=engine).close()
    assert engine.ran == []


def test_another_seed_gives_other_numbers(plan: dict[str, Any], tmp_path: Path) -> None:
    Campaign(plan).run(tmp_path / "a", engine=Inline()).close()
    plan["campaign"]["seed"] = 2
    Campaign(plan).run(tmp_path / "b", engine=Inline()).close()
    a, b = content(tmp_path / "a"), content(tmp_path / "b")
    assert set(a) == set(b)
    numbers = [(a[key][4]["log_prob"], b[key][4]["log_prob"]) for key in a]
    assert sum(x != y for x, y in numbers) > 30


def test_estimates_are_right(tmp_path: Path, plan: dict[str, Any]) -> None:
    """Uniform noise on one coordinate of an identity network: P(violation) is exact."""
    (tmp_path / "one.py").write_text("import torch\n\ndef net(x):\n    return torch.cat([x, 0.5 - x], 1)\n")
    np.save(tmp_path / "one.npy", np.array([[0.5]], dtype=np.float32))
    np.save(tmp_path / "label.npy", np.array([0]))
    plan["networks"] = [{"path": f"{tmp_path}/one.py:net", "name": "one"}]  # seeds follow names: no other run's folder
    plan["problems"] = [{"dataset": str(tmp_path / "one.npy"), "labels": str(tmp_path / "label.npy"), "radii": [0.3]}]
    plan["estimator"] = {"method": "monte-carlo", "samples": 40_000}
    with Campaign(plan).run(tmp_path / "out", engine=Inline()) as store:
        found = [record.estimate for record in store.records()]
    exact = (0.25 - 0.2) / 0.6  # x < 0.25 of x in [0.2, 0.8]
    assert len(found) == 3
    for estimate in found:
        assert abs(estimate.prob - exact) < 5 * np.sqrt(exact * (1 - exact) / 40_000)
    assert len({estimate.log_prob for estimate in found}) == 3, "replicates must differ"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p, f: p["campaign"].update(seed=2), "campaign.seed was 1 and is 2"),
        (lambda p, f: p["campaign"].update(batch=8), "campaign.batch was 7 and is 8"),
        (lambda p, f: p["estimator"].update(particles=30), "estimator was splitting particles=20 .* and is splitting"),
        (lambda p, f: p["networks"][0].update(name="other"), "network net was removed; network other was added"),
        (lambda p, f: p["problems"][0].update(radii=[0.1]), r"problems\[0\] changed"),
        (lambda p, f: p.update(budget={"calls": 9}), "budget.calls was None and is 9"),
        (lambda p, f: (f / "net.py").write_text((f / "net.py").read_text() + "#"), "network net changed"),
        (lambda p, f: np.savez(f / "data.npz", images=np.zeros((1, 6), np.float32)), r"problems\[0\] changed"),
    ],
)
def test_changed_settings_are_refused_by_name(plan: dict[str, Any], tmp_path: Path, change: Any, sentence: str) -> None:
    with pytest.raises(Stopped):
        Campaign(plan).run(tmp_path / "out", engine=Inline(stop_after(2)))
    change(plan, tmp_path)
    with pytest.raises(StoreError, match=f"with other settings: .*{sentence}.*--new"):
        Campaign(plan).run(tmp_path / "out", engine=Inline())


def test_the_name_of_a_campaign_may_change(plan: dict[str, Any], tmp_path: Path) -> None:
    Campaign(plan).run(tmp_path / "out", engine=Inline()).close()
    plan["campaign"]["name"] = "other"
    Campaign(plan).run(tmp_path / "out", engine=Inline()).close()


def test_new_keeps_the_old_store(plan: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    Campaign(plan).run(out, engine=Inline()).close()
    before = content(out)
    plan["campaign"]["seed"] = 2
    Campaign(plan).run(out, engine=Inline(), new=True).close()
    assert content(out) != before
    assert content(out / "campaign-1.sqlite") == before
    Campaign(plan).run(out, engine=Inline(), new=True).close()
    assert content(out / "campaign-2.sqlite") == content(out)


def test_a_failing_problem_is_recorded_and_the_campaign_goes_on(plan: dict[str, Any], tmp_path: Path) -> None:
    def fails(chunk: Chunk) -> str:
        return "it broke" if any(task.index == 30 for task in chunk.tasks) else ""

    out = tmp_path / "out"
    with Campaign(plan).run(out, engine=Inline(fails)) as store:
        assert store.counts() == {"waiting": 0, "done": 59, "failed": 1}
        (failed,) = store.records("failed")
    assert (failed.index, failed.reason, failed.attempts, failed.estimate) == (30, "it broke", 6, None)
    engine = Inline()
    Campaign(plan).run(out, engine=engine).close()
    assert engine.ran == [], "a failure is a result: it is not tried again unasked"
    Campaign(plan).run(out, engine=Inline(), retry_failed=True).close()
    Campaign(plan).run(tmp_path / "whole", engine=Inline()).close()
    assert content(out) == content(tmp_path / "whole")


def test_a_network_that_fits_nothing_ends_the_run_at_once(plan: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=np.zeros((3, 5), np.float32))
    engine = Inline()
    with pytest.raises(rarely.RarelyError, match="5"):
        Campaign(plan).run(tmp_path / "out", engine=engine)
    assert engine.ran == []


def test_a_device_that_is_not_there_ends_the_run_at_once(plan: dict[str, Any], tmp_path: Path) -> None:
    engine = Inline()
    with pytest.raises(InputError, match="device 'abacus' is not one torch knows"):
        Campaign(plan).run(tmp_path / "out", engine=engine, device="abacus")
    assert engine.ran == []


def test_a_problem_twice_in_a_plan_is_refused(plan: dict[str, Any], tmp_path: Path) -> None:
    plan["problems"] *= 2
    with pytest.raises(InputError, match="the same problem twice"):
        Campaign(plan).run(tmp_path / "out", engine=Inline())
    with closing(sqlite3.connect(tmp_path / "out" / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM problems").fetchone() == (0,)


def test_wrong_options_are_told(plan: dict[str, Any], tmp_path: Path) -> None:
    for workers in (0, 10**20):
        with pytest.raises(InputError, match=f"workers must be from 1 to 1,024, got {workers}"):
            Campaign(plan).run(tmp_path, workers=workers)
    with pytest.raises(InputError, match="a scheduler belongs to the engine dask"):
        Campaign(plan).run(tmp_path, scheduler="tcp://nowhere:1")
    plan["networks"] = [{"path": "nothing.onnx"}]
    with pytest.raises(FormatError, match=r"nothing\.onnx: there is no such file"):
        Campaign(plan)


def test_auto_proves_by_work_and_not_by_the_clock(plan: dict[str, Any], tmp_path: Path) -> None:
    plan["campaign"]["replicates"] = 1
    plan["problems"][0].update(radii=[1e-4, 0.4])
    plan["estimator"] = {"method": "auto", "target_error": 0.3}
    with Campaign(plan).run(tmp_path / "a", engine=Inline()) as store:
        outcomes = store.outcomes()
        estimators = {str(record.estimate.provenance["estimator"]["proof_boxes"]) for record in store.records()}
    assert outcomes["proved safe"] >= 5
    assert outcomes["violated"] >= 1
    assert estimators == {"5000"}
    Campaign(plan).run(tmp_path / "b", engine=Inline()).close()
    assert content(tmp_path / "a") == content(tmp_path / "b")
