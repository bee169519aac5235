"""What is known of a campaign, as plain data: readers of a store get these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rarely.questions.result import Estimate

State = Literal["waiting", "done", "failed"]


@dataclass(frozen=True)
class Record:
    """One problem of a campaign and what is known of it."""

    key: str  # stable id, 16 hex digits: hash of all that defines the problem and its estimator settings
    index: int  # place in the plan
    name: str  # what a person calls it, e.g. "net.onnx mnist.npz[3] linf 0.05 #2"
    network: str  # as written in the plan
    item: str  # property file, or dataset item ("mnist.npz[3]")
    label: str  # class name where the plan names classes, else the label number, else ""
    norm: str  # "inf", "2", "1" or ""
    radius: float | None
    replicate: int
    state: State
    attempts: int
    reason: str  # why it failed, "" otherwise
    estimate: Estimate | None  # without the witnesses' values


@dataclass(frozen=True)
class WitnessSet:
    """Some inputs that violate the property of one problem."""

    inputs: np.ndarray[Any, Any]  # (n, *event), at most 8 kept per problem
    scores: np.ndarray[Any, Any]  # (n,)
    original: np.ndarray[Any, Any] | None  # (*event): the dataset item or the centre of the region


@dataclass(frozen=True)
class Header:
    """What the campaign is."""

    name: str
    plan: str  # the TOML text (normalised) that would reproduce it
    digest: str  # hash of plan + inputs
    seed: int
    created: str  # ISO time, UTC
    versions: dict[str, str]  # rarely, torch, python, platform
    command: str  # how to run it again
