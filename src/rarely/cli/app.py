"""The application: its commands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import traceback
from typing import Annotated, Any

import typer

from rarely import __version__
from rarely.cli.campaign import campaign
from rarely.cli.certify import certify
from rarely.cli.compare import compare
from rarely.cli.demo import demo
from rarely.cli.doctor import doctor
from rarely.cli.estimate import estimate
from rarely.cli.evidence import evidence
from rarely.cli.help import Command, Group
from rarely.cli.inspect import inspect
from rarely.cli.output import UNREAD, drop_output, end_interrupted, show_error
from rarely.cli.record import keep_typed
from rarely.cli.report import plot, report
from rarely.cli.robustness import robustness
from rarely.cli.verify import verify
from rarely.core.errors import RarelyError

USER_ERROR = 2
OUR_ERROR = 70  # EX_SOFTWARE of sysexits.h: 1 means that something was rejected or failed


class _Group(Group):
    """Errors that a user can cause become one message and exit code 2; any other keeps its traceback and exits 70."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        keep_typed(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RarelyError as error:
            show_error(error)
            raise typer.Exit(USER_ERROR) from error
        except KeyboardInterrupt:
            end_interrupted("")
        except SystemExit as error:  # nothing here raises it: the code of a network does, and 0 would mean success
            show_error(f"the network's own code wants to end the program (SystemExit: {error}), so there is no answer")
            raise typer.Exit(USER_ERROR) from error
        except BrokenPipeError as error:  # whoever read the output has seen enough
            drop_output()
            raise typer.Exit(UNREAD) from error
        except OSError as error:  # a full disk, a name too long, a folder without permission
            where = "the results cannot be shown" if error.filename is None else error.filename
            show_error(f"{where}: {error.strerror or error}")
            drop_output()
            raise typer.Exit(USER_ERROR) from error
        except MemoryError as error:
            show_error("there is not enough memory for this; try a smaller batch, or fewer problems at once")
            raise typer.Exit(USER_ERROR) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("click", "typer"):
                raise  # wrong options, and the way in which they end a program
            traceback.print_exc()
            show_error("this is a fault of rarely, not of yours; please report it with the lines above")
            raise typer.Exit(OUR_ERROR) from error


app = typer.Typer(
    name="rarely",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (estimate, robustness, verify, certify, evidence, compare, inspect, report, plot, demo, doctor):
    app.command(cls=Command)(command)
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

    Exit codes: 0 success, 1 rejected or some failed, 2 an error that is explained, 3 undecided, 70 a fault of rarely,
    130 after Ctrl-C, 141 when nobody reads the output. RARELY_LIMITS=N lets files ask for N times the memory and work
    that they may (SECURITY.md).
    """


def main() -> None:
    app()
