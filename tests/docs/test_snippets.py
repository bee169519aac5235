"""The documentation runs: every Python block, every example, and every `rarely` line of a console block."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from rarely.campaign.plan import Plan
from rarely.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_NOT_RUN = 3
ROOMS = ("src", "tests", "docs", "examples", "benchmarks", "papers", "scripts")
INVENTED = {"methods/wider.py", "file.py"}  # files that a reader is told to write
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# Commands that take seconds are run; of the others only the options are checked.
GROUPS = {name for name, found in typer.main.get_command(app).commands.items() if hasattr(found, "commands")}
QUICK = ("inspect", "doctor", "--help", "--version")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    marks: str
    text: str


def _blocks(page: Path, language: str) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    return [
        Block(page, content.count("\n", 0, m.start()) + 1, m[1], m[2].strip(), m[3])
        for m in _FENCE.finditer(content)
        if m[1] == language
    ]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=_name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in _blocks(page, "python"):
        if block.marks:
            continue
        # Blank lines in front keep the line numbers of the page in tracebacks.
        code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(code, namespace)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    idle = [block for page in PAGES for block in _blocks(page, "python") if block.marks]
    assert len(idle) <= MAX_NOT_RUN, [(_name(b.page), b.line) for b in idle]
    for block in idle:
        assert block.marks == "no-run", (_name(block.page), block.line)
        assert block.text.lstrip().startswith("# not run:"), (_name(block.page), block.line)


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in _blocks(page, "console"):
            lines = re.findall(r"^\$ (rarely .*)$", block.text, re.MULTILINE)
            found += [(f"{_name(page)}:{block.line}", line) for line in lines]
        for block in _blocks(page, "yaml"):  # jobs of a CI
            lines = re.findall(r"^\s*(?:- )?(?:run: )?(rarely .*)$", block.text, re.MULTILINE)
            found += [(f"{_name(page)}:{block.line}", line) for line in lines]
    return found


@pytest.mark.parametrize(("where", "line"), _commands())
def test_console_lines_parse(where: str, line: str, tmp_path: Path) -> None:
    words = shlex.split(line.split("#")[0])[1:]
    quick = words[0] in QUICK
    os.environ.setdefault("COLUMNS", "160")
    if quick:
        words = [str(ROOT / w) if w.startswith("src/") else w for w in words]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (where, result.output)
        return
    # Options are known and every shipped file is there; the run itself is the business of tests/cli.
    command = words[:2] if words[0] in GROUPS else words[:1]
    help_text = CliRunner().invoke(app, [*command, "--help"])
    assert help_text.exit_code == 0, (where, help_text.output)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", help_text.output)
    for word in words[len(command) :]:
        if re.fullmatch(r"--?[a-z][a-z-]*", word):
            assert word in plain, (where, f"{word} is no option of rarely {' '.join(command)}")
        elif word.startswith("src/"):
            assert (ROOT / word).exists(), (where, word)


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "yaml")], ids=_name)
def test_yaml_blocks_can_be_read(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block.text), dict), (_name(page), block.line)


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "toml")], ids=_name)
def test_plans_are_valid(page: Path) -> None:
    for block in _blocks(page, "toml"):
        Plan.model_validate(tomllib.loads(block.text))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in _LINK.findall(text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{_name(page)} links to {target}"


_FILE = re.compile(r"`([\w/]+\.py)`")


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=_name)
def test_files_that_are_named_exist(page: Path) -> None:
    everything = [path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    for name in _FILE.findall(page.read_text(encoding="utf-8")):
        known = any(f"/{path}".endswith(f"/{name}") for path in everything)
        assert known or name in INVENTED, f"{_name(page)} names {name}"


@pytest.mark.parametrize("script", EXAMPLES, ids=_name)
def test_examples_run(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script)])
    code: object = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        code = stop.code or 0
    assert code == 0
    assert capsys.readouterr().out.strip()
