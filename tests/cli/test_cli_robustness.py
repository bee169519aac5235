"""`rarely robustness`: arrays and pictures in, rows, a summary and a curve out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import save_linear
from PIL import Image

FAST = ("-e", "monte-carlo", "--samples", 20_000)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two grey pixels, class 1 where the second is brighter."""
    return save_linear(tmp_path_factory.mktemp("net") / "brighter.onnx", [[1, 0], [0, 1]], (1, 1, 1, 2))


def test_rows_summary_and_files(rarely, classifier: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.6, 0.4], [0.4, 0.6], [0.5, 0.3]], dtype=np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    done = rarely(
        "robustness", classifier, "--inputs", "x.npy", "--labels", "y.npy", "--eps", "0.05,0.2", "--clip", 0, 1,
        *FAST, "--json", "r.json", "--csv", "r.csv", "--plot", "r.svg", cwd=tmp_path,
    )  # fmt: skip
    assert "misclassified as 0" in done.stdout
    content = json.loads((tmp_path / "r.json").read_text())
    assert len(content["rows"]) == 6
    assert [row["misclassified"] for row in content["rows"]] == [False] * 4 + [True] * 2
    # The gap of 0.2 closes when the noise differs by as much: (0.4 - 0.2)^2 / 2 of a square of side 0.4.
    assert content["rows"][1]["estimate"]["prob"] == pytest.approx(0.125, abs=0.02)
    assert content["summary"][0]["share_below_floor"] == 1.0
    assert content["summary"][1]["misclassified"] == 1
    with (tmp_path / "r.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == 6
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_pictures_with_normalisation_keep_pixel_units(rarely, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for name, pixels in (("a.png", [153, 102]), ("b.png", [102, 153])):
        Image.fromarray(np.array([pixels], dtype=np.uint8)).save(tmp_path / "pictures" / name)
    done = rarely(
        "robustness", classifier, "--inputs", "pictures", "--eps", "0.2", "--mean", 0.5, "--std", 0.25, *FAST,
        "--json", "-", cwd=tmp_path,
    )  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    assert [row["image"] for row in rows] == ["a.png", "b.png"]
    assert [row["label"] for row in rows] == [0, 1]
    assert rows[0]["estimate"]["prob"] == pytest.approx(0.125, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "wide.npy", "--eps", "0.1"], "do not fit the network"),
        (["--inputs", "x.npy", "--eps", "0.1", "--clip", "0", "0.5"], "outside --clip"),
        (["--inputs", "x.npy", "--eps", "-1"], "--eps must be positive"),
        (["--inputs", "none.npy", "--eps", "0.1"], "none.npy"),
        (["--inputs", "x.npy", "--eps", "0.1", "--labels", "wide.npy"], "labels must be whole numbers"),
    ],
)
def test_what_cannot_be_used(rarely, classifier: Path, tmp_path: Path, options: list[str], message: str) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.6, 0.4]], dtype=np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((1, 5), dtype=np.float32))
    assert message in rarely("robustness", classifier, *options, code=2, cwd=tmp_path).stderr
