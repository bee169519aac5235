"""What the experiments share: tables that survive a crash, shares, the clock, the page of results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from papers.webb2019 import common, coverage, results
from papers.webb2019.__main__ import main


def table(path: Path) -> common.Table:
    return common.Table(path, ("run", "name", "value"), ("run",))


def test_a_table_knows_what_it_holds_when_opened_again(tmp_path: Path) -> None:
    first = table(tmp_path / "t.csv")
    first.add([{"run": 0, "name": "a, b", "value": 0.25}, {"run": 0, "name": "c", "value": -math.inf}])
    again = table(tmp_path / "t.csv")
    assert again.has(run=0)
    assert not again.has(run=1)
    assert again.rows == first.rows == [
        {"run": "0", "name": "a, b", "value": "0.25"}, {"run": "0", "name": "c", "value": "-inf"},
    ]  # fmt: skip


def test_a_torn_line_takes_its_unit_with_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    first = table(path)
    first.add([{"run": 0, "name": "a", "value": 1}])
    first.add([{"run": 1, "name": "a", "value": 2}, {"run": 1, "name": "b", "value": 3}])
    path.write_text(path.read_text()[:-3])
    again = table(path)
    assert again.has(run=0)
    assert not again.has(run=1)
    again.add([{"run": 1, "name": "a", "value": 2}, {"run": 1, "name": "b", "value": 3}])
    assert path.read_text() == "run,name,value\n0,a,1\n1,a,2\n1,b,3\n"


def test_two_writers_of_one_table_leave_whole_lines(tmp_path: Path) -> None:
    one, two = table(tmp_path / "t.csv"), table(tmp_path / "t.csv")
    one.add([{"run": 0, "name": "a", "value": 1}])
    two.add([{"run": 1, "name": "a", "value": 2}])
    assert len(table(tmp_path / "t.csv").rows) == 2


def test_other_columns_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "t.csv")
    with pytest.raises(SystemExit):
        common.Table(tmp_path / "t.csv", ("run", "name"), ("run",))
    assert "other columns" in capsys.readouterr().err


def test_shares_are_disjoint_and_complete(tmp_path: Path) -> None:
    units = list(range(10))
    shares = [common.start("x", None, ["--out", str(tmp_path), "--share", f"{i}/3"]).mine(units) for i in (1, 2, 3)]
    assert sorted(unit for share in shares for unit in share) == units
    with pytest.raises(SystemExit):
        common.start("x", None, ["--out", str(tmp_path), "--share", "4/3"])


def test_no_seconds_are_over_at_once_and_missing_data_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = common.start("x", None, ["--out", str(tmp_path), "--data", str(tmp_path), "--seconds", "0"])
    assert context.late
    assert not common.start("x", None, ["--out", str(tmp_path)]).late
    with pytest.raises(SystemExit):
        context.file("mnist", "images")
    assert "--data or RARELY_DATA" in capsys.readouterr().err


def test_log_mean_is_the_log_of_the_mean() -> None:
    mean, error = common.log_mean([math.log(1e-200), math.log(3e-200)])
    assert mean == pytest.approx(math.log(2e-200))
    assert error == pytest.approx(0.5)  # s.e. of (1, 3) is 1, over a mean of 2
    assert common.log_mean([-math.inf, 0.0])[0] == pytest.approx(math.log(0.5))
    assert common.log_mean([-math.inf]) == (-math.inf, 0.0)


def test_results_fill_their_blocks_and_leave_others_alone(tmp_path: Path) -> None:
    page, folder = tmp_path / "RESULTS.md", tmp_path / "results"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "summary.md").write_text("| new |\n")
    run = {"machine": "a GPU", "date": "2026-11-15 10:00 UTC", "python": "3", "torch": "2", "rarely": "0"}
    (folder / "one" / "runs.jsonl").write_text(2 * (json.dumps(run) + "\n"))
    page.write_text(
        "a\n<!-- results/one/machine -->\n<!-- end -->\n<!-- results/one/summary.md -->\n| old |\n<!-- end -->\n"
        "<!-- results/two/summary.md -->\nnot run yet\n<!-- end -->\nb\n"
    )
    results.refresh(page, folder)
    results.refresh(page, folder)
    assert page.read_text() == (
        "a\n<!-- results/one/machine -->\nRun on: a GPU, Python 3, torch 2, rarely 0, 2026-11-15.\n<!-- end -->\n"
        "<!-- results/one/summary.md -->\n| new |\n<!-- end -->\n"
        "<!-- results/two/summary.md -->\nnot run yet\n<!-- end -->\nb\n"
    )


def written(path: Path, header: str, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def test_what_is_still_cut_is_counted_from_the_tables(tmp_path: Path) -> None:
    written(
        tmp_path / "collision" / "paper.csv", "run,file,verdict,steps",
        "0,a,SAT,1000", "0,b,SAT,1000", "1,a,SAT,1000", "1,b,SAT,1000", "0,c,UNSAT,100",
    )  # fmt: skip
    written(
        tmp_path / "collision" / "plain.csv", "name,verdict,samples,hits,seconds",
        "a,SAT,1000,1,0", "a,SAT,9000,0,0", "b,SAT,1000,10000,0",
    )  # fmt: skip
    written(
        tmp_path / "sensitivity" / "sensitivity.csv", "rule,quantile,particles,steps,round,file,replicates",
        *(f"{rule},0.1,1000,{m},0,{file},30" for rule in ("paper", "strict") for m in (100, 250) for file in "ab"),
        *(f"{rule},0.1,500,100,{number},a,1" for rule in ("paper", "strict") for number in (0, 1)),
    )  # fmt: skip
    lines = {line.split(" | ")[0].strip("| "): line for line in coverage.table(tmp_path).splitlines()}
    collision, sensitivity = lines["6.1, CollisionDetection"], lines["6.2, sensitivity"]
    assert "2 runs of the 2 that are violated, M = 1000; 1e4 plain samples of those" in collision
    assert "1 run of the 1 that are not, M = 100 |" in collision
    assert "N = 500: 2 runs of 1 properties; no run at ρ = 0.1, M = 250; N = 1,000: 30 runs of 2 prop" in sensitivity
    assert lines["6.4, robust training"].endswith("| not run |")


def test_an_unknown_experiment_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--quick", "--only", "collision,colision"])
    assert "no experiment 'colision'" in capsys.readouterr().err


def test_only_figures_that_were_drawn_are_published(tmp_path: Path) -> None:
    drawn = tmp_path / "results" / "images" / "convergence.svg"
    drawn.parent.mkdir(parents=True)
    drawn.write_text("<svg/>")
    results.publish(tmp_path / "figures", tmp_path / "results")
    assert [(path.name, path.read_text()) for path in (tmp_path / "figures").iterdir()] == [("images.svg", "<svg/>")]
