"""Help, version and the start of the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

COMMANDS = ("estimate", "robustness", "verify", "inspect", "demo", "doctor")


def test_help_lists_the_commands(rarely) -> None:
    text = rarely("--help").stdout
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(rarely, command: str) -> None:
    text = rarely(command, "--help").stdout
    assert "Usage" in text
    assert "--quiet" in text


@pytest.mark.parametrize("arguments", [["--help"], ["estimate", "--help"], ["--version"]])
def test_help_waits_for_no_library(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom rarely.cli import main\n"
        f"sys.argv = ['rarely', *{arguments}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'onnx', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_option_has_help() -> None:
    from rarely.cli.app import app

    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        assert command.help
        for option in command.params:
            assert option.help, f"{command.name} {option.name}"


def test_version(rarely) -> None:
    assert rarely("--version").stdout.startswith("rarely 0.")


def test_unknown_command_and_option_are_usage_errors(rarely) -> None:
    rarely("estimat", code=2)
    rarely("estimate", "a.rlv", "--particle-count", "3", code=2)


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*path, name))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_breaks_no_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer import rich_utils
    from typer.testing import CliRunner

    from rarely.cli.app import app

    monkeypatch.setattr(rich_utils, "MAX_WIDTH", width)
    for path, command in _commands(typer.main.get_command(app)):
        text = CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"}).invoke(app, [*path, "--help"]).output
        words = set(text.replace("\u2502", " ").split())
        assert "\u2026" not in text, path  # where a word was cut
        assert not any(kind in text for kind in ("<bool>", "<list")), path
        assert max(map(len, text.splitlines())) <= width
        shown = [one for one in command.params if not one.hidden and one.param_type_name == "option"]
        for option in shown:
            assert set(option.opts) <= words, (path, option.name)
            told = {word.strip("[]().,;") for word in str(option.help).split()}
            assert told <= {word.strip("[]().,;") for word in words}, (path, option.name)


def test_the_floor_is_a_probability_in_help(rarely) -> None:
    text = rarely("robustness", "--help").stdout
    assert "--p-min" in text
    assert "--log-p-min" not in text
