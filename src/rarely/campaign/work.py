"""What a worker does with a chunk: build its problems, estimate them, and pack the answers."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rarely.campaign.built import state_of
from rarely.campaign.content import import_afresh, unchanged
from rarely.campaign.tasks import Chunk, ChunkAnswer, File, ImagePlace, NetworkFile, Solved, Task
from rarely.campaign.witnesses import WitnessSet, pack_witnesses
from rarely.core.errors import InputError, RarelyError
from rarely.core.execution import Execution
from rarely.core.problem import Problem
from rarely.core.properties import Misclassification
from rarely.inputs import LpBall
from rarely.io.formats.images import Images, load_images
from rarely.io.formats.specification import Specification
from rarely.io.formats.vnnlib import read_vnnlib
from rarely.io.imports import import_object
from rarely.io.networks import input_shape, load_network, normalised
from rarely.io.problems import load_problem, problem_from
from rarely.methods import Estimator
from rarely.questions.estimate import estimate
from rarely.questions.result import Estimate
from rarely.registry import make_estimator

PROOF_BOXES = 5000  # that `auto` may bound for a proof in few dimensions
_KEPT_WITNESSES = 8


def answer(chunk: Chunk) -> ChunkAnswer:
    """Solve a chunk, or say why not: a failing problem must not end the worker."""
    try:
        return ChunkAnswer(chunk, rehearse(chunk) if chunk.rehearsal else solve(chunk))
    except RarelyError as error:
        return ChunkAnswer(chunk, failure=str(error), refused=True)
    except Exception as error:  # a user's network may raise anything
        return ChunkAnswer(chunk, failure=f"{type(error).__name__}: {error}")


def solve(chunk: Chunk) -> tuple[Solved, ...]:
    # One thread: sums of floats depend on how many threads share them, and several workers fill the cores.
    torch.set_num_threads(1)
    method = chunk.method
    estimator = estimator_of(method.estimator)
    problems = [build_problem(task) for task in chunk.tasks]
    found = estimate(
        problems, estimator, seed=chunk.seed, confidence=method.confidence, max_evaluations=method.calls,
        execution=Execution(device=method.device, threads=1),
    )  # fmt: skip
    return tuple(_pack(*three) for three in zip(found, problems, chunk.tasks, strict=True))


def rehearse(chunk: Chunk) -> tuple[Solved, ...]:
    """Build the problems of a chunk, and find its device."""
    Execution(device=chunk.method.device).resolve()
    for task in chunk.tasks:
        build_problem(task)
    return ()


def estimator_of(table: dict[str, Any]) -> Estimator:
    """The estimator of a plan. `auto` limits its proofs by work: what a clock cut off could not be repeated."""
    settings = {"proof_boxes": PROOF_BOXES, **table} if table["method"] == "auto" else dict(table)
    return make_estimator(settings.pop("method"), settings.pop("kernel", None), settings)


def build_problem(task: Task) -> Problem:
    place = task.place
    if isinstance(place, ImagePlace):
        assert task.network_file is not None
        assert task.radius is not None
        network = _network(task.network_file)
        ball = LpBall(_image(network, place), task.radius, task.norm, place.clip)
        return Problem(network, Misclassification(place.label), ball, task.name)
    if place.model is not None:
        _input_model(place.model, place.state)
    if task.network_file is None:
        return load_problem(unchanged(place.file), input_model=place.input_model, name=task.name)
    network, specification = _network(task.network_file), _specification(place.file)
    return problem_from(network, specification, input_model=place.input_model, name=task.name)


@lru_cache(maxsize=8)
def _network(wanted: NetworkFile) -> Any:
    network = made_network(wanted)
    if wanted.state:
        _check_state(network, wanted.file.path, wanted.state)
    return normalised(network, wanted.mean, wanted.std)


def made_network(wanted: NetworkFile) -> Any:
    """The network of a plan, if it is still made of what it was when the plan was read."""
    pieces = [file for file in (wanted.file, wanted.architecture) if file is not None]
    for file in pieces:
        unchanged(file)
        import_afresh(file)
    architecture = None if wanted.architecture is None else wanted.architecture.path
    network = load_network(wanted.file.path, architecture=architecture, trust_pickle=wanted.trust_pickle)
    for file in pieces:  # while it was loaded, too
        unchanged(file)
    return network


def made_input_model(model: File) -> Any:
    unchanged(model)
    import_afresh(model)
    return import_object(model.path)


@lru_cache(maxsize=8)
def _input_model(model: File, state: str) -> None:
    """Check a Python input model once in each process; problems import it themselves."""
    made = made_input_model(model)
    if state:
        _check_state(made, model.path, state)


_checked: dict[str, tuple[Any, str]] = {}  # objects that were as they should be, which use may have changed since


def _check_state(made: Any, path: str, state: str) -> None:
    before, known = _checked.get(path, (None, ""))
    if before is made and known == state:
        return
    if state_of(made, path)[0] != state:
        raise InputError(
            f"{path} holds other numbers each time it is made, or where it runs (weights drawn at random, or read from "
            "a file that changed or differs there); draw them with a fixed seed (torch.manual_seed) or save them in a "
            "file, and run the campaign again with --new"
        )
    _checked[path] = (made, state)


@lru_cache(maxsize=8)
def _specification(file: File) -> Specification:
    return read_vnnlib(unchanged(file))


@lru_cache(maxsize=2)
def _images(dataset: File, shape: tuple[int, ...] | None) -> Images:
    return load_images(Path(unchanged(dataset)), shape, None)


def _image(network: Any, place: ImagePlace) -> np.ndarray[Any, Any]:
    return _images(place.dataset, input_shape(network))[place.row]


def _pack(answered: Estimate, problem: Problem, task: Task) -> Solved:
    witnesses = None
    if len(answered.witnesses):
        place, center = task.place, problem.inputs.center
        original = _image(problem.network, place) if isinstance(place, ImagePlace) else center.numpy()
        inputs, scores = (
            part[:_KEPT_WITNESSES].numpy() for part in (answered.witnesses.inputs, answered.witnesses.scores)
        )
        witnesses = pack_witnesses(WitnessSet(inputs, scores, original))
    text = json.dumps(json.loads(answered.to_json()), separators=(",", ":"))
    return Solved(
        text, answered.outcome.value, answered.log_prob, answered.log_prob_std, answered.calls, witnesses
    )  # fmt: skip
