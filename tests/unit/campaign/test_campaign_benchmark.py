"""The summary of a benchmark of VNN-COMP: a run that goes on reads it, whatever became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rarely.campaign.benchmark import read_summary
from rarely.core.errors import FormatError


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    assert read_summary(file) == {}
    file.write_text('instance,verdict,seconds,comment\na.txt,sat,1.50,"two\nlines"\n\'=b.txt,unsat,0.10,\n')
    assert read_summary(file) == {"a.txt": (1.5, "two\nlines"), "=b.txt": (0.1, "")}


@pytest.mark.parametrize(
    "content",
    [
        b"instance,verdict,seconds,comment\na.txt,sat,soon,\n",
        b"instance,verdict,seconds,comment\na.txt,sa",  # of a run that was killed
        b"name\na.txt\n",
        b'instance,verdict,seconds,comment\na.txt,sat,1,"' + b"a" * 200_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_summary_is_a_sentence(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"results\.csv"):
        read_summary(file)
