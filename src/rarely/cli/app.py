"""The application: its commands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rarely import __version__
from rarely.cli.campaign import campaign
from rarely.cli.certify import certify
from rarely.cli.demo import demo
from rarely.cli.doctor import doctor
from rarely.cli.estimate import estimate
from rarely.cli.inspect import inspect
from rarely.cli.output import end_interrupted, show_error
from rarely.cli.report import plot, report
from rarely.cli.robustness import robustness
from rarely.cli.verify import verify
from rarely.core.errors import RarelyError

USER_ERROR = 2


class _Group(TyperGroup):
    """Errors that a user can cause become one message and exit code 2; any other keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RarelyError as error:
            show_error(error)
            raise typer.Exit(USER_ERROR) from error
        except KeyboardInterrupt:
            end_interrupted("")


app = typer.Typer(
    name="rarely",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (estimate, robustness, verify, certify, inspect, report, plot, demo, doctor):
    app.command()(command)
app.add_typer(campaign, name="campaign")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rarely {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """How rarely does your neural network fail?

    Violation probabilities with honest intervals, witnesses and verdicts.
    """


def main() -> None:
    app()
