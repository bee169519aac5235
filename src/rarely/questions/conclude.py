"""From evidence to belief: the one place where it is decided who is believed.

A proof is believed, and bounds every number. Independent inputs assume nothing: they bound p whatever else is said.
Methods that see only what they look at (lines, proposals) are believed when splitting or counting, which look
elsewhere, say the same. Splitting may stand alone when its populations mix, arrive and agree with each other. A piece
that contradicts what would be believed ends in "do not trust", with both named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rarely.core.evidence import (
    COUNTS,
    REAL,
    SPLITTING,
    STRATA,
    TILTING,
    Bracket,
    Draws,
    Evidence,
    Found,
    Levels,
    Number,
    Searched,
    Stratum,
    pooled,
)
from rarely.questions.result import Outcome
from rarely.stats.statistic import Interval, Sum, log_sum

SURE = 0.999  # confidence at which a number and independent inputs, or a proof, must be compatible
_BELOW, _BELOW_MORE = 3.0, 0.05  # standard deviations, and nats, by which another method may exceed a number
_NEGLIGIBLE = 0.02  # share of p that an unknown component may hold
_WIDE, _WIDE_SHARE = 3.0, 0.25  # standard deviation of log p, and share of it, from which a number has no digits
# Standard deviation of log p, and share of it, from which a referee that says more than a number does not confirm it:
# rare islands may have met what the number misses. Lines have been held against each of its violations
# (methods/unseen.py), neighbours stand at them, and tilted populations have climbed from all of p(x) themselves, so
# that it may be less sure of how many there are.
_WEAK = {"weights": (0.3, 0.025), "lines": (1.0, 0.08), "neighbours": (1.0, 0.08), TILTING: (1.0, 0.08)}
# Directions searched for from far out, and populations that have climbed from all of p(x): where a referee is not sure,
# they confirm each other.
_UNLIKE = {"lines", TILTING}
_EXACT = 0.1  # standard deviation up to which a count, which assumes nothing, goes before any other number
_FLAT = "the score says no more than whether an input violates: nothing can be climbed; return a margin instead"
_NOTHING = Bracket(-math.inf, 0.0, "nothing")
_ALONE = "no independent method has confirmed this number, which Auto does"


@dataclass(frozen=True)
class Belief:
    """What follows from the evidence about one problem."""

    outcome: Outcome
    number: Number | None  # believed where the outcome is VIOLATED; else a guess
    draws: Draws
    bracket: Bracket
    levels: Levels | None
    notes: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        return self.outcome is Outcome.VIOLATED or self.outcome is Outcome.PROVED_SAFE

    def upper(self, confidence: float) -> float:
        """One-sided bound on log p. Below the floor it supposes that no region was missed."""
        if self.outcome is Outcome.VIOLATED and self.number is not None:
            bound = self.number.statistic.upper(confidence)
        elif self.outcome is Outcome.BELOW_FLOOR and self.levels is not None:
            bound = self.levels.left.upper(confidence)
        else:
            bound = self.draws.statistic.upper(confidence)
        return min(bound, self.bracket.log_upper)

    def interval(self, confidence: float) -> Interval:
        """Of the number that is believed; else what independent inputs and proofs leave."""
        proved = self.bracket
        if self.outcome is Outcome.VIOLATED and self.number is not None:
            own = self.number.statistic.interval(confidence)
        elif self.outcome is Outcome.BELOW_FLOOR:
            own = Interval(confidence, -math.inf, self.upper(confidence))
        else:
            own = self.draws.statistic.interval(confidence)
        high = min(own.high, proved.log_upper)
        return Interval(confidence, min(high, max(own.low, proved.log_lower)), high)

    def guess(self, interval: Interval) -> tuple[float, float]:
        """log p and its standard deviation: of the number, where it lies in the interval."""
        if self.number is None or self.outcome is Outcome.PROVED_SAFE:
            return -math.inf, 0.0 if self.outcome is Outcome.PROVED_SAFE else math.inf
        if self.outcome is Outcome.VIOLATED:  # a proof may cut the interval short of the number
            return min(max(self.number.log_prob, interval.low), interval.high), self.number.std
        return (self.number.log_prob, self.number.std) if self.number.log_prob in interval else (-math.inf, math.inf)


def believe(evidence: Sequence[Evidence], *, cut: bool = False) -> Belief:
    """Weigh the evidence about one problem; `cut` says that nothing follows because calls or seconds ran out."""
    evidence = [*evidence, *_together(evidence)]
    draws = pooled(evidence)
    levels = next((e for e in reversed(evidence) if isinstance(e, Levels)), None)
    witnessed = draws.hits > 0 or any(isinstance(e, Found) and len(e.witnesses) for e in evidence)
    # What holds in real arithmetic says nothing against violations by the network as it runs.
    proved = _proved([e for e in evidence if not (witnessed and isinstance(e, Bracket) and e.arithmetic == REAL)])
    flat = _FLAT if draws.flat else ""

    def belief(outcome: Outcome, number: Number | None, *notes: str) -> Belief:
        sound = _NOTHING if outcome is Outcome.STALLED and proved.log_upper == -math.inf else proved
        return Belief(outcome, number, draws, sound, levels, tuple(dict.fromkeys(filter(None, (*notes, flat)))))

    doubts = [e.told for e in evidence if isinstance(e, Searched) and e.doubt]
    if proved.log_lower > proved.log_upper:
        proved = _NOTHING
        return belief(Outcome.STALLED, None, "two proofs contradict each other: rounding decides")
    if proved.log_upper == -math.inf:
        if witnessed:
            return belief(
                Outcome.STALLED, None, "a violation contradicts the proof that there is none: rounding decides"
            )
        return belief(Outcome.PROVED_SAFE, None, proved.sentence)
    words = _last_words(evidence, draws)
    if not witnessed and all(n.doubt for n in words.values()):  # a number that its own method doubts, of nothing seen
        words = {}
    if not words:
        searches = [e for e in evidence if isinstance(e, Searched)]
        outcome, told = _without_number(witnessed, levels, draws, searches, cut)
        return belief(Outcome.STALLED if doubts else outcome, None, told, *doubts)
    if levels is not None and _below(levels, words):
        met = next(iter(words.values()))
        told = f"{met.method} says {met.sentence}, which is below the floor, too"
        return belief(Outcome.STALLED if doubts else Outcome.BELOW_FLOOR, None, levels.sentence, told, *doubts)
    chosen, refusal = _choice(words, levels)
    others = [f"{n.method} was not used: {n.doubt}" for n in words.values() if n is not chosen and n.doubt]
    exact = [e for e in evidence if isinstance(e, Number) and e.family == COUNTS]
    reasons = [refusal, chosen.doubt, _clash(chosen, draws, exact, proved), _wide(chosen), *doubts]
    if any(reasons):
        return belief(Outcome.STALLED, chosen, *reasons, *others)
    alone = _ALONE if chosen.assumes and len(words) == 1 and chosen.family not in (SPLITTING, STRATA) else ""
    return belief(Outcome.VIOLATED, chosen, chosen.note, alone, *others)


def cut_short(evidence: Sequence[Evidence]) -> bool:
    """Whether a method says that calls or seconds did not reach for it."""
    return any(
        (isinstance(e, Levels) and e.ended == "budget") or (isinstance(e, Searched) and e.broke) for e in evidence
    )


def _together(evidence: Sequence[Evidence]) -> list[Evidence]:
    """What the components of a mixture say of the whole: a proof, and a number where every component is known."""
    strata = [e for e in evidence if isinstance(e, Stratum)]
    if not strata:
        return []
    beliefs = [(stratum.log_weight, believe(stratum.evidence)) for stratum in strata]
    ends = [
        log_sum([weight + getattr(belief.bracket, side) for weight, belief in beliefs])
        for side in ("log_lower", "log_upper")
    ]
    whole = len(strata) == strata[0].of
    found: list[Evidence] = []
    if whole:
        kinds = [belief.bracket.arithmetic for _, belief in beliefs]
        kind = REAL if REAL in kinds else kinds[0]
        found.append(Bracket(ends[0], min(0.0, ends[1]), "bounds on every component", arithmetic=kind))
    known = [(w, b.number) for w, b in beliefs if b.outcome is Outcome.VIOLATED and b.number is not None]
    if known:
        statistic = Sum(tuple(w for w, _ in known), tuple(number.statistic for _, number in known))
        unknown = [w + b.upper(SURE) for w, b in beliefs if b.outcome in (Outcome.STALLED, Outcome.OUT_OF_BUDGET)]
        doubt = "a component is not known" if log_sum(unknown) > statistic.log_prob + math.log(_NEGLIGIBLE) else ""
        doubt = doubt if whole else "the budget did not reach for every component"
        assumes = "; ".join(dict.fromkeys(number.assumes for _, number in known if number.assumes))
        found.append(Number("components together", STRATA, statistic, 0, assumes, doubt))
    elif whole and all(belief.outcome in (Outcome.BELOW_FLOOR, Outcome.PROVED_SAFE) for _, belief in beliefs):
        levels = [b.levels for _, b in beliefs if b.outcome is Outcome.BELOW_FLOOR and b.levels is not None]
        if levels:  # a mean of what they leave is at most the largest
            worst = max(levels, key=lambda one: one.left.upper(SURE))
            found.append(replace(worst, method="components together", calls=0))
    return found


def _below(levels: Levels, words: dict[str, Number]) -> bool:
    """Whether populations met nothing down to the floor, and the violations that others met are rarer still."""
    sound = levels.ended == "floor" and not levels.doubt
    return sound and all(number.statistic.upper(SURE) < levels.left.upper(SURE) for number in words.values())


def _without_number(
    witnessed: bool, levels: Levels | None, draws: Draws, searches: Sequence[Searched], cut: bool
) -> tuple[Outcome, str]:
    if witnessed and cut:
        return Outcome.OUT_OF_BUDGET, "violations exist, and the budget ran out before there was a number for them"
    if witnessed:
        return Outcome.STALLED, "violations exist, and no method has a number for them: see the upper bound"
    if not draws.n and searches and not cut and not any(search.broke for search in searches):
        return Outcome.STALLED, searches[-1].sentence
    if levels is None or levels.ended == "budget":
        return Outcome.OUT_OF_BUDGET, "" if levels is None else levels.sentence
    if levels.ended == "stalled" or levels.doubt:
        return Outcome.STALLED, "; ".join(filter(None, (levels.sentence, levels.doubt)))
    return Outcome.BELOW_FLOOR, levels.sentence


def _proved(evidence: Sequence[Evidence]) -> Bracket:
    """All proofs together."""
    proofs = [e for e in evidence if isinstance(e, Bracket)]
    if not proofs:
        return _NOTHING
    low, high = max(proofs, key=lambda e: e.log_lower), min(proofs, key=lambda e: (e.log_upper, e.arithmetic == REAL))
    boxes = sum(e.boxes for e in proofs)
    return Bracket(low.log_lower, high.log_upper, high.proof, boxes, arithmetic=high.arithmetic)


def _last_words(evidence: Sequence[Evidence], draws: Draws) -> dict[str, Number]:
    """The last number of each family, doubted where it has no other to lean on; independent inputs are a count."""
    runs: dict[str, list[Number]] = {}
    for e in evidence:
        if isinstance(e, Number):
            runs.setdefault(e.family, []).append(e)
    last = {family: numbers[-1] for family, numbers in runs.items()}
    if draws.hits:
        counted = Number("Monte Carlo", COUNTS, draws.statistic, draws.calls)
        last[COUNTS] = min(last.get(COUNTS, counted), counted, key=lambda n: n.std)
    if set(last) == {SPLITTING} and len(runs[SPLITTING]) > 1:
        earlier, later = runs[SPLITTING][-2:]
        if apart(later, earlier):
            # Rare islands carry the mean, and no spread among the others says how many are still missing.
            told = f"two runs disagree: log p = {earlier.log_prob:.2f} and {later.log_prob:.2f}"
            last[SPLITTING] = replace(later, doubt="; ".join(filter(None, (later.doubt, told))))
    return last


def _choice(words: dict[str, Number], levels: Levels | None) -> tuple[Number, str]:
    """The number to believe, or the best guess with the reason why it is not believed."""
    count, split = words.get(COUNTS), words.get(SPLITTING)
    if count is not None and not count.doubt and count.std <= _EXACT:
        return count, ""
    fast = sorted((n for n in words.values() if n is not count and n is not split), key=lambda n: n.std)
    sound = [n for n in fast if not n.doubt]
    referees = [n for n in (split, count) if n is not None and not n.doubt]
    passed = [n for n in sound if all(_agrees(n, referee) for referee in referees)]
    for number in sound:
        others = [n for n in passed if {n.family, number.family} == _UNLIKE]
        refusal = _unconfirmed(number, [*referees, *others], split, levels)
        if not refusal:
            against = next((n for n in fast if n is not number and _denies(n, number, passed)), None)
            return number, "" if against is None else _contradiction(number, against)
        if split is None and levels is not None and count is None:
            return number, refusal
    if split is not None:
        if split.doubt and sound:  # a number that stands by itself is the better guess, and no more than that
            return sound[0], _unconfirmed(sound[0], referees, split, levels)
        others = [n for n in (count, *fast) if n is not None and (not n.doubt or n.log_prob > split.log_prob)]
        against = next((n for n in others if apart(split, n)), None)
        return split, split.lost if against is None or split.doubt else _contradiction(split, against)
    if count is not None:
        return count, ""
    return fast[0], ""


def _denies(other: Number, number: Number, passed: Sequence[Number]) -> bool:
    """Whether another method's number contradicts one that is confirmed, itself or by what it found above.

    A method that doubts its number may have missed something; it has not invented what lies above.
    """
    if other.doubt:
        return other.log_prob > number.log_prob and apart(number, other)
    return other in passed and (apart(number, other) or apart(other, number))


def _unconfirmed(number: Number, referees: Sequence[Number], split: Number | None, levels: Levels | None) -> str:
    """Why a number that sees only what it looks at is not believed, or nothing."""
    against = next((n for n in referees if not _agrees(number, n)), None)
    if against is not None:
        return _contradiction(number, against)
    if not number.assumes or number.family == STRATA:  # each component was confirmed on its own
        return ""
    weak, share = _WEAK.get(number.family, _WEAK["weights"])
    if any(n.std <= max(weak, share * abs(n.log_prob)) or n.log_prob <= number.log_prob for n in referees):
        return ""
    if split is None and levels is None:  # nothing else was asked
        return ""
    if referees:
        told = f"{referees[0].method}, log p = {referees[0].log_prob:.2f} ± {referees[0].std:.2f},"
        return f"{told} is too uncertain to confirm {number.method}"
    if split is not None:
        return f"splitting, which is doubtful itself, does not confirm {number.method}"
    assert levels is not None
    return f"{number.method} says log p = {number.log_prob:.2f}, {levels.method}: {levels.sentence}"


def _agrees(number: Number, referee: Number) -> bool:
    """Whether a referee that found violations on its own lets a number pass.

    One that lost a region is compared with what the number says of the rest: where the referee's own violations lie.
    """
    if referee.family == COUNTS:
        return not apart(number, referee)
    if number.seen is not None and number.log_prob > referee.log_prob:
        return not apart(replace(number, statistic=number.seen), referee)
    return not apart(number, referee)


def _contradiction(one: Number, other: Number) -> str:
    said = (f"{n.method} says log p = {n.log_prob:.2f} ± {n.std:.2f}" for n in (one, other))
    return "two methods contradict each other: " + ", ".join(said)


def apart(number: Number, other: Number) -> bool:
    """Whether two numbers contradict each other on the terms of their own errors."""
    gap, error = other.log_prob - number.log_prob, math.hypot(number.std, other.std)
    if not math.isfinite(gap) or not math.isfinite(error):
        return False
    # Populations are skewed: most runs of a few islands end too low, so that only what is far above them refutes them.
    far = number.statistic.lower(SURE) > other.statistic.upper(SURE)
    if COUNTS in (number.family, other.family):  # one lucky hit has no standard deviation to speak of
        return far or other.statistic.lower(SURE) > number.statistic.upper(SURE)
    return far or gap > _BELOW * error + _BELOW_MORE


def _clash(number: Number, draws: Draws, exact: Sequence[Number], proved: Bracket) -> str:
    """What sound evidence a number contradicts, if any."""
    low, high = number.statistic.lower(SURE), number.statistic.upper(SURE)
    if low > proved.log_upper or high < proved.log_lower:
        return f"{number.method} says log p = {number.log_prob:.2f}, against a proof: {proved.sentence}"
    if number.family == COUNTS:
        return ""
    if draws.n:
        counted = draws.statistic
        # The exact ends cost a millisecond, and lie on both sides of the share that was seen.
        above = low > counted.log_prob and low > counted.upper(SURE)
        if above or (high < counted.log_prob and high < counted.lower(SURE)):
            return f"{number.method} says log p = {number.log_prob:.2f}, but {draws.sentence}"
    return next((_contradiction(number, count) for count in exact if apart(number, count)), "")


def _wide(number: Number) -> str:
    """A number that may be off by many powers of ten is none, though the violations are real."""
    wide = number.std > max(_WIDE, _WIDE_SHARE * abs(number.log_prob))
    return "the standard error is too large for a number; allow more network calls" if wide else ""
