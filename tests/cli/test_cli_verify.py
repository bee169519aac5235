"""`rarely verify`: verdicts as VNN-COMP reads them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import environment

from rarely.io.formats.vnncomp import read_result

DATA = os.environ.get("RARELY_DATA")
SCRIPTS = Path(__file__).parents[2] / "scripts" / "vnncomp"


def test_sat_comes_with_a_replayed_counterexample(rarely, folder: Path, tmp_path: Path) -> None:
    done = rarely("verify", folder / "sum.onnx", folder / "corner.vnnlib", "--result", tmp_path / "r.txt", "-t", 30)
    assert done.stdout.strip() == "sat"
    result = read_result(tmp_path / "r.txt")
    assert result.x is not None
    assert result.y is not None
    assert ((result.x >= 0) & (result.x <= 1)).all()
    assert result.y[0] >= 1.8
    replayed = np.float32(result.x) @ np.float32([[1, 1], [1, -1]])
    assert (replayed == result.y).all()


def test_unsat_comes_with_a_proof(rarely, folder: Path, tmp_path: Path) -> None:
    done = rarely("verify", folder / "sum.onnx", folder / "never.vnnlib", "--result", tmp_path / "r.txt")
    assert done.stdout.strip() == "unsat"
    assert "scores are at most -0.5" in done.stderr
    assert (tmp_path / "r.txt").read_text() == "unsat\n"


def test_statistics_alone_are_unknown(rarely, folder: Path, tmp_path: Path) -> None:
    """A black box cannot be bounded, and sampling is no proof."""
    (tmp_path / "box.py").write_text(
        "import numpy as np\n\ndef network(x):\n    return np.stack([x[:, 0] + x[:, 1], x[:, 0]], 1)\n"
    )
    done = rarely("verify", "box.py:network", folder / "never.vnnlib", "-t", 20, cwd=tmp_path)
    assert done.stdout.strip() in ("unknown", "timeout")
    assert "# statistics, not a proof" in done.stderr


def test_errors_write_a_result_too(rarely, folder: Path, tmp_path: Path) -> None:
    done = rarely("verify", folder / "sum.onnx", folder / "three.vnnlib", "--result", tmp_path / "r.txt", code=2)
    assert "3 inputs" in done.stderr
    assert (tmp_path / "r.txt").read_text() == "error\n"
    rarely("verify", code=2)
    rarely("verify", "--instances", "i.csv", code=2)


def test_benchmark_goes_on_where_it_stopped(rarely, folder: Path, tmp_path: Path) -> None:
    lines = [f"{folder}/sum.onnx,{folder}/{name}.vnnlib,30" for name in ("corner", "never", "three")]
    (tmp_path / "instances.csv").write_text("\n".join(lines) + "\n")
    arguments = ("verify", "--instances", tmp_path / "instances.csv", "--results", tmp_path / "out")
    done = rarely(*arguments)
    assert "three.vnnlib: it speaks of 3 inputs" in done.stderr
    counts = [line.split()[:2] for line in done.stdout.splitlines()]
    assert all([verdict, "1"] in counts for verdict in ("sat", "unsat", "error"))
    (tmp_path / "out" / "sum_corner.txt").write_text("unknown\n")
    (tmp_path / "out" / "sum_never.txt").unlink()
    assert "unknown" in rarely(*arguments).stdout  # kept, not run again
    with (tmp_path / "out" / "results.csv").open() as lines:
        comments = {row["instance"]: row["comment"] for row in csv.DictReader(lines)}
    assert "3 inputs" in comments["sum_three.txt"]  # kept, too, when the table is written again
    assert "unknown" not in rarely(*arguments, "--force").stdout


def test_vnncomp_scripts(folder: Path, tmp_path: Path) -> None:
    files = [str(folder / "sum.onnx"), str(folder / "never.vnnlib")]

    def script(name: str, *arguments: str) -> int:
        return subprocess.run(
            [SCRIPTS / name, *arguments], env=environment(), capture_output=True, timeout=120
        ).returncode

    if not (SCRIPTS.parents[1] / ".venv" / "bin" / "rarely").exists():
        pytest.skip("the scripts run the rarely of the repository's own .venv")
    assert script("prepare_instance.sh", "v1", "test", *files) == 0
    assert script("prepare_instance.sh", "v1", "test", files[0], str(folder / "none.vnnlib")) != 0
    assert script("run_instance.sh", "v1", "test", *files, str(tmp_path / "r.txt"), "30") == 0
    assert (tmp_path / "r.txt").read_text() == "unsat\n"
    assert script("run_instance.sh", "v0", "test", *files, str(tmp_path / "r.txt"), "30") == 1


@pytest.mark.skipif(DATA is None, reason="RARELY_DATA is not set")
@pytest.mark.parametrize(
    ("network", "prop", "verdict"), [("1_9", "prop_7", "sat"), ("1_7", "prop_3", "sat"), ("1_6", "prop_3", "unsat")]
)
def test_acas_xu(rarely, tmp_path: Path, network: str, prop: str, verdict: str) -> None:
    place = Path(str(DATA)) / "acasxu"
    files = [place / "onnx" / f"ACASXU_run2a_{network}_batch_2000.onnx", place / "vnnlib" / f"{prop}.vnnlib"]
    rarely("verify", *files, "-t", 60, "--result", tmp_path / "r.txt")
    assert read_result(tmp_path / "r.txt").verdict == verdict


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="RARELY_DATA is not set")
def test_acas_xu_benchmark(rarely, tmp_path: Path) -> None:
    place = Path(str(DATA)) / "acasxu"
    with (place / "acasxu_verdicts.csv").open() as lines:
        known = {f"{Path(r['network']).stem}_{Path(r['property']).stem}": r["verdict"] for r in csv.DictReader(lines)}
    rows = [line for line in (place / "instances.csv").read_text().splitlines() if line]
    sat = [row for row in rows if known["_".join(Path(cell).stem for cell in row.split(",")[:2])] == "sat"]
    chosen = sat + [row for row in rows if row not in sat][::14]
    (tmp_path / "instances.csv").write_text(
        "\n".join(f"{place}/onnx/{n},{place}/vnnlib/{p},{t}" for n, p, t in (row.split(",") for row in chosen)) + "\n"
    )
    results = tmp_path / "out"
    command = ["verify", "--instances", str(tmp_path / "instances.csv"), "--results", str(results), "-t", "60"]
    subprocess.run([sys.executable, "-m", "rarely", *command], env=environment(), check=True)
    said = {file.stem: read_result(file).verdict for file in results.glob("*.txt")}
    assert sum(said[name] == "sat" for name in said if known[name] == "sat") >= 45
    assert not [name for name in said if {said[name], known[name]} == {"sat", "unsat"}]
