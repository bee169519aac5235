"""Run the README's Python block and its command, and write what they print into it.

Run it with `python docs/refresh_readme.py` from the repository, after a change that moves numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    command = re.search(r"\$ rarely (estimate [^\n]*)\n", text)
    assert block is not None
    assert command is not None
    printed = _output([sys.executable, "-W", "error", "-c", block[1]])
    shown = _output([sys.executable, "-m", "rarely", *command[1].split()])
    text = re.sub(r"(```text\n).*?(```)", lambda m: f"{m[1]}{printed}\n{m[2]}", text, count=1, flags=re.DOTALL)
    pattern = re.escape(command[0]) + r".*?(```)"
    text = re.sub(pattern, lambda m: f"{command[0]}{shown}\n{m[1]}", text, count=1, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
