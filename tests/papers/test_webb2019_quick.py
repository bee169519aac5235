"""Every experiment of the paper in its quick mode: tables have rows, figures have labels, a second run does nothing."""

from __future__ import annotations

import csv
import importlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

DATA = os.environ.get("RARELY_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="RARELY_DATA is not set")


@dataclass(frozen=True)
class Expected:
    tables: dict[str, int]  # rows
    figures: dict[str, tuple[str, ...]]  # texts of each
    options: tuple[str, ...] = ()  # beside --quick


EXPERIMENTS = {
    "collision": Expected(
        # 15 satisfiable properties twice and 9 others once; two rounds of counting for the former
        {"auto.csv": 2 * 15 + 9, "paper.csv": 2 * 15 + 9, "plain.csv": 2 * 15 + 9},
        {"collision": ("figure 1a", "network calls", "plain Monte Carlo")},
    ),
    "sensitivity": Expected(
        {"sensitivity.csv": 16 * 8},  # cells x properties
        {
            "sensitivity": ("figures 1b, 1c and 4", "mean estimate / reference", "M = 20"),
            "particles": ("mean log (estimate / reference)", "survivors s &gt; L"),
        },
    ),
    "images": Expected(
        # two images at two eps, twice for the image of the figure; the walk and plain counting where they can see
        {"images.csv": 30},
        {
            "convergence": ("± 3 s.e.", "log p less that of rarely", "mnist, test image"),
            "all-images": ("network calls of one run", "cifar10, 2 test images"),
        },
    ),
    "densenet": Expected(
        {"densenet.csv": 10, "training.csv": 1},
        {"convergence": ("± 3 s.e.", "cifar10, test image"), "all-images": ("eps", "log p")},
    ),
    "robust": Expected(
        {"robust.csv": 2 * 3 * 3, "training.csv": 2},  # epochs x images x eps
        {
            "robust-training": ("epoch of robust training", "share of images", "W&amp;K bound, eps = 0.1"),
            "each-image": ("figure 5", "image 2"),
        },
    ),
    "acasxu": Expected(
        {"auto.csv": 5, "splitting.csv": 3, "plain.csv": 3 + 2},  # 1_7 leaves plain Monte Carlo after its first 10000
        {"acasxu": ("network and property", "log10 p", "proved safe")},
    ),
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def run(name: str, out: Path) -> None:
    module = importlib.import_module(f"papers.webb2019.{name}")
    module.main(["--quick", "--device", "cpu", "--out", str(out), *EXPERIMENTS[name].options])


# One test for each: two that share a run would run it twice on two workers.
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_mode_leaves_tables_and_labelled_figures_and_resumes(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)
    expected = EXPERIMENTS[name]
    assert {table: len(rows(tmp_path / table)) for table in expected.tables} == expected.tables
    for figure, texts in expected.figures.items():
        drawn = (tmp_path / f"{figure}.svg").read_text(encoding="utf-8")
        assert [text for text in texts if text not in drawn] == []
        assert (tmp_path / f"{figure}.png").stat().st_size > 5_000
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("| ")
    for row in rows(tmp_path / "auto.csv") if "auto.csv" in expected.tables else ():
        known = row.get("verdict") or row["known"]  # violations where the files say so, none elsewhere
        assert (int(row["witnesses"]) > 0) == (known.lower() == "sat"), row
    before = {table: (tmp_path / table).read_bytes() for table in expected.tables}
    run(name, tmp_path)
    assert {table: (tmp_path / table).read_bytes() for table in expected.tables} == before
