"""A gate for a classifier: one decision for each image under noise, and one for all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rarely.campaign.noise import Noise
from rarely.campaign.robustness import answers, pose
from rarely.core.errors import FormatError
from rarely.core.problem import Problem
from rarely.io.formats.images import Images
from rarely.questions.result import CONCLUDED_SCHEMA, plain
from rarely.questions.threshold import Decision, Ruling, certify


@dataclass(frozen=True)
class Entrant:
    """An image before the gate."""

    image: str
    label: int
    predicted: int  # without noise


@dataclass(frozen=True)
class Gate:
    """The ruling on p < p_max for every one of some problems, with the decision about each."""

    ruling: Ruling
    p_max: float
    confidence: float  # that the ruling on all of them is right; 1 for proofs
    sentence: str
    images: tuple[Entrant, ...]
    decisions: tuple[Decision, ...]  # one for each of them
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.ruling.value}: {self.sentence}"

    def to_json(self) -> str:
        """Everything but the witnesses' values."""
        content = {
            "schema": CONCLUDED_SCHEMA,
            **{name: getattr(self, name) for name in ("p_max", "confidence", "sentence", "provenance")},
            "ruling": self.ruling.value,
            "images": [asdict(one) for one in self.images],
            "decisions": [json.loads(decision.to_json()) for decision in self.decisions],
        }
        return json.dumps(plain(content), indent=2, allow_nan=False)

    @classmethod
    def from_data(cls, data: Any, source: str = "<json>") -> Gate:
        """What `to_json` wrote, read as JSON."""
        try:
            images = tuple(Entrant(str(i["image"]), int(i["label"]), int(i["predicted"])) for i in data["images"])
            decisions = tuple(Decision.from_data(one, source) for one in data["decisions"])
            made = cls(
                Ruling(data["ruling"]), float(data["p_max"]), float(data["confidence"]), str(data["sentence"]),
                images, decisions, dict(data["provenance"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(source, f"not the decisions of a gate written by rarely: {error!r}") from error
        if not decisions or len(decisions) != len(images):
            raise FormatError(source, f"{len(decisions)} decisions about {len(images)} images")
        return made


def entrants(network: Any, images: Images, noise: Noise, radius: float) -> list[tuple[Entrant, Problem]]:
    """The problem of every image. One that is misclassified without noise has one, too: a gate lets nothing pass."""
    predicted, labels = answers(network, images)
    return [
        (Entrant(name, int(label), int(answer)), pose(network, images, i, int(label), radius, noise))
        for i, (name, label, answer) in enumerate(zip(images.names, labels, predicted, strict=True))
    ]


def decide(problem: Problem, settings: Mapping[str, Any]) -> Decision:
    """As `certify`, with the settings of its command."""
    how = dict(settings)
    dtype = None if how["dtype"] is None else getattr(torch, how["dtype"])
    return certify(problem, how.pop("p_max"), how.pop("confidence"), **{**how, "dtype": dtype})


def decide_each(problems: Sequence[Problem], settings: Mapping[str, Any]) -> Iterator[Decision]:
    """A decision about each, one after the other. What one leaves of the time, the others have."""
    end = time.monotonic() + settings["timeout"]
    for number, problem in enumerate(problems):
        share = max(end - time.monotonic(), 0.0) / (len(problems) - number)
        yield decide(problem, {**settings, "timeout": share})


def together(images: Sequence[Entrant], decisions: Sequence[Decision]) -> Gate:
    """What the decisions come to.

    All are accepted wrongly only where one is that should not be: they have the confidence of each. That some one of n
    is rejected wrongly may be n times as probable as for one of them.
    """
    n, p_max = len(decisions), decisions[0].p_max
    counts = {ruling: [d for d in decisions if d.ruling is ruling] for ruling in Ruling}
    told = ", ".join(f"{len(some)} {ruling.value}" for ruling, some in counts.items() if some)
    proved = sum(d.confidence == 1 for d in decisions if d.ruling is not Ruling.UNDECIDED)
    by = f" ({proved} by proof)" if proved else ""

    def ruled(ruling: Ruling, confidence: float, sentence: str) -> Gate:
        made = decisions[0].provenance
        return Gate(ruling, p_max, confidence, sentence, tuple(images), tuple(decisions), made)

    if rejected := counts[Ruling.REJECTED]:
        proof = any(d.confidence == 1 for d in rejected)
        sure = 1.0 if proof else max(0.0, 1 - n * (1 - min(d.confidence for d in rejected)))
        return ruled(Ruling.REJECTED, sure, f"not p < {p_max:g} for all: of {n}, {told}{by}")
    sure = min(d.confidence for d in decisions)
    if counts[Ruling.UNDECIDED]:
        return ruled(Ruling.UNDECIDED, sure, f"of {n}, {told}{by}")
    error = (
        f"; were it not so for one, this would be said with a probability of at most {1 - sure:.3g}" if sure < 1 else ""
    )
    return ruled(Ruling.ACCEPTED, sure, f"p < {p_max:g} for each of {n}{by}{error}")
