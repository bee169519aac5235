"""From a plan to chunks of tasks, streamed: a million problems are never in memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rarely.campaign.built import state_of
from rarely.campaign.content import Content, few, is_python, locate
from rarely.campaign.patterns import matching, short_names
from rarely.campaign.plan import DatasetTable, EstimatorBase, InstancesTable, NetworkTable, Plan, RlvTable, VnnlibTable
from rarely.campaign.tasks import Chunk, File, ImagePlace, Method, NetworkFile, PropertyPlace, Task, digest, make_chunk
from rarely.campaign.work import made_input_model, made_network
from rarely.core.errors import InputError
from rarely.core.limits import PROBLEMS
from rarely.io.formats.images import load_images
from rarely.io.formats.vnncomp import read_instances
from rarely.io.problems import rlv_files
from rarely.registry import make_box_law


@dataclass(frozen=True)
class Entry:
    """An image or a property file, without network, radius and replicate."""

    item: str
    label: str
    token: str  # tells it from all others, by content
    place: ImagePlace | PropertyPlace


class Source(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Entry: ...


@dataclass(frozen=True)
class _Dataset:
    """The entries of a dataset, made when asked for."""

    table: DatasetTable
    file: File
    names: Sequence[str]
    labels: NDArray[np.int64] | None
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int, /) -> Entry:
        row, classes = self.rows[i], self.table.classes
        label = None if self.labels is None else int(self.labels[row])
        shown = "" if label is None else classes[label] if label < len(classes) else str(label)
        item = f"{Path(self.table.dataset).name}[{self.names[row]}]"
        place = ImagePlace(self.file, row, label, self.table.clip)
        return Entry(item, shown, f"{self.file.digest} {row} {label} {self.table.clip}", place)


@dataclass(frozen=True)
class Group:
    """Problems that may share chunks: every entry at every radius."""

    network: str  # as written in the plan
    network_file: NetworkFile | None
    norm: str
    radii: tuple[float | None, ...]
    source: Source


@dataclass(frozen=True)
class Expansion:
    """A plan with its files found and hashed."""

    plan: Plan
    groups: tuple[Group, ...]
    fingerprint: dict[str, str]  # all that the numbers depend on, in words
    uncovered: tuple[str, ...]  # but for this, in words, too

    def __len__(self) -> int:
        return self.count

    @property
    def count(self) -> int:
        """Its length, also where that is too large for `len`."""
        return len(self.plan.settings()) * sum(map(self.size, self.groups))

    @property
    def chunk_count(self) -> int:
        return len(self.plan.settings()) * sum(-(-self.size(g) // self.plan.campaign.batch) for g in self.groups)

    def size(self, group: Group) -> int:
        return len(group.source) * len(group.radii) * self.plan.campaign.replicates

    def chunks(self, device: str = "auto") -> Iterator[Chunk]:
        """All chunks in the order of the plan."""
        general, number, first = self.plan.campaign, 0, 0
        for settings in self.plan.settings():
            method = self._method(settings, device)
            for group in self.groups:
                size = self.size(group)
                for start in range(0, size, general.batch):
                    stop = min(start + general.batch, size)
                    tasks = tuple(self._tasks(settings, group, first + start, range(start, stop)))
                    yield make_chunk(number, general.seed, method, tasks)
                    number += 1
                first += size

    def rehearsals(self, device: str) -> Iterator[tuple[Chunk, Chunk]]:
        """The first and the last problem of each source, on its first network, only to be built."""
        settings = self.plan.settings()[0]
        method = self._method(settings, device)
        for group in {id(group.source): group for group in reversed(self.groups)}.values():
            ends = (tuple(self._tasks(settings, group, 0, range(i, i + 1))) for i in (0, self.size(group) - 1))
            first, last = (Chunk(-1, self.plan.campaign.seed, method, tasks, rehearsal=True) for tasks in ends)
            yield first, last

    def _method(self, settings: EstimatorBase, device: str) -> Method:
        return Method(settings.given(), self.plan.campaign.confidence, self.plan.budget.calls, device)

    def _tasks(self, settings: EstimatorBase, group: Group, first: int, numbers: range) -> Iterator[Task]:
        """Some tasks of a group, by their number in it; the first of them has the place `first` in the plan."""
        general, replicates = self.plan.campaign, self.plan.campaign.replicates
        network = "" if group.network_file is None else group.network_file.token
        token = digest([network, group.norm, settings.shown, repr(general.confidence), repr(self.plan.budget.calls)])
        suffix = settings.shown if self.plan.matrix else ""
        for index, number in enumerate(numbers, first):
            rest, replicate = divmod(number, replicates)
            row, which = divmod(rest, len(group.radii))
            entry, radius = group.source[row], group.radii[which]
            words = [group.network, entry.item, "" if radius is None else f"l{group.norm} {radius:g}", suffix]
            words += [f"#{replicate}"] if replicates > 1 else []
            content = digest([token, entry.token, repr(radius), str(replicate)])
            yield Task(
                index, digest([content, group.network, entry.item]), " ".join(filter(None, words)), group.network,
                entry.item, entry.label, group.norm, radius, replicate, group.network_file, entry.place, content,
            )  # fmt: skip

    def built(self) -> Expansion:
        """The same with what Python made hashed, too: its code runs now."""
        found, uncovered = dict(self.fingerprint), list(self.uncovered)

        def state(key: str, file: File, made: Any) -> str:
            hashed, unseen = state_of(made, Path(file.path).name)
            uncovered.extend(unseen)
            return found.setdefault(f"{key}: its weights and constants", hashed)

        networks: dict[NetworkFile, NetworkFile] = {}
        models: dict[File, str] = {}
        groups = []
        for group in self.groups:
            file = group.network_file
            if file is not None and (is_python(file.file.path) or file.architecture) and file not in networks:
                networks[file] = replace(file, state=state(f"network {group.network}", file.file, made_network(file)))
            place = group.source[0].place
            model = place.model if isinstance(place, PropertyPlace) else None
            source = group.source
            if model is not None:
                if model not in models:
                    models[model] = state(f"input_model {Path(model.path).name}", model, made_input_model(model))
                source = _with_state(source, models[model])
            groups.append(replace(group, network_file=networks.get(file, file) if file else None, source=source))
        return replace(self, groups=tuple(groups), fingerprint=found, uncovered=tuple(dict.fromkeys(uncovered)))


def expand_plan(plan: Plan, folder: Path) -> Expansion:
    """Find, read and hash what the plan names."""
    found = {f"campaign.{key}": str(value) for key, value in plan.campaign if key != "name"}
    found["estimator"] = "; ".join(settings.shown for settings in plan.settings())
    found["budget.calls"] = str(plan.budget.calls)
    finder = _Finder(folder)
    networks = {table.shown: finder.network(table) for table in plan.networks}
    groups: list[Group] = []
    for i, table in enumerate(plan.problems):
        new = list(_groups(table, plan, finder, networks))
        for group in new:
            if group.network_file is not None:
                found |= _told_network(group.network, group.network_file)
        sources = list({id(group.source): group.source for group in new}.values())
        tokens = (source[k].token for source in sources for k in range(len(source)))
        found[f"problems[{i}]"] = digest([table.model_dump_json(), digest(tokens)])
        found |= {f"problems[{i}]: {name}": hashed for name, hashed in few(list(_parts(sources)))}
        groups += new
    expansion = Expansion(plan, tuple(groups), found, tuple(dict.fromkeys(finder.uncovered)))
    many = PROBLEMS.excess(expansion.count, "the plan")
    if many is not None:
        raise InputError(many)
    return expansion


def _told_network(name: str, network: NetworkFile) -> dict[str, str]:
    """A network in the fingerprint; what it pulls in stands apart, so that a change is told by its name."""
    told = {f"network {name}": network.token}
    told |= {f"network {name}: {part}": hashed for part, hashed in network.file.parts}
    made = network.architecture
    if made is not None:
        told |= {f"network {name}: architecture {part}": hashed for part, hashed in made.parts or [("", made.digest)]}
    return told


def _parts(sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    """The files of some problems with their hashes."""
    for source in sources:
        place = source[0].place
        if isinstance(place, ImagePlace):
            yield from place.dataset.parts
            continue
        if place.model is not None:
            name = f"input_model {place.input_model}"
            yield from ((f"{name}: {part}", hashed) for part, hashed in place.model.parts)
        for k in range(len(source)):
            entry = source[k]
            assert isinstance(entry.place, PropertyPlace)
            yield entry.item, entry.place.file.digest


class _Finder:
    """Finds what a plan names, relative to its folder, and remembers what no hash covers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uncovered: list[str] = []

    def file(self, text: str) -> File:
        found: Content = locate(text, self.folder)
        self.uncovered += found.uncovered
        return found.file

    def network(self, table: NetworkTable) -> NetworkFile:
        made = None if table.architecture is None else self.file(table.architecture)
        if table.trust_pickle:
            self.uncovered.append(f"the Python code that {table.path} needs, if it is a pickle")
        return NetworkFile(self.file(table.path), made, table.trust_pickle, table.mean, table.std)

    def properties(self, files: Sequence[Path], input_model: str | None) -> tuple[Entry, ...]:
        model = None
        if input_model is not None and ":" in input_model and make_box_law(input_model) is None:
            model = self.file(input_model)
            input_model = model.path
        law = input_model if model is None else model.digest
        found = [self.file(str(file)) for file in files]
        return tuple(
            Entry(item, "", f"{file.digest} {law}", PropertyPlace(file, input_model, model))
            for item, file in zip(short_names(files), found, strict=True)
        )


def _groups(table: Any, plan: Plan, finder: _Finder, networks: dict[str, NetworkFile]) -> Iterator[Group]:
    folder = finder.folder
    if isinstance(table, DatasetTable):
        source = _dataset(table, finder)
        for network in plan.chosen(table):
            for norm in table.norms:
                yield Group(network.shown, networks[network.shown], norm, table.radii, source)
    elif isinstance(table, VnnlibTable):
        properties = finder.properties(matching(table.vnnlib, folder), table.input_model)
        for network in plan.chosen(table):
            yield Group(network.shown, networks[network.shown], "", (None,), properties)
    elif isinstance(table, InstancesTable):
        by_network: dict[Path, list[Path]] = {}
        for instance in read_instances(folder / table.instances):
            by_network.setdefault(instance.network, []).append(instance.property)
        for name, (path, files) in zip(short_names(list(by_network)), by_network.items(), strict=True):
            own = NetworkFile(finder.file(str(path)))
            yield Group(name, own, "", (None,), finder.properties(files, table.input_model))
    elif isinstance(table, RlvTable):
        yield Group("", None, "", (None,), finder.properties(rlv_files(folder / table.rlv), table.input_model))


def _dataset(table: DatasetTable, finder: _Finder) -> _Dataset:
    file = finder.file(table.dataset)
    images = load_images(Path(file.path), None, None if table.labels is None else finder.folder / table.labels)
    count = len(images)
    rows: Sequence[int] = range(count)
    if isinstance(table.indices, str):
        try:
            rows = range(count)[slice(*(int(part) if part else None for part in table.indices.split(":")))]
        except ValueError as error:  # thousands of digits, or a step of 0
            raise InputError(f"indices = {table.indices[:60]!r} cannot be used: {error}") from None
    elif table.indices is not None:
        rows = table.indices
    if not rows or max(rows) >= count:
        raise InputError(f"{file.path} has {count} images, which indices = {table.indices!r} does not fit")
    images.check(table.clip, f"clip = {list(table.clip or ())}")
    return _Dataset(table, file, images.names, images.labels, rows)


def _with_state(source: Source, state: str) -> tuple[Entry, ...]:
    entries = (source[k] for k in range(len(source)))
    return tuple(
        replace(entry, place=replace(entry.place, state=state)) if isinstance(entry.place, PropertyPlace) else entry
        for entry in entries
    )
