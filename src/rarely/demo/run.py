"""The demo itself: its problems, a proof where nothing violates, what it means in words, and the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rarely.core.problem import Problem
from rarely.core.properties import Misclassification
from rarely.demo import DemoProblem, images, manifest
from rarely.display.figures import plot_levels, plot_probabilities
from rarely.inputs import LpBall
from rarely.io.files import save_figure
from rarely.io.networks import load_network
from rarely.io.problems import load_problem
from rarely.questions.result import Estimate
from rarely.report.figures import plot_witnesses


def problems() -> tuple[list[DemoProblem], list[Problem]]:
    """The questions of the demo and the problems they pose; those about pictures share one network."""
    questions = manifest()
    pictures, labels, _ = images()
    networks = {entry.network: load_network(entry.network) for entry in questions if entry.image is not None}
    posed = []
    for entry in questions:
        if entry.image is None:
            posed.append(load_problem(entry.network, entry.property, name=entry.name))
            continue
        assert entry.eps is not None
        noise = LpBall(pictures[entry.image], entry.eps, clip=entry.clip)
        label = Misclassification(int(labels[entry.image]))
        posed.append(Problem(networks[entry.network], label, noise, entry.name))
    return questions, posed


def write(questions: Sequence[DemoProblem], estimates: Sequence[Estimate], folder: Path) -> list[Path]:
    """The results as JSON and as figures; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    content = [json.loads(estimate.to_json()) for estimate in estimates]
    results.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    figures: dict[str, Any] = {"probabilities": plot_probabilities(estimates)}
    if any(estimate.levels for estimate in estimates):
        figures["levels"] = plot_levels(estimates)
    found = [(q, e) for q, e in zip(questions, estimates, strict=True) if q.image is not None and len(e.witnesses)]
    if found:
        figures["witnesses"] = _witness_figure(found)
    written = [results]
    for name, figure in figures.items():
        written.append(folder / f"{name}.svg")
        save_figure(figure, written[-1])
    return written


def _witness_figure(found: Sequence[tuple[DemoProblem, Estimate]]) -> Any:
    pictures, labels, names = images()
    network = load_network(found[0][0].network)
    witnesses = torch.stack([estimate.witnesses.inputs[0] for _, estimate in found])
    with torch.no_grad():
        answers = network(witnesses).argmax(1).tolist()
    chosen = [question.image for question, _ in found if question.image is not None]
    titles = [
        (names[int(labels[image])], f"seen as {names[answer]}") for image, answer in zip(chosen, answers, strict=True)
    ]
    return plot_witnesses(np.asarray(pictures[chosen]), witnesses.numpy(), titles)
