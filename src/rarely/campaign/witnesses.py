"""Inputs that violate, as a store keeps them: one small archive a problem."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from rarely.core.witnesses import packed

_OPTIONAL = "original", "outputs"
_LARGEST = 1 << 30  # bytes that the witnesses of one problem may ask for


@dataclass(frozen=True)
class WitnessSet:
    """Some inputs that violate the property of one problem."""

    inputs: np.ndarray[Any, Any]  # (n, *event), at most 8 kept per problem
    scores: np.ndarray[Any, Any]  # (n,)
    original: np.ndarray[Any, Any] | None  # (*event): the dataset item or the centre of the region
    kinds: tuple[str, ...] = ()  # how each came about; of stores of version 0.1 that is not known
    outputs: np.ndarray[Any, Any] | None = None  # (n, *out) what the network answers to each, where that is small


def pack_witnesses(found: WitnessSet) -> bytes:
    arrays = {"inputs": found.inputs, "scores": found.scores}
    arrays |= {name: value for name in _OPTIONAL if (value := getattr(found, name)) is not None}
    if found.kinds:
        arrays["kinds"] = np.array(found.kinds, dtype=str)
    return packed(arrays)


def unpack_witnesses(content: bytes) -> WitnessSet:
    """What `pack_witnesses` made. What it would take is known before it is taken."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > _LARGEST:
            raise ValueError(f"witnesses of more than {_LARGEST >> 20} MB")
        for member in archive.infolist():
            with archive.open(member) as inside:
                shape, _, kind = _HEADS[np.lib.format.read_magic(inside)](inside)
                if kind.hasobject or int(np.prod(shape, dtype=object)) * kind.itemsize > member.file_size:
                    raise ValueError(f"{member.filename} claims the shape {shape}")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        inputs, scores, kinds = stored["inputs"], stored["scores"], tuple(stored.get("kinds", np.array([])).tolist())
        original, outputs = (stored.get(name) for name in _OPTIONAL)
    if scores.shape != inputs.shape[:1] or (original is not None and original.size != np.prod(inputs.shape[1:])):
        raise ValueError(f"inputs {inputs.shape}, scores {scores.shape} and the original do not fit together")
    if len(kinds) not in (0, len(scores)) or (outputs is not None and outputs.shape[:1] != scores.shape):
        raise ValueError(f"{len(scores)} scores, {len(kinds)} kinds and what the network answers do not fit together")
    return WitnessSet(inputs, scores, original, tuple(map(str, kinds)), outputs)


_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
