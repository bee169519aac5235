"""From a plan to chunks of tasks, streamed: a million problems are never in memory at once."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rarely.campaign.plan import DatasetTable, EstimatorBase, InstancesTable, NetworkTable, Plan, RlvTable, VnnlibTable
from rarely.campaign.tasks import (
    Chunk,
    File,
    ImagePlace,
    Method,
    NetworkFile,
    PropertyPlace,
    Task,
    digest,
    locate,
    make_chunk,
)
from rarely.core.errors import FormatError, InputError
from rarely.io.formats.images import load_images
from rarely.io.formats.vnncomp import read_instances
from rarely.io.problems import rlv_files


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
    names: tuple[str, ...]
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

    @property
    def token(self) -> str:
        """Tells it from all others, by content and not by path. The names of `NetworkFile` and its fields are in it."""
        content = self.network_file and replace(self.network_file, file=File("", self.network_file.file.digest))
        return digest([self.network, repr(content), self.norm])


@dataclass(frozen=True)
class Expansion:
    """A plan with its files found and hashed."""

    plan: Plan
    groups: tuple[Group, ...]
    fingerprint: dict[str, str]  # all that the numbers depend on, in words

    def __len__(self) -> int:
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
            method = Method(settings.given(), general.confidence, self.plan.budget.calls, device)
            for group in self.groups:
                size = self.size(group)
                for start in range(0, size, general.batch):
                    stop = min(start + general.batch, size)
                    tasks = tuple(self._tasks(settings, group, first + start, range(start, stop)))
                    yield make_chunk(number, general.seed, method, tasks)
                    number += 1
                first += size

    def samples(self) -> Iterator[tuple[Task, Task]]:
        """The first and the last task of each source, on its first network."""
        settings = self.plan.settings()[0]
        for group in {id(group.source): group for group in reversed(self.groups)}.values():
            (first,), (last,) = (self._tasks(settings, group, 0, range(i, i + 1)) for i in (0, self.size(group) - 1))
            yield first, last

    def _tasks(self, settings: EstimatorBase, group: Group, first: int, numbers: range) -> Iterator[Task]:
        """Some tasks of a group, by their number in it; the first of them has the place `first` in the plan."""
        general, replicates = self.plan.campaign, self.plan.campaign.replicates
        token = digest([group.token, settings.shown, repr(general.confidence), repr(self.plan.budget.calls)])
        suffix = settings.shown if self.plan.matrix else ""
        for index, number in enumerate(numbers, first):
            rest, replicate = divmod(number, replicates)
            row, which = divmod(rest, len(group.radii))
            entry, radius = group.source[row], group.radii[which]
            words = [group.network, entry.item, "" if radius is None else f"l{group.norm} {radius:g}", suffix]
            words += [f"#{replicate}"] if replicates > 1 else []
            yield Task(
                index, digest([token, entry.token, repr(radius), str(replicate)]), " ".join(filter(None, words)),
                group.network, entry.item, entry.label, group.norm, radius, replicate, group.network_file, entry.place,
            )  # fmt: skip


def expand_plan(plan: Plan, folder: Path) -> Expansion:
    """Find, read and hash what the plan names."""
    found = {f"campaign.{key}": str(value) for key, value in plan.campaign if key != "name"}
    found["estimator"] = "; ".join(settings.shown for settings in plan.settings())
    found["budget.calls"] = str(plan.budget.calls)
    networks = {table.shown: _network(table, folder) for table in plan.networks}
    groups: list[Group] = []
    for i, table in enumerate(plan.problems):
        new = list(_groups(table, plan, folder, networks))
        for group in new:
            if group.network:
                found[f"network {group.network}"] = group.token
        sources = {id(group.source): group.source for group in new}.values()
        tokens = (source[k].token for source in sources for k in range(len(source)))
        found[f"problems[{i}]"] = digest([table.model_dump_json(), digest(tokens)])
        groups += new
    return Expansion(plan, tuple(groups), found)


def _network(table: NetworkTable, folder: Path) -> NetworkFile:
    return NetworkFile(locate(table.path, folder), table.architecture, table.trust_pickle, table.mean, table.std)


def _groups(table: Any, plan: Plan, folder: Path, networks: dict[str, NetworkFile]) -> Iterator[Group]:
    if isinstance(table, DatasetTable):
        source = _dataset(table, folder)
        for network in plan.chosen(table):
            for norm in table.norms:
                yield Group(network.shown, networks[network.shown], norm, table.radii, source)
    elif isinstance(table, VnnlibTable):
        properties = _properties(_matches(table.vnnlib, folder), table.input_model)
        for network in plan.chosen(table):
            yield Group(network.shown, networks[network.shown], "", (None,), properties)
    elif isinstance(table, InstancesTable):
        by_network: dict[Path, list[Path]] = {}
        for instance in read_instances(folder / table.instances):
            by_network.setdefault(instance.network, []).append(instance.property)
        for path, files in by_network.items():
            own = NetworkFile(locate(str(path), folder))
            yield Group(path.name, own, "", (None,), _properties(files, table.input_model))
    elif isinstance(table, RlvTable):
        yield Group("", None, "", (None,), _properties(rlv_files(folder / table.rlv), table.input_model))


def _dataset(table: DatasetTable, folder: Path) -> _Dataset:
    file = locate(table.dataset, folder)
    images = load_images(Path(file.path), None, None if table.labels is None else folder / table.labels)
    count = len(images.inputs)
    rows: Sequence[int] = range(count)
    if isinstance(table.indices, str):
        rows = range(count)[slice(*(int(part) if part else None for part in table.indices.split(":")))]
    elif table.indices is not None:
        rows = table.indices
    if not rows or max(rows) >= count:
        raise InputError(f"{file.path} has {count} images, which indices = {table.indices!r} does not fit")
    if table.clip is not None:
        images.check_range(Path(file.path), table.clip, f"clip = {list(table.clip)}")
    return _Dataset(table, file, images.names, images.labels, rows)


def _matches(patterns: Sequence[str], folder: Path) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, root_dir=folder, recursive=True))
        if not matches:
            raise FormatError(folder / pattern, "there is no such file")
        found.update((folder / match, None) for match in matches)
    return list(found)


def _properties(files: Sequence[Path], input_model: str | None) -> tuple[Entry, ...]:
    """Files by their name, or by their path where names repeat."""
    items = [file.name for file in files]
    if len(set(items)) < len(items):
        items = [str(file) for file in files]
    found = [locate(str(file), Path()) for file in files]
    return tuple(
        Entry(item, "", f"{file.digest} {input_model} {item}", PropertyPlace(file, input_model))
        for item, file in zip(items, found, strict=True)
    )
