"""An answer laid out as an argument, in the manner of the Goal Structuring Notation.

What is claimed, why it is to be believed, what that takes for granted, and what is left open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rarely.campaign.again import Answer
from rarely.campaign.gate import Gate
from rarely.campaign.noise import noise_in_words
from rarely.core.evidence import Bracket, Draws, Evidence, Found, Levels, Number, Searched, Stratum
from rarely.questions.result import Estimate, Outcome, scientific
from rarely.questions.threshold import Decision, Ruling

_MOST = 40  # images of a gate that are drawn one by one, the worst first
_SHORT = {"goal": "G", "strategy": "S", "solution": "Sn", "context": "C", "assumption": "A"}
_ORDER = (Ruling.REJECTED, Ruling.UNDECIDED, Ruling.ACCEPTED)
_IN_NETWORK = (
    "A proof holds for the network as it runs: its sums in any order, each rounding charged. It takes the processor's "
    "functions to be as accurate as the documentation says."
)
_IN_REALS = "A proof holds in real arithmetic; rounding in the network as it runs is not covered."
_SEEDED = "Pseudo-random numbers behave as random ones, and the seed was not chosen for its answer."
OPEN = (
    "Whether the input model describes what the network meets in operation. Every probability here is about that model "
    "and says nothing about inputs that it does not draw.",
    "Whether the property says what the requirement means, and whether its labels and limits are right.",
    "The network in another form than in this file: quantised, compiled, on other hardware, with other preprocessing.",
    "What stands around the network: sensors, preprocessing, monitors, the system that acts on its outputs.",
    "How the network was trained, on which data, and whether development and this verification were independent.",
    "The tool itself: rarely was tested by its authors, and is not qualified for any safety standard.",
)


@dataclass(frozen=True)
class Node:
    """One element of the argument."""

    kind: str  # a key of _SHORT
    text: str
    beside: tuple[Node, ...] = ()  # contexts and assumptions
    below: tuple[Node, ...] = ()  # what supports it
    standing: str = ""  # of a goal: supported, refuted, undecided, not developed
    name: str = ""  # as in G1


def _numbered(node: Node, counts: Counter[str]) -> Node:
    """The same with names, from the top down."""
    counts[node.kind] += 1
    name = f"{_SHORT[node.kind]}{counts[node.kind]}"
    beside, below = (tuple(_numbered(one, counts) for one in some) for some in (node.beside, node.below))
    return replace(node, name=name, beside=beside, below=below)


def claim(answer: Answer) -> str:
    """What the answer says of the network, in a sentence."""
    who, what = _who(answer)
    if isinstance(answer, Gate):
        return f"For each of {len(answer.decisions)} images, {who} {what} with a probability below {answer.p_max:g}"
    if isinstance(answer, Decision):
        return f"{who} {what} with a probability below {answer.p_max:g}"
    if answer.outcome is Outcome.PROVED_SAFE:
        return f"{who} never {what}"
    sure = f"{answer.interval.confidence:.4g}"
    if answer.outcome is Outcome.VIOLATED:
        low, high = scientific(answer.interval.low), scientific(answer.interval.high)
        return f"{who} {what} with a probability between {low} and {high}, at confidence {sure}"
    return f"{who} {what} with a probability of at most {scientific(answer.upper_bound)}, at confidence {sure}"


def standing(answer: Answer) -> str:
    """Whether the claim stands."""
    if isinstance(answer, Estimate):
        return "supported" if answer.outcome.trusted else "not to be trusted"
    told = {Ruling.ACCEPTED: "supported", Ruling.REJECTED: "refuted", Ruling.UNDECIDED: "undecided"}
    return told[answer.ruling]


def evidence_of(answer: Answer) -> list[tuple[str, Evidence]]:
    """Every record with what it is about, those of components one by one."""
    if isinstance(answer, Gate):
        return [(d.name, record) for d in answer.decisions for record in _flat(d.evidence)]
    return [("", record) for record in _flat(answer.evidence)]


def assumptions(answer: Answer) -> list[str]:
    """What is taken for granted, each once."""
    records = [record for _, record in evidence_of(answer)]
    proofs = [record for record in records if isinstance(record, Bracket)]
    told = [f"{record.method}: {record.assumes}" for record in records if isinstance(record, Number) and record.assumes]
    told += [
        f"{r.method}: the populations lost no part of the violating region" for r in records if isinstance(r, Levels)
    ]
    if any(proof.arithmetic != "real" for proof in proofs):
        told.append(_IN_NETWORK)
    if any(proof.arithmetic == "real" for proof in proofs):
        told.append(_IN_REALS)
    if any(isinstance(record, Draws | Number | Levels) for record in records):
        told.append(_SEEDED)
    return list(dict.fromkeys(told))


def argument(answer: Answer) -> Node:
    """The claim with all that supports it."""
    words, files = answer.provenance.get("words"), answer.provenance.get("files", ())
    beside = []
    if isinstance(words, dict):
        which = " of the first image" if isinstance(answer, Gate) else ""
        told = [role for role in ("inputs", "violation") if role in words]
        beside = [Node("context", f"{role}{which}: {words[role]}") for role in told]
    if isinstance(files, list) and files:
        known = [one for one in files if isinstance(one, dict)]
        marks = ", ".join(f"{one.get('name')} ({str(one.get('sha256'))[:12]}…)" for one in known[:4])
        beside.append(Node("context", f"files, by sha256: {marks}{' and more' * (len(files) > 4)}"))
    strategy = _over_images(answer) if isinstance(answer, Gate) else _by_kind(answer)
    around = "The model of inputs, the property and the network's surroundings are as in operation."
    left = Node("goal", around, standing="not developed")
    top = Node("goal", f"{claim(answer)}.", tuple(beside), (strategy, left), standing(answer))
    return _numbered(top, Counter())


def _by_kind(answer: Estimate | Decision) -> Node:
    """One branch for what is proved, one for what statistics say, one for violations, one for searches."""
    records = _flat(answer.evidence)
    kinds: tuple[tuple[str, tuple[type, ...]], ...] = (
        ("Bounds on the network prove where the probability lies.", (Bracket,)),
        ("Inputs drawn at random say how probable a violation is, with a stated error.", (Draws, Number, Levels)),
        ("Violations are real: each was run again, alone, in the network's own precision.", (Found,)),
        ("Violations were looked for elsewhere, and answers were checked against each other.", (Searched,)),
    )
    goals = []
    for text, kind in kinds:
        some = [record for record in records if isinstance(record, kind)]
        if not some:
            continue
        taken = dict.fromkeys(record.assumes for record in some if isinstance(record, Number) and record.assumes)
        beside, below = (
            (Node("assumption", told) for told in taken),
            (Node("solution", _told(record)) for record in some),
        )
        goals.append(Node("goal", text, tuple(beside), tuple(below), _doubted(some)))
    how = answer.sentence if isinstance(answer, Decision) else f"{answer.sentence} {_by(answer)}".strip()
    return Node("strategy", f"By the strongest evidence that nothing contradicts. {how}", (), tuple(goals))


def _over_images(gate: Gate) -> Node:
    ordered = sorted(gate.decisions, key=lambda one: _ORDER.index(one.ruling))
    goals = []
    for one in ordered[:_MOST]:
        why = Node("solution", f"{one.sentence}; {one.calls:,} calls")
        goals.append(Node("goal", f"{one.name}: below {gate.p_max:g}", (), (why,), standing(one)))
    if more := ordered[_MOST:]:
        counts = Counter(one.ruling for one in more)
        rulings = ", ".join(f"{counts[ruling]} {ruling.value}" for ruling in _ORDER if counts[ruling])
        goals.append(Node("goal", f"{len(more)} more images: {rulings}", standing=standing(more[0])))
    return Node("strategy", f"Over each image, and then over all of them. {gate.sentence}", (), tuple(goals))


def _by(answer: Estimate) -> str:
    return f"The number is that of {answer.method}." if answer.method else ""


def _told(record: Evidence) -> str:
    cost = f"; {record.calls:,} calls" if record.calls else ""
    return f"{record.method}: {record.sentence}{cost}"


def _doubted(records: Sequence[Evidence]) -> str:
    return "doubtful" if any(getattr(record, "doubt", "") for record in records) else ""


def _flat(evidence: Sequence[Evidence]) -> list[Evidence]:
    found: list[Evidence] = []
    for record in evidence:
        found += _flat(record.evidence) if isinstance(record, Stratum) else [record]
    return found


def _who(answer: Answer) -> tuple[str, str]:
    """The network and what it does when it fails, as the files are called."""
    asked = answer.provenance.get("asked")
    asked = asked if isinstance(asked, dict) else {}
    network = str(asked.get("network", "") or "the network").replace("\\", "/").rpartition("/")[2]
    images = asked.get("images")
    if isinstance(images, dict):
        return network, f"answers wrongly under {_noise(images)}"
    prop = str(asked.get("property", "") or "").replace("\\", "/").rpartition("/")[2]
    name = "" if isinstance(answer, Gate) else answer.name
    return network, f"violates {prop or name or 'its property'}"


def _noise(images: dict[str, Any]) -> str:
    try:
        return noise_in_words(str(images["noise"]), float(images["radii"][0]))
    except (KeyError, TypeError, ValueError, IndexError):  # of a file that somebody else wrote
        return "noise"
