"""What a command was asked, as plain data: enough to ask it again, with the hashes of the files that it was about."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rarely.campaign.content import is_python, pieces, sha256
from rarely.campaign.gate import Entrant, entrants
from rarely.campaign.noise import Noise
from rarely.core.errors import FormatError, InputError
from rarely.core.problem import Problem
from rarely.io.files import exists, reading
from rarely.io.formats.images import Images, load_images
from rarely.io.networks import input_shape, load_network, normalised
from rarely.io.problems import load_problem
from rarely.registry import make_box_law

_LISTED = 50  # files of one role that are told apart; a folder of pictures may have many more
_MADE = ("architecture", "input_model")  # roles that only a Python object has
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Pictures:
    """Images, and what happens to them."""

    inputs: str
    radii: tuple[float, ...]
    noise: str  # the name of a Noise
    clip: tuple[float, float] | None = None
    labels: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    __pydantic_config__ = _STRICT

    @property
    def law(self) -> Noise:
        return Noise(self.noise, self.clip)

    def opened(self, network: Any) -> tuple[Any, Images]:
        """The network with its normalisation inside, and the images, which are fit for what is to happen to them."""
        inside = normalised(network, self.mean, self.std)
        images = load_images(Path(self.inputs), input_shape(inside), None if self.labels is None else Path(self.labels))
        self.law.check(images)
        return inside, images


@dataclass(frozen=True)
class Asked:
    """A question about one network: of a property file, or of images."""

    question: Literal["estimate", "certify", "robustness"]
    network: str
    property: str | None = None
    images: Pictures | None = None
    input_model: str | None = None
    architecture: str | None = None
    trust_pickle: bool = False
    name: str = ""
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)  # as the command has them
    __pydantic_config__ = _STRICT

    @classmethod
    def from_data(cls, data: Any, source: str) -> Asked:
        """What `data` of another said."""
        try:
            return TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise FormatError(source, f"what was asked cannot be read: {where}: {first['msg']}") from error

    def data(self) -> dict[str, Any]:
        """As JSON may hold it; what was not said is left away."""
        said: dict[str, Any] = _said(asdict(self))
        return said

    def problem(self) -> Problem:
        """That of a property file."""
        return load_problem(
            self.network, self.property, input_model=self.input_model, architecture=self.architecture,
            trust_pickle=self.trust_pickle, name=self.name,
        )  # fmt: skip

    def opened(self) -> tuple[Any, Images]:
        """The network and the images."""
        assert self.images is not None
        network = load_network(self.network, architecture=self.architecture, trust_pickle=self.trust_pickle)
        return self.images.opened(network)

    def entrants(self) -> list[tuple[Entrant, Problem]]:
        """A problem of each image, at the one radius of a gate."""
        assert self.images is not None
        network, images = self.opened()
        return entrants(network, images, self.images.law, self.images.radii[0])

    def named(self) -> Iterator[tuple[str, str]]:
        """What each of the files and Python objects is for, and its name."""
        yield "network", self.network
        for role in ("property", "architecture"):
            if getattr(self, role) is not None:
                yield role, getattr(self, role)
        if self.input_model is not None and _is_object(self.input_model):
            yield "input_model", self.input_model
        if self.images is not None:
            yield "inputs", self.images.inputs
            if self.images.labels is not None:
                yield "labels", self.images.labels

    def code(self) -> list[str]:
        """What of it would run code that somebody else may have written."""
        objects = [name for role, name in self.named() if role in _MADE or is_python(name)]
        return [*objects, *([self.network] if self.trust_pickle else [])]

    def moved(self, folders: Sequence[Path]) -> Asked:
        """The same with files that are not where they were taken from the first of some folders that has them."""
        names: dict[str, Any] = {role: _moved(name, folders) for role, name in self.named()}
        images = self.images
        if images is not None:
            images = replace(images, inputs=names.pop("inputs"), labels=names.pop("labels", None))
        return replace(self, images=images, **names)


def seen(asked: Asked) -> dict[str, Any]:
    """The files behind a question with their hashes, and what no hash covers."""
    files, packages, uncovered = [], dict[str, str](), list[str]()
    for role, name in asked.named():
        behind = pieces(name)
        with reading(name):
            found: list[dict[str, Any]] = [
                {"role": role, "name": part, "sha256": sha256(file), "bytes": file.stat().st_size}
                for part, file in behind.files
            ]
        files += found[:_LISTED]
        if rest := found[_LISTED:]:
            lines = "".join(f"{one['sha256']}  {one['name']}\n" for one in rest)
            whole = hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()
            size = sum(one["bytes"] for one in rest)
            files.append({"role": role, "name": f"{len(rest)} more", "sha256": whole, "bytes": size})
        packages |= dict(behind.versions)
        uncovered += behind.uncovered
    if asked.trust_pickle:
        uncovered.append(f"the Python code that {asked.network} needs, if it is a pickle")
    told = {"files": files, "packages": packages, "uncovered": list(dict.fromkeys(uncovered))}
    return {key: value for key, value in told.items() if value}


def recorded(asked: Asked, files: dict[str, Any], command: str, problem: Problem | None) -> dict[str, Any]:
    """For the provenance of an answer: what was asked, of which files, in words, when and where."""
    return {
        "asked": asked.data(),
        **({} if problem is None else {"words": problem.in_words()}),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        **files,
    }


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The files of two answers of `seen` that differ, in words."""
    old, new = ({(one["role"], one["name"]): one["sha256"] for one in side.get("files", ())} for side in (before, now))
    return [
        f"{role} {name}" for role, name in dict.fromkeys((*old, *new)) if old.get((role, name)) != new.get((role, name))
    ]


def check_unchanged(before: dict[str, Any], asked: Asked) -> None:
    """An InputError where a file is not any more what it was a moment ago."""
    if before and (differ := changed(before, seen(asked))):
        raise InputError(f"{', '.join(differ[:3])} changed while it was loaded; run the command again")


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(one) for key, one in value.items() if one is not None and one != "" and one != {}}
    return value


def _is_object(input_model: str) -> bool:
    return ":" in input_model and make_box_law(input_model) is None


def _moved(name: str, folders: Sequence[Path]) -> str:
    file, colon, attribute = name, "", ""
    if not exists(name) and ":" in name:
        file, colon, attribute = name.rpartition(":")
    if exists(file):
        return name
    for folder in folders:
        for place in (folder / file, folder / Path(file).name):
            if exists(place):
                return f"{place}{colon}{attribute}"
    return name
