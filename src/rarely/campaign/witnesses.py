"""Inputs that violate, as a store keeps them: one small archive a problem."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from rarely.core.witnesses import packed

_LARGEST = 1 << 30  # bytes that the witnesses of one problem may ask for


@dataclass(frozen=True)
class WitnessSet:
    """Some inputs that violate the property of one problem."""

    inputs: np.ndarray[Any, Any]  # (n, *event), at most 8 kept per problem
    scores: np.ndarray[Any, Any]  # (n,)
    original: np.ndarray[Any, Any] | None  # (*event): the dataset item or the centre of the region


def pack_witnesses(found: WitnessSet) -> bytes:
    arrays = {"inputs": found.inputs, "scores": found.scores}
    if found.original is not None:
        arrays["original"] = found.original
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
        inputs, scores, original = stored["inputs"], stored["scores"], stored.get("original")
    if scores.shape != inputs.shape[:1] or (original is not None and original.size != np.prod(inputs.shape[1:])):
        raise ValueError(f"inputs {inputs.shape}, scores {scores.shape} and the original do not fit together")
    return WitnessSet(inputs, scores, original)


_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
