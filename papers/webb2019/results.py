"""Put the tables that the experiments wrote into RESULTS.md: python -m papers.webb2019.results"""

from __future__ import annotations

import json
import re
from pathlib import Path

from papers.webb2019.common import RESULTS

PAGE = Path(__file__).parent / "RESULTS.md"
# A block reads <!-- results/collision/summary.md --> ... <!-- end -->; `machine` for what it ran on.
_BLOCK = re.compile(r"(<!-- results/(\w+)/(summary\.md|machine) -->\n).*?(<!-- end -->)", re.S)


def refresh(page: Path = PAGE, folder: Path = RESULTS) -> None:
    """Every block with what its experiment wrote last; a block whose experiment has not run stays as it is."""

    def fill(block: re.Match[str]) -> str:
        head, name, what, tail = block.groups()
        source = folder / name / ("runs.jsonl" if what == "machine" else what)
        if not source.exists():
            return block[0]
        text = source.read_text(encoding="utf-8")
        return f"{head}{_machines(text) if what == 'machine' else text.strip()}\n{tail}"

    page.write_text(_BLOCK.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


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
