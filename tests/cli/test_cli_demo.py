"""`rarely demo` and the shipped assets."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rarely.demo import assets, manifest


def test_demo_finds_what_was_measured(rarely, tmp_path: Path) -> None:
    done = rarely("demo", "--out", tmp_path / "out")
    assert "never: this is proved" in done.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    for entry, result in zip(manifest(), results, strict=True):
        assert entry.name == result["name"]
        if entry.log10_prob is None:
            assert result["outcome"] == "proved safe"
        else:
            error = math.hypot(result["log_prob_std"] / math.log(10), entry.log10_prob_error or 0.0)
            assert abs(result["log_prob"] / math.log(10) - entry.log10_prob) < 5 * error
    for name in ("probabilities", "levels", "witnesses"):
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()


def test_robustness_on_the_shipped_pictures(rarely) -> None:
    done = rarely(
        "robustness", assets() / "signs.onnx", "--inputs", assets() / "signs.npz", "--eps", "0.25", "--clip", 0, 1,
        "-e", "monte-carlo", "--samples", 2000, "--json", "-",
    )  # fmt: skip
    content = json.loads(done.stdout)
    assert len(content["rows"]) == 6
    assert not any(row["misclassified"] for row in content["rows"])


def test_out_must_be_a_folder(rarely, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in rarely("demo", "--out", tmp_path / "file", code=2).stderr
