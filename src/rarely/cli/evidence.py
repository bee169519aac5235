"""`rarely evidence`: one decision as a page for a safety file; and the same decision made again, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rarely.cli import options as opt
from rarely.cli.output import check_writable, deliver, prints, screen, write_json, writing

if TYPE_CHECKING:
    from rarely.campaign.again import Answer, Replay

DIFFERS, COMPATIBLE = 1, 3  # exit codes; the same to the bit is 0


def evidence(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT.json",
            help="JSON of `rarely certify` or `rarely estimate`; with --replay also a page that was made of it.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")
    ] = Path("evidence.html"),
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of several answers in the file that with this name.", show_default=False),
    ] = None,
    witnesses: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Where the violating inputs lie now, if not where they were written."),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Write no page: run it again from the same files, and compare.")
    ] = False,
    files: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --replay: the folder that has the files now.")
    ] = None,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="With --replay: run Python objects and pickles that the result names."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="With --replay: write both answers; - for stdout.")
    ] = None,
    quiet: opt.Quiet = False,
) -> None:  # fmt: skip
    """Make one page of one decision, for a safety file; or, with --replay, make the decision again and compare.

    The page opens offline: claim, input model in words, method, numbers, proofs, assumptions, violating inputs, what
    was not checked, the argument as a goal structure, hashes of all files, and how to run it again.

    Exit codes of --replay: 0 same to the bit, 3 statistically compatible, 1 differs.
    """
    from rarely.campaign.again import read_answers
    from rarely.core.errors import InputError

    if not replay and (files is not None or trust_code or json_file is not None):
        raise InputError("--files, --trust-code and --json belong to --replay")
    answers = read_answers(source)
    if replay:
        check_writable(json_file)
        folders = [folder for folder in (files, source.parent) if folder is not None]
        _replay(answers, folders, only, trust_code, source, json_file, quiet)
        return
    from rarely.report.evidence import write_evidence

    (answer,) = _chosen(answers, only, source)
    if out.resolve() == source.resolve():
        raise InputError(f"{out} is the record itself; give the page another name with --out")
    check_writable(out)
    with writing(out) as draft:
        write_evidence(draft, answer, source, witnesses, out.name)
    if not quiet:
        screen().print(f"Written: {out} ({out.stat().st_size / 1000:,.0f} kB)", markup=False, soft_wrap=True)


def _chosen(answers: Sequence[Answer], only: str | None, source: Path) -> Sequence[Answer]:
    """The one answer that a page is about."""
    from rarely.core.errors import InputError

    names = [str(getattr(answer, "name", "")) for answer in answers]
    if only is None and len(answers) > 1:
        raise InputError(
            f"{source} has {len(answers)} answers, and a page is about one: say --only NAME, as in --only {names[0]!r}"
        )
    found = [answer for answer, name in zip(answers, names, strict=True) if only in (None, name)]
    if len(found) != 1:
        known = ", ".join(names[:5])
        raise InputError(f"{source}: {len(found)} answers are called {only!r}; there are {known}")
    return found


def _replay(
    answers: Sequence[Answer], folders: Sequence[Path], only: str | None, trust_code: bool, source: Path,
    json_file: Path | None, quiet: bool,
) -> None:  # fmt: skip
    from rarely.campaign.again import Agreement, replay

    some = answers if only is None else _chosen(answers, only, source)
    done = replay(some, folders, trust_code=trust_code, source=str(source))
    worst = max((one.agreement for one in done), key=list(Agreement).index)
    deliver(
        lambda: _show(done), prints(quiet, json_file), lambda: write_json(json_file, _as_data(done, worst.value)),
    )  # fmt: skip
    if worst is not Agreement.SAME:
        raise typer.Exit(COMPATIBLE if worst is Agreement.COMPATIBLE else DIFFERS)


def _show(done: Sequence[Replay]) -> None:
    for one in done:
        name = getattr(one.then, "name", "")
        screen().print(f"{name + ': ' if name else ''}{one}", markup=False, soft_wrap=True)


def _as_data(done: Sequence[Replay], worst: str) -> dict[str, Any]:
    each = [{"agreement": one.agreement.value, "told": one.told, "then": one.then, "now": one.now} for one in done]
    return {"schema": 1, "agreement": worst, "answers": each}
