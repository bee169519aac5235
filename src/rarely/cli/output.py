"""What the commands print and write."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rarely.core.witnesses import Witnesses
    from rarely.questions.result import Estimate

STDOUT = Path("-")
INTERRUPTED = 130  # what a shell reports for a program stopped by Ctrl-C
UNREAD = 141  # and for one whose output nobody reads any more
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@cache
def screen(*, stderr: bool = False) -> Console:
    """The terminal; without colours where it is a file or a pipe, and then wide unless COLUMNS says otherwise."""
    from rich.console import Console

    class Screen(Console):  # these two are rich's own hooks
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(harmless(text), **options)

        def on_broken_pipe(self) -> None:
            """Rich would end the program with 1, which means that something was rejected."""
            raise BrokenPipeError

    console = Screen(stderr=stderr, highlight=False, markup=False)  # brackets in the name of a file are no markup
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    return console


def harmless(text: str) -> str:
    """A text whose author may be a stranger: what would command a terminal, or turn a line round, is spelled out."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def prints(quiet: bool, json_file: Path | None) -> bool:
    """Whether results are shown: not when nobody wants them, nor into the JSON on stdout."""
    return not quiet and json_file != STDOUT


def check_writable(*files: Path | None) -> None:
    """Find out before the work, not after it, that a result cannot be written."""
    from rarely.core.errors import InputError

    for file in files:
        if file is None or file == STDOUT:
            continue
        try:
            wrong = _obstacle(file)
        except (OSError, ValueError) as error:  # a name too long, or with a NUL in it
            wrong = getattr(error, "strerror", None) or str(error)
        if wrong:
            raise InputError(f"{file} cannot be written: {wrong}")


def _obstacle(file: Path) -> str:
    folder = file.resolve().parent
    if file.is_dir():
        return "it is a folder"
    if not folder.is_dir():
        return "there is no such folder"
    if file.exists():
        return "" if os.access(file, os.W_OK) else "it is read-only"
    return "" if os.access(folder, os.W_OK) else f"the folder {folder} is read-only"


def deliver(show: Callable[[], None], shown: bool, *writes: Callable[[], None]) -> None:
    """Print the results and write them: whatever of it fails keeps nothing else from being done.

    What is not `shown` because nobody asked for it is printed after all when it cannot be written.
    """
    from rarely.core.errors import InputError

    screen_lost: OSError | None = None
    if shown:
        try:
            show()
        except OSError as error:  # also a pipe that nobody reads any more
            screen_lost = error
    wrong = []
    for write in writes:
        try:
            write()
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        if not shown:
            with redirect_stdout(sys.stderr):  # there may be JSON on stdout
                show()
        raise InputError("; ".join(wrong))
    if screen_lost is not None:
        raise screen_lost


@contextmanager
def writing(file: Path) -> Iterator[Path]:
    """Where to write what `file` is to hold; what the system has against it is an error with a sentence."""
    from rarely.core.errors import InputError
    from rarely.io.files import replacing

    try:
        with replacing(file) as draft:
            yield draft
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from error


def write_file(file: Path | None, write: Callable[[Path], object]) -> None:
    """A file that may not have been asked for."""
    if file is not None:
        with writing(file) as draft:
            write(draft)


def write_json(file: Path | None, content: Any, **lists: Iterable[Any]) -> None:
    """Plain data, in which whatever has a `to_json` of its own may stand; `lists` are written entry by entry."""
    if file == STDOUT:
        sys.stdout.writelines(_as_json(content, lists))
        sys.stdout.flush()
        return

    def write(draft: Path) -> None:
        with draft.open("w", encoding="utf-8") as out:
            out.writelines(_as_json(content, lists))

    write_file(file, write)


def _as_json(content: Any, lists: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    from rarely.questions.result import plain

    def text(part: Any, indent: int | None = None) -> str:
        known = plain(part)
        return json.dumps(known, indent=indent, allow_nan=False, default=lambda one: json.loads(one.to_json()))

    whole = text(content, 2)
    yield whole.removesuffix("\n}") if lists else whole
    for name, entries in lists.items():
        yield f',\n  "{name}": ['
        for number, entry in enumerate(entries):
            yield ("," if number else "") + f"\n    {text(entry)}"
        yield "\n  ]"
    yield "\n}\n" if lists else "\n"


def save_witnesses(found: Sequence[tuple[str, Witnesses]], file: Path, *, many: bool) -> None:
    """Violating inputs of one problem; of several, by name: they may differ in shape and in how many there are."""
    import numpy as np

    from rarely.core.witnesses import packed

    if not many:
        found[0][1].save(file)
        return
    arrays = {"names": np.array([name for name, _ in found])}
    for i, (_, witnesses) in enumerate(found):
        arrays[f"inputs_{i}"] = witnesses.inputs.numpy()
        arrays[f"scores_{i}"] = witnesses.scores.numpy()
    file.write_bytes(packed(arrays))


def estimates_table(estimates: Sequence[Estimate]) -> Table:
    interval = f"{estimates[0].interval.confidence:.0%} interval"
    table = plain_table("problem", "outcome", "probability", interval, "calls", right=(2, 4))
    for estimate in estimates:
        table.add_row(estimate.name, estimate.word, *estimate.cells, f"{estimate.calls:,}")
    return table


def outcome_counts(estimates: Sequence[Estimate]) -> str:
    counts = Counter(estimate.outcome.value for estimate in estimates)
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    return f"{len(estimates)} problems: {listed}"


def plain_table(*columns: str, right: Iterable[int] = ()) -> Table:
    """Without lines between rows; the columns numbered in `right` are those of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in right:
        table.columns[column].justify = "right"
    return table


def show_error(message: object) -> None:
    screen(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def drop_output() -> None:
    """What stdout could not take is not tried again when the program ends, which would be a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_interrupted(message: str, *known: str) -> NoReturn:
    """Say so, and what is known, and end as a shell expects after Ctrl-C."""
    import typer

    console = screen(stderr=True)
    console.print(f"interrupted{message}", style="yellow", markup=False, soft_wrap=True)
    for line in known:
        console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(INTERRUPTED)
