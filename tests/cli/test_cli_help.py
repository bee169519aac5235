"""Help, version and the start of the program."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    import typer

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
