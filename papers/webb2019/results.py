"""Put what the experiments wrote where it is read: python -m papers.webb2019.results

Tables go into RESULTS.md, what is still cut first, the main figures into the folder of the documentation.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from papers.webb2019 import coverage
from papers.webb2019.common import RESULTS

PAGE = Path(__file__).parent / "RESULTS.md"
FIGURES = Path(__file__).parents[2] / "docs" / "figures" / "webb2019"
SHOWN = {  # experiment: the figure of it that docs/explanation/paper.md shows
    "collision": "collision", "sensitivity": "sensitivity", "images": "convergence", "densenet": "convergence",
    "robust": "robust-training", "acasxu": "acasxu",
}  # fmt: skip
# A block reads <!-- results/collision/summary.md --> ... <!-- end -->; `machine` for what it ran on.
_BLOCK = re.compile(r"(<!-- results/(\w+)/(summary\.md|machine) -->\n).*?(<!-- end -->)", re.S)
_COVERAGE = re.compile(r"(<!-- results/coverage -->\n).*?(<!-- end -->)", re.S)


def refresh(page: Path = PAGE, folder: Path = RESULTS) -> None:
    """Every block with what its experiment wrote last; a block whose experiment has not run stays as it is."""

    def fill(block: re.Match[str]) -> str:
        head, name, what, tail = block.groups()
        source = folder / name / ("runs.jsonl" if what == "machine" else what)
        if not source.exists():
            return block[0]
        text = source.read_text(encoding="utf-8")
        return f"{head}{_machines(text) if what == 'machine' else text.strip()}\n{tail}"

    text = _BLOCK.sub(fill, page.read_text(encoding="utf-8"))
    text = _COVERAGE.sub(lambda block: f"{block[1]}{coverage.table(folder)}\n{block[2]}", text)
    page.write_text(text, encoding="utf-8")


def publish(figures: Path = FIGURES, folder: Path = RESULTS) -> None:
    """Copy the figure of each experiment that has one."""
    figures.mkdir(parents=True, exist_ok=True)
    for name, figure in SHOWN.items():
        drawn = folder / name / f"{figure}.svg"
        if drawn.exists():
            shutil.copyfile(drawn, figures / f"{name}.svg")


def _machines(text: str) -> str:
    """Each machine that took part, with the day and the versions."""
    runs = [json.loads(line) for line in text.splitlines()]
    lines = [
        f"{run['machine']}, Python {run['python']}, torch {run['torch']}, rarely {run['rarely']}, {run['date'][:10]}"
        for run in runs
    ]
    return "Run on: " + "; ".join(dict.fromkeys(lines)) + "."


if __name__ == "__main__":
    refresh()
    publish()
