"""Who is believed: laws that hold for any evidence, and the cases that decided them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from rarely.core.evidence import (
    COUNTS,
    SPLITTING,
    TILTING,
    Bracket,
    Draws,
    Evidence,
    Found,
    Levels,
    Number,
    Searched,
    Stratum,
)
from rarely.core.witnesses import Witnesses
from rarely.questions.conclude import apart, believe
from rarely.questions.result import Outcome
from rarely.stats.statistic import Binomial, Exceeded, LogNormal, Replicates, Sum

FOUND = Found("attack", Witnesses(torch.zeros(1, 2), torch.ones(1)), replayed=True)


def split(log_prob: float, std: float, doubt: str = "") -> Number:
    return Number("splitting", SPLITTING, LogNormal(log_prob, std), 1000, "no region was lost", doubt)


def lines(log_prob: float, std: float, doubt: str = "") -> Number:
    return Number("line sampling", "lines", LogNormal(log_prob, std), 1000, "lines point everywhere", doubt)


def tilted(log_prob: float, std: float, doubt: str = "") -> Number:
    return Number("tilting", TILTING, LogNormal(log_prob, std), 1000, "no region was lost", doubt)


def count(hits: int, trials: int, log_room: float = 0.0) -> Number:
    return Number("counting", COUNTS, Binomial(hits, trials, log_room), trials)


FLOOR = Levels("splitting", Exceeded((-231.0,) * 8), "floor", 5000)
STALLED = Levels("splitting", Exceeded((-20.0,) * 8), "stalled", 5000)
CUT = Levels("splitting", Exceeded((-20.0,) * 8), "budget", 5000)

logs = st.floats(-200.0, 0.0)
errors = st.floats(0.001, 5.0)
doubts = st.sampled_from(["", "poor mixing"])
records = st.one_of(
    st.builds(lambda n, share: Draws(n, int(share * n)), st.integers(0, 10_000), st.floats(0, 1)),
    st.builds(lambda a, b: Bracket(min(a, b), max(a, b), "boxes"), logs, logs),
    st.builds(split, logs, errors, doubts),
    st.builds(lines, logs, errors, doubts),
    st.builds(tilted, logs, errors, doubts),
    st.builds(lambda h, n: count(min(h, n), n), st.integers(1, 50), st.integers(1, 10_000)),
    st.sampled_from([FLOOR, STALLED, CUT, FOUND, Searched("attack", "nothing at 64 points")]),
    st.builds(lambda: Searched("precision", "it hangs on rounding", doubt=True)),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(records, max_size=7), st.sampled_from([0.5, 0.95, 0.999]))
def test_laws_for_any_evidence(evidence: list[Evidence], confidence: float) -> None:
    belief = believe(evidence)
    interval, upper = belief.interval(confidence), belief.upper(confidence)
    log_prob, _ = belief.guess(interval)
    draws = belief.draws.statistic
    witnessed = any(isinstance(e, Found) for e in evidence) or belief.draws.hits > 0
    assert log_prob <= 0
    assert log_prob == -math.inf or log_prob in interval
    assert interval.low <= interval.high <= 0
    assert upper <= 0
    assert upper <= belief.bracket.log_upper
    if belief.outcome in (Outcome.STALLED, Outcome.OUT_OF_BUDGET):
        assert upper == min(draws.upper(confidence), belief.bracket.log_upper), "independent draws and proofs, no more"
    if witnessed:
        assert belief.outcome not in (Outcome.BELOW_FLOOR, Outcome.OUT_OF_BUDGET, Outcome.PROVED_SAFE)
    if belief.outcome is Outcome.STALLED:
        assert belief.notes, "what is not trusted says why"
    if belief.outcome is Outcome.BELOW_FLOOR:
        assert any("if the populations lost no region" in note for note in belief.notes)
    if any(isinstance(e, Searched) and e.doubt for e in evidence):
        assert belief.outcome in (Outcome.STALLED, Outcome.PROVED_SAFE)
    if belief.outcome is Outcome.VIOLATED:
        assert belief.number is not None
        assert not belief.number.doubt
        last = {e.family: e for e in evidence if isinstance(e, Number)}
        for other in last.values():
            if not other.doubt and belief.number.assumes and other.family != belief.number.family:
                # Not the other way round: populations end too low, and what lies above them may be right (`apart`).
                against = apart(belief.number, other)
                assert not (against and other.family in (SPLITTING, COUNTS)), "nothing that contradicts it stands"


def test_a_proof_ends_everything_but_a_violation() -> None:
    safe = Bracket(-math.inf, -math.inf, "boxes")
    assert believe([Draws(1000, 0), safe]).outcome is Outcome.PROVED_SAFE
    clash = believe([Draws(1000, 0), safe, FOUND])
    assert clash.outcome is Outcome.STALLED
    assert "contradicts the proof" in clash.notes[0]
    assert clash.upper(0.95) > -math.inf, "a proof that is contradicted bounds nothing"


def test_faster_methods_need_a_referee_that_agrees() -> None:
    agreed = believe([split(-20.0, 0.4), lines(-20.3, 0.05), FOUND])
    assert agreed.outcome is Outcome.VIOLATED
    assert agreed.number is not None
    assert agreed.number.method == "line sampling"
    for said in (lines(-24.0, 0.05), lines(-14.0, 0.05)):
        against = believe([split(-20.0, 0.4), said, FOUND])
        assert against.outcome is Outcome.STALLED
        assert "line sampling says" in against.notes[0]
        assert "splitting says" in against.notes[0]
    doubtful = believe([split(-20.0, 0.4, "poor mixing"), lines(-20.3, 0.05), FOUND])
    assert doubtful.outcome is Outcome.STALLED


@pytest.mark.parametrize("levels", [FLOOR, STALLED, CUT], ids=lambda e: e.ended)
def test_a_number_of_lines_alone_is_not_believed_beside_splitting_that_found_nothing(levels: Levels) -> None:
    """Seen: lines were right at -20.7, splitting found nothing, and the answer was a trusted "below 1e-100"."""
    belief = believe([Draws(5800, 0), levels, lines(-20.7, 0.05), FOUND])
    assert belief.outcome is Outcome.STALLED
    assert belief.guess(belief.interval(0.95))[0] == -20.7
    assert belief.upper(0.95) == Binomial(0, 5800).upper(0.95)
    assert "line sampling says" in belief.notes[0]
    assert "no violation" in belief.notes[0]


def test_a_method_that_was_asked_alone_stands_alone_and_says_so() -> None:
    belief = believe([lines(-20.0, 0.05), FOUND])
    assert belief.outcome is Outcome.VIOLATED
    assert any("no independent method" in note for note in belief.notes)


def test_splitting_may_stand_alone_unless_its_runs_disagree() -> None:
    """Seen on a small network: -24.84 ± 0.46, then -21.94 ± 0.26 at 32 times the size, where -20.44 is right."""
    alone = believe([split(-24.84, 0.46), FOUND])
    assert alone.outcome is Outcome.VIOLATED
    larger = replace(split(-21.94, 0.26), method="larger splitting")
    both = believe([split(-24.84, 0.46), larger, FOUND])
    assert both.outcome is Outcome.STALLED
    assert any("two runs disagree" in note for note in both.notes)
    near = believe([split(-24.84, 0.46), replace(split(-24.0, 0.26), method="larger splitting"), FOUND])
    assert near.outcome is Outcome.VIOLATED
    assert near.number is not None
    assert near.number.method == "larger splitting"


def test_counts_assume_nothing_and_go_first() -> None:
    exact = believe([split(-20.0, 0.05), count(300, 1000, -16.0), FOUND])
    assert exact.number is not None
    assert exact.number.family == COUNTS
    draws = believe([Draws(100_000, 400), split(-9.0, 0.05)])
    assert draws.outcome is Outcome.VIOLATED
    assert draws.number is not None
    assert draws.number.method == "Monte Carlo"


def test_a_number_that_sound_evidence_contradicts_is_not_trusted() -> None:
    for sound in (Draws(10_000, 0), Bracket(-math.inf, -30.0, "boxes"), Bracket(-1.0, 0.0, "boxes")):
        belief = believe([sound, split(-3.0, 0.05), FOUND])
        assert belief.outcome is Outcome.STALLED
        assert "says log p = -3.00" in belief.notes[0]


def test_a_number_without_digits_is_not_trusted() -> None:
    assert believe([split(-20.0, 10.0), FOUND]).outcome is Outcome.STALLED
    assert "standard error" in believe([split(-20.0, 10.0), FOUND]).notes[0]
    for kept in (split(-20.0, 2.0), split(-200.0, 10.0)):
        assert believe([kept, FOUND]).outcome is Outcome.VIOLATED


def test_few_skewed_islands_refute_from_above_only_what_is_far() -> None:
    """Seen at log p = -39.9: islands -43.5 ± 0.8 beside lines that were right, and 2.5 million calls to find out."""
    islands = Replicates((-42.8, -43.9, -41.6, -45.1, -44.4, -43.2, -46.0, -42.2))
    referee = Number("splitting", SPLITTING, islands, 20_000, "no region was lost")
    assert not apart(lines(-40.5, 0.07), referee)
    # Eight logs that spread by 1.5: one time in a thousand the true spread is 5, and half its square the mean's lead.
    variance = statistics.variance(islands.log_values)
    most = 0.5 * variance * 7 / chi2.ppf(0.001, 7)
    assert not apart(lines(statistics.mean(islands.log_values) + 0.9 * most, 0.07), referee)
    assert apart(lines(statistics.mean(islands.log_values) + 1.2 * most, 0.07), referee)
    assert apart(lines(-47.0, 0.07), referee), "from below, where a missed region hides, less is enough"


def test_what_remains_unknown_is_bounded_by_draws_alone() -> None:
    for levels, outcome in ((FLOOR, Outcome.BELOW_FLOOR), (STALLED, Outcome.STALLED), (CUT, Outcome.OUT_OF_BUDGET)):
        belief = believe([Draws(2200, 0), levels])
        assert belief.outcome is outcome
        expected = levels.left.upper(0.95) if levels is FLOOR else Binomial(0, 2200).upper(0.95)
        assert belief.upper(0.95) == expected
    assert believe([]).outcome is Outcome.OUT_OF_BUDGET
    assert believe([]).upper(0.95) == 0.0
    assert believe([Searched("line sampling", "no line reaches a violation")]).outcome is Outcome.STALLED
    broke = Searched("line sampling", "the budget does not reach for lines", broke=True)
    assert believe([broke]).outcome is Outcome.OUT_OF_BUDGET


@pytest.mark.parametrize("family", ["lines", "weights"])
def test_a_referee_that_is_unsure_and_says_more_confirms_nothing(family: str) -> None:
    """Seen: splitting -10.02 ± 1.69 accepted lines at -12.14. A rare island may have met what they miss."""
    for log_prob, outcome in ((-12.14, Outcome.STALLED), (-9.5, Outcome.VIOLATED)):
        number = replace(lines(log_prob, 0.1), family=family)
        belief = believe([split(-10.02, 1.69), number, FOUND])
        chosen = belief.outcome is Outcome.VIOLATED and belief.number is number
        assert chosen == (outcome is Outcome.VIOLATED)
    sure = believe([split(-10.02, 0.2), replace(lines(-10.3, 0.1), family=family), FOUND])
    assert sure.number is not None
    assert sure.number.family == family


# A referee that lost a region -----------------------------------------------------------------------------------------


def test_splitting_that_lost_a_region_does_not_stand_alone() -> None:
    lost = replace(split(-20.0, 0.2), lost="40% of the violations that draws from far out led to lie where it has none")
    belief = believe([lost, FOUND])
    assert belief.outcome is Outcome.STALLED
    assert lost.lost in belief.notes
    assert lost.lost in lost.sentence
    assert belief.upper(0.95) == 0.0, "nothing rests on it"


def test_a_referee_is_compared_with_what_a_number_says_of_where_it_looked() -> None:
    """The number is 4 nats above a referee that met one of two modes: of that mode both must say the same."""
    lost = replace(split(-20.0, 0.2), lost="half of what was met far out lies where it has none")
    for referee in (split(-20.0, 0.2), lost):
        whole = replace(lines(-16.0, 0.05), seen=LogNormal(-20.1, 0.1))
        belief = believe([referee, whole, FOUND])
        assert belief.outcome is Outcome.VIOLATED
        assert belief.number is whole
        for seen in (LogNormal(-25.0, 0.1), LogNormal(-16.5, 0.1)):
            against = believe([referee, replace(whole, seen=seen), FOUND])
            assert against.outcome is Outcome.STALLED
            assert "two methods contradict each other" in against.notes[0] or referee.lost in against.notes
    assert believe([split(-20.0, 0.2), lines(-16.0, 0.05), FOUND]).outcome is Outcome.STALLED, "and without it, no more"


def test_what_a_number_says_of_where_the_referee_looked_excuses_no_number_below_it() -> None:
    below = replace(lines(-24.0, 0.05), seen=LogNormal(-20.0, 0.1))
    assert believe([split(-20.0, 0.2), below, FOUND]).outcome is Outcome.STALLED


# Components of a mixture ----------------------------------------------------------------------------------------------


def strata(*components: tuple[float, list[Evidence]], of: int | None = None) -> list[Evidence]:
    count = len(components) if of is None else of
    return [
        Stratum(f"component {k + 1}", math.log(weight), count, tuple(evidence))
        for k, (weight, evidence) in enumerate(components)
    ]


def test_components_add_up_with_their_weights() -> None:
    parts: list[Evidence] = [lines(-20.0, 0.1), split(-20.1, 0.3), FOUND]
    rare: list[Evidence] = [lines(-2.0, 0.1), split(-2.1, 0.3), FOUND]
    belief = believe(strata((1 - 1e-6, parts), (1e-6, rare)))
    assert belief.outcome is Outcome.VIOLATED
    assert belief.number is not None
    assert belief.number.log_prob == pytest.approx(math.log((1 - 1e-6) * math.exp(-20) + 1e-6 * math.exp(-2)))
    assert "lines point everywhere" in belief.number.assumes
    assert belief.interval(0.95).low < belief.number.log_prob < belief.interval(0.95).high


def test_an_unknown_component_matters_by_what_it_may_hold() -> None:
    known: list[Evidence] = [split(-9.0, 0.1), FOUND]
    # At most 1 - 0.001 ** (1 / n) of it violates: 7e-4 of the weight, against 2 % of 1.2e-4.
    for weight, outcome in ((0.005, Outcome.STALLED), (0.003, Outcome.VIOLATED)):
        belief = believe([FOUND, *strata((1 - weight, known), (weight, [Draws(10_000, 0), CUT]))])
        assert belief.outcome is outcome
        assert (belief.notes == ("a component is not known",)) == (outcome is Outcome.STALLED)
    both = believe(strata((0.5, [Draws(100, 0), CUT]), (0.5, [Draws(100, 0), STALLED])))
    assert both.outcome is Outcome.OUT_OF_BUDGET
    assert both.number is None


def test_a_component_that_was_never_reached_is_not_forgotten() -> None:
    belief = believe([FOUND, *strata((0.5, [split(-9.0, 0.1), FOUND]), of=2)])
    assert belief.outcome is Outcome.STALLED
    assert "the budget did not reach for every component" in belief.notes
    assert belief.bracket.log_upper == 0.0, "what is proved of one says nothing of the other"


def test_components_below_the_floor_leave_no_more_than_the_worst_of_them() -> None:
    deep = replace(FLOOR, left=Exceeded((-290.0,) * 8))
    for order in ((FLOOR, deep), (deep, FLOOR)):
        belief = believe(strata(*((0.5, [one]) for one in order)))
        assert belief.outcome is Outcome.BELOW_FLOOR
        assert belief.upper(0.95) == pytest.approx(-231.0)
    safe = Bracket(-math.inf, -math.inf, "boxes")
    assert believe(strata((0.5, [safe]), (0.5, [FLOOR]))).outcome is Outcome.BELOW_FLOOR
    assert believe(strata((0.5, [FLOOR]), of=2)).outcome is Outcome.OUT_OF_BUDGET


def test_proofs_of_components_add_up() -> None:
    safe = Bracket(-math.inf, -math.inf, "boxes")
    assert believe(strata((0.5, [safe]), (0.5, [safe]))).outcome is Outcome.PROVED_SAFE
    assert believe(strata((0.5, [safe]), of=2)).outcome is not Outcome.PROVED_SAFE
    one, two = Bracket(math.log(0.1), math.log(0.2), "boxes"), Bracket(math.log(0.4), math.log(0.6), "boxes")
    belief = believe(strata((0.25, [one]), (0.75, [two])))
    assert math.exp(belief.bracket.log_lower) == pytest.approx(0.25 * 0.1 + 0.75 * 0.4)
    assert math.exp(belief.bracket.log_upper) == pytest.approx(0.25 * 0.2 + 0.75 * 0.6)
    certain = believe(strata((0.5, [Bracket(0.0, 0.0, "boxes")]), (0.5, [Bracket(0.0, 0.0, "boxes")])))
    assert certain.bracket.log_lower <= certain.bracket.log_upper


def test_a_sum_that_draws_of_the_whole_contradict_is_not_trusted() -> None:
    belief = believe([Draws(100_000, 0), *strata((0.5, [split(-5.0, 0.1), FOUND]), (0.5, [split(-5.0, 0.1), FOUND]))])
    assert belief.outcome is Outcome.STALLED
    assert any("of 100,000 independent inputs" in note for note in belief.notes)
    assert belief.number is not None
    assert isinstance(belief.number.statistic, Sum)


def test_what_a_doubted_method_found_above_splitting_contradicts_it() -> None:
    """Seen with max((x0 - 6) / 50, x1 - 5): lines were right, did not see what splitting found, and were ignored."""
    other = lines(-15.06, 0.05, "it did not see 100% of the violations that splitting found")
    belief = believe([split(-21.0, 0.14), other, FOUND])
    assert belief.outcome is Outcome.STALLED
    assert "splitting says log p = -21.00" in belief.notes[0]
    assert "line sampling says log p = -15.06" in belief.notes[0]
    below = lines(-25.0, 0.05, "lines cross the boundary many times")
    assert believe([split(-21.0, 0.14), below, FOUND]).outcome is Outcome.VIOLATED


def test_a_lone_number_that_assumes_nothing_is_believed() -> None:
    own = Number("mine", "another family", LogNormal(-9.0, 0.1), 1000)
    assert believe([own, FOUND]).number is own
    assert believe([own, FOUND]).outcome is Outcome.VIOLATED


def test_every_exact_count_is_heard() -> None:
    """One of two counts allows for the number, the other, a little less sure, does not."""
    belief = believe([Draws(35, 6), split(-8.0, 1.5), count(5, 16)])
    assert belief.outcome is Outcome.STALLED
    assert "counting says" in belief.notes[0]


def test_lines_and_tilted_populations_confirm_each_other_where_the_referee_is_unsure() -> None:
    unsure = split(-11.4, 1.9)
    assert believe([unsure, lines(-11.9, 0.06), FOUND]).number is unsure
    assert believe([unsure, tilted(-11.8, 0.1), FOUND]).number is unsure
    sure = lines(-11.9, 0.06)
    belief = believe([unsure, sure, tilted(-11.8, 0.1), FOUND])
    assert belief.outcome is Outcome.VIOLATED
    assert belief.number is sure


def test_of_confirmed_methods_that_contradict_each_other_the_referee_decides() -> None:
    """Either is what it allows for, both cannot be right: until it is surer, its own wide number is all there is."""
    wide, flat, curved = split(-12.0, 0.8), lines(-12.6, 0.05), tilted(-11.8, 0.08)
    assert believe([wide, flat, curved, FOUND]).number is wide
    belief = believe([split(-11.8, 0.1), flat, curved, FOUND])
    assert belief.outcome is Outcome.VIOLATED
    assert belief.number is curved
    weighed = Number("weights", "weights", LogNormal(-12.6, 0.05), 1000, "the proposal reaches everywhere")
    assert believe([split(-12.0, 0.25), weighed, curved, FOUND]).outcome is Outcome.STALLED
