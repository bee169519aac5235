"""`rarely.Campaign`: a plan, what it comes to, and its run."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rarely import __version__
from rarely.campaign.driver import Driver, Standing, Watch
from rarely.campaign.engines import Engine, LocalEngine
from rarely.campaign.expansion import Expansion, expand_plan
from rarely.campaign.host import OUT_OF_TIME, Limits
from rarely.campaign.plan import read_plan
from rarely.campaign.store import Header, Store
from rarely.campaign.tasks import Chunk, digest
from rarely.campaign.versions import versions
from rarely.campaign.work import estimator_of
from rarely.campaign.writer import Writer, locked, put_aside
from rarely.core.errors import InputError, RarelyError

_MOST_WORKERS = 1024  # processes on this machine
_GUESSED = -20.0  # log p for which the cost of a plan is guessed


@dataclass(frozen=True)
class PlanSummary:
    """What a plan comes to."""

    problems: int
    chunks: int
    networks: tuple[str, ...]
    groups: tuple[tuple[str, int], ...]  # what shares chunks, in words, and its number of problems
    settings: tuple[str, ...]  # of the estimator
    calls: int  # network calls in all, a rough guess: for events of log p near -20
    uncovered: tuple[str, ...]  # what may decide the numbers and is not in the fingerprint, in words


class Campaign:
    """Many problems from one plan: `campaign.toml`, or its content as a mapping.

    Reading the plan finds and hashes its files. `run` makes or continues the store in a folder; the same plan gives the
    same numbers whatever the engine, the number of workers and the interruptions.
    """

    def __init__(self, plan: Mapping[str, Any] | str | Path) -> None:
        self.plan, folder = read_plan(plan)
        self.source = None if isinstance(plan, Mapping) else Path(plan)
        for settings in self.plan.settings():
            try:
                estimator_of(settings.given())
            except RarelyError as error:
                raise InputError(f"{self.source or 'the plan'}: estimator: {error}") from error
        self.expansion: Expansion = expand_plan(self.plan, folder)

    def __len__(self) -> int:
        return len(self.expansion)

    def summary(self) -> PlanSummary:
        settings = self.plan.settings()
        groups = []
        for group in self.expansion.groups:
            words = [group.network, group.source[0].item.partition("[")[0], f"l{group.norm}" if group.norm else ""]
            groups.append((" ".join(filter(None, words)), self.expansion.size(group) * len(settings)))
        most = self.plan.budget.calls or math.inf
        each = [int(min(estimator_of(table.given()).forecast(_GUESSED), most)) for table in settings]
        return PlanSummary(
            len(self), self.expansion.chunk_count,
            tuple(dict.fromkeys(group.network for group in self.expansion.groups if group.network)),
            tuple(groups), tuple(table.shown for table in settings), sum(each) * len(self) // len(settings),
            self.expansion.uncovered,
        )  # fmt: skip

    def run(
        self,
        out: str | Path,
        *,
        engine: Literal["local", "dask"] | Engine = "local",
        workers: int | None = None,
        scheduler: str | None = None,
        device: str = "auto",
        new: bool = False,
        retry_failed: bool = False,
        watch: Watch = lambda standing: None,
    ) -> Store:
        """Run what the store in `out` does not have yet, and open the store.

        `engine` may also be an `Engine` of your own. `workers` are processes, one for each core unless given; with
        `scheduler`, the address of a running Dask cluster, that cluster's are used. `new` puts an older store aside and
        starts again, `retry_failed` gives failed problems another chance. `watch` is called with the `Standing`
        whenever something has finished, and about twice a second.
        """
        folder = Path(out)
        if scheduler is not None and engine != "dask":
            raise InputError("a scheduler belongs to the engine dask; add engine='dask' (--engine dask)")
        if workers is not None and not 1 <= workers <= _MOST_WORKERS:
            raise InputError(f"workers must be from 1 to {_MOST_WORKERS:,}, got {workers}")
        with ExitStack() as stack:
            stack.enter_context(locked(folder))
            if new:
                put_aside(folder)
            writer = Writer(folder)
            stack.callback(writer.close)
            self.expansion = self.expansion.built()
            fingerprint = self._fingerprint(device)
            tasks = (task for chunk in self.expansion.chunks(device) for task in chunk.tasks)
            plan = "campaign.toml" if self.source is None else self.source.resolve()
            command = run_command(plan, folder.resolve(), engine, workers, scheduler, device)
            header = self._header(command, fingerprint)
            writer.begin(header, fingerprint, tasks, self.expansion.uncovered)
            with Store.open(folder) as store:
                counts = store.counts()
                late = sum(record.reason.startswith(OUT_OF_TIME) for record in store.records("failed"))
            before = Standing(len(self), counts["done"], counts["failed"], 0, 0, 0, 0.0, late)
            if retry_failed and counts["failed"]:  # their chunks run again whole, what is done in them, too
                left = sum(len(chunk.tasks) for chunk in self._missing(writer, device, failed_too=False))
                before = Standing(len(self), len(self) - left, 0, 0, 0, 0, 0.0)
            missing = self._missing(writer, device, failed_too=not retry_failed)
            if (first := next(missing, None)) is not None:
                limits = Limits(self.plan.budget.seconds, self.plan.budget.chunk_seconds)
                runs_on = _engine(engine, workers or os.cpu_count() or 1, scheduler, device, limits)
                stack.callback(runs_on.close)
                driver = Driver(writer, runs_on, self.plan.campaign.seed, before, watch)
                driver.rehearse(self.expansion.rehearsals(device))
                driver.run(chain([first], missing))
        return Store.open(folder)

    def _missing(self, writer: Writer, device: str, *, failed_too: bool) -> Iterator[Chunk]:
        for chunk in self.expansion.chunks(device):
            if not writer.finished(chunk.tasks, failed_too=failed_too):
                yield chunk

    def _fingerprint(self, device: str) -> dict[str, str]:
        return {**self.expansion.fingerprint, "device": device, **versions()}

    def _header(self, command: str, fingerprint: dict[str, str]) -> Header:
        versions = {
            "rarely": __version__,
            "torch": fingerprint["torch"],
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        general = self.plan.campaign
        return Header(
            general.name or "campaign", self.plan.to_toml(), digest(f"{k}={v}" for k, v in fingerprint.items()),
            general.seed, datetime.now(UTC).isoformat(timespec="seconds"), versions, command,
        )  # fmt: skip


def run_command(
    plan: str | Path, out: Path, engine: str | Engine, workers: int | None, scheduler: str | None, device: str
) -> str:
    """How to run it again, with what was given."""
    given = {"--engine": engine, "--workers": workers, "--scheduler": scheduler, "--device": device}
    words = [(name, str(v)) for name, v in given.items() if isinstance(v, str | int) and v not in ("local", "auto")]
    return shlex.join(["rarely", "campaign", "run", str(plan), "--out", str(out), *chain(*words)])


def _engine(engine: str | Engine, workers: int, scheduler: str | None, device: str, limits: Limits) -> Engine:
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return LocalEngine(workers, limits)
    from rarely.campaign.dask_engine import DaskEngine

    return DaskEngine(workers, scheduler, device, limits)
