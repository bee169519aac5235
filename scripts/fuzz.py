"""Damaged and hostile files for every parser: anything but success or a sentence is a finding.

    python scripts/fuzz.py --seconds 60             each parser for a minute
    python scripts/fuzz.py --only onnx --seed 7     one of them, from another start
    python scripts/fuzz.py --replay findings/onnx-000123    what was found, again

Each parser runs in a process of its own, under limits on memory and time. A case follows from seed, parser and number
alone. Findings are kept with their input, and the script ends with 1 when there are any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from fuzz_cases import PARSERS, Files, mutate

MEMORY = 4 << 30  # beyond what a process holds before: the limits of the package, and some room
SECONDS = 60  # for one case


class TooLong(BaseException):
    """Not an Exception: no parser may take it for a fault of its file."""


def _ring(*_: Any) -> None:
    raise TooLong


def attempt(parser: str, files: Files, folder: Path) -> str | None:
    """What is wrong with how a parser takes a case, or None."""
    from rarely.core.errors import RarelyError

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    started = time.monotonic()
    signal.alarm(SECONDS)
    try:
        PARSERS[parser][1](folder / next(iter(files)))
    except RarelyError as error:
        if len(str(error)) > 20_000:
            return f"a sentence of {len(str(error)):,} characters"
    except TooLong:
        return f"more than {SECONDS} s"
    except MemoryError:
        return f"MemoryError beyond {MEMORY:,} bytes\n{traceback.format_exc()}"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    took = time.monotonic() - started
    return f"{took:.0f} s" if took > SECONDS / 2 else None


def work(parser: str, seed: int, first: int, seconds: float, folder: str, out: Any) -> None:
    """Cases one after the other, each announced before it is tried, so that whoever waits knows what killed this."""
    import logging
    import os
    import warnings

    warnings.simplefilter("ignore")
    logging.disable()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # native code prints, too
        os.dup2(nothing, stream)
    signal.signal(signal.SIGALRM, _ring)
    place, seeds = Path(folder) / "case", PARSERS[parser][0]()
    for files in seeds:  # also loads what the parser needs
        told = attempt(parser, files, place)
        if told is not None and first == 0:
            out.send(("finding", -1, next(iter(files)), told, files))
    with open("/proc/self/statm", encoding="ascii") as pages:
        held = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        files = case_of(parser, seeds, seed, number)
        out.send(("case", number, next(iter(files)), "", {}))
        told = attempt(parser, files, place)
        if told is not None:
            out.send(("finding", number, next(iter(files)), told, files))
        number += 1
    out.send(("done", number, "", "", {}))


def case_of(parser: str, seeds: list[Files], seed: int, number: int) -> Files:
    rng = random.Random(f"{seed} {parser} {number}")
    return mutate(rng.choice(seeds), rng)


def fuzz(parser: str, seed: int, seconds: float, findings: Path) -> tuple[int, list[str]]:
    """How many cases were tried, and what was found, each kind once. A process that dies is followed by another."""
    found: dict[str, str] = {}
    number, end = 0, time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{parser}-") as folder:
        while True:
            receive, send = context.Pipe(duplex=False)
            left = max(0.0, end - time.monotonic())
            child = context.Process(target=work, args=(parser, seed, number, left, folder, send))
            child.start()
            send.close()
            kind, opened, why = "", "", ""
            try:
                while kind != "done" and receive.poll(2 * SECONDS + 60):
                    kind, number, opened, text, files = receive.recv()
                    if kind == "finding":
                        _keep(found, findings / f"{parser}-{number:06d}", parser, opened, text, files)
                if kind != "done":
                    why = "nothing interrupts it"
            except EOFError:
                pass
            finally:
                if kind != "done":  # it is gone, or hangs, or nobody waits for it any more
                    child.join(0 if why or sys.exc_info()[0] else 5)
                    child.kill()
                child.join()
            if kind == "done":
                return number, list(found.values())
            if kind == "":
                return number, [*found.values(), f"{parser}: it does not start ({child.exitcode})"]
            if kind == "case":
                files = {file.name: file.read_bytes() for file in (Path(folder) / "case").iterdir() if file.is_file()}
                why = why or f"the process ended with {child.exitcode}"
                _keep(found, findings / f"{parser}-{number:06d}", parser, opened, why, files)
            number += 1


def _keep(found: dict[str, str], place: Path, parser: str, opened: str, text: str, files: Files) -> None:
    lines = text.strip().splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    kind = f"{lines[-1].split(':')[0][:80]} {places[-1] if places else ''}"
    if kind in found:
        return
    found[kind] = f"{place}: {lines[-1][:200]} ({places[-1] if places else 'no place'})"
    place.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    about = {"parser": parser, "opened": opened, "text": text}
    (place / "finding.json").write_text(json.dumps(about, indent=2))


def replay(place: Path) -> int:
    """A finding again, in this process: a debugger may look on."""
    about = json.loads((place / "finding.json").read_text())
    kept = {file.name: file.read_bytes() for file in place.iterdir() if file.name != "finding.json"}
    signal.signal(signal.SIGALRM, _ring)
    with tempfile.TemporaryDirectory() as folder:
        told = attempt(about["parser"], {about["opened"]: b"", **kept}, Path(folder) / "case")
    print(told or "no longer a finding")
    return int(told is not None)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60, help="for each parser")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=PARSERS, action="append", help="a parser; may be given several times")
    options.add_argument("--findings", type=Path, default=Path("findings"), help="folder for what is found")
    options.add_argument("--replay", type=Path, metavar="FOLDER", help="a finding, to see it again")
    given = options.parse_args()
    if given.replay is not None:
        return replay(given.replay)
    everything = []
    for parser in given.only or PARSERS:
        cases, found = fuzz(parser, given.seed, given.seconds, given.findings)
        print(f"{parser:14} {cases:8,} cases  {len(found)} findings", flush=True)
        everything += found
    print(*everything, sep="\n")
    return int(bool(everything))


if __name__ == "__main__":
    sys.exit(main())
