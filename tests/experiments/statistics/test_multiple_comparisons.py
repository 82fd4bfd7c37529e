"""One family of tests: exact p of divergence, what alpha is spent when, and one word for a pair."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from layerlab.experiments.statistics.differences import paired_difference
from layerlab.experiments.statistics.multiple_comparisons import (
    Evidence,
    Family,
    PairTest,
    holm,
    shares,
    spent_alpha,
)

BASE = [3.0, 3.3, 3.1]
LOOKS = st.lists(st.integers(2, 60), min_size=1, max_size=6, unique=True).map(sorted)
PS = st.lists(st.floats(0, 1), min_size=1, max_size=6)


class Fixed:
    """The same evidence for every pair but its sign."""

    def __init__(self, evidence: Evidence) -> None:
        self.given = evidence

    def evidence(self, test: PairTest) -> Evidence:
        return self.given


def evidence(shift: float = -0.01, **given: tuple[int, int]) -> Evidence:
    arm = [one + shift + wobble for one, wobble in zip(BASE, (0, 5e-4, -5e-4), strict=True)]
    return Evidence(found=paired_difference(arm, BASE), **given)


def test_a_p_that_is_no_number_is_no_evidence_and_spoils_no_other():
    assert holm([math.nan, 0.01, 0.02]) == pytest.approx([1.0, 0.03, 0.04])


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 8))
def test_unequal_divergence_has_fishers_exact_p(ours, theirs, runs):
    lost = min(ours, runs), min(theirs, runs)
    found = evidence(lost=lost, ended=(runs, runs)).divergence
    oracle = stats.fisher_exact([[lost[0], runs - lost[0]], [lost[1], runs - lost[1]]]).pvalue
    assert found == pytest.approx(oracle) and found > 0


def test_three_seeds_can_never_decide_by_divergence_alone():
    nothing = Evidence(found=paired_difference([], []), lost=(3, 0), ended=(3, 3))
    assert nothing.at(0.0) == (pytest.approx(0.1), 1)
    assert Evidence(found=paired_difference([], []), lost=(5, 0), ended=(5, 5)).at(0.0)[0] < 0.05


def test_where_a_run_diverged_two_tests_are_made_and_counted():
    whole, some = evidence(), evidence(lost=(0, 1), ended=(3, 4))
    assert some.at(0.0) == (pytest.approx(2 * whole.at(0.0)[0]), -1)
    assert evidence(lost=(1, 0), ended=(4, 3)).at(0.0) == (1.0, 0)
    assert evidence(0.01, lost=(1, 0), ended=(4, 3)).at(0.0)[1] == 1
    # As many of either speak for neither: what is left decides.
    for shift in (-0.01, 0.01):
        p, side = evidence(shift).at(0.0)
        assert evidence(shift, lost=(1, 1), ended=(4, 4)).at(0.0) == (pytest.approx(2 * p), side)


@given(LOOKS, st.floats(0.001, 0.2))
def test_looks_spend_all_of_alpha_and_no_more(looks, alpha):
    parts = shares(looks, alpha)
    assert math.fsum(parts) == pytest.approx(1) and all(0 <= part <= 1 + 1e-12 for part in parts)
    running = np.cumsum(parts) * alpha
    assert running == pytest.approx(
        [spent_alpha(alpha, look / looks[-1]) for look in looks], abs=1e-12
    )


def test_spending_is_lan_and_demets():
    """2 - 2 Phi(z / sqrt(t)) with z the quantile of alpha / 2."""
    for part in (0.1, 0.25, 0.5, 1.0):
        oracle = 2 - 2 * stats.norm.cdf(stats.norm.isf(0.025) / math.sqrt(part))
        assert spent_alpha(0.05, part) == pytest.approx(oracle, abs=1e-12)


def test_a_test_is_counted_once_from_whichever_arm_it_is_told():
    one, other = PairTest("a", "b", 0.02), PairTest("b", "a", -0.02)
    family = Family([one, other, one, PairTest("a", "b")], [(1.0, Fixed(evidence()))], 0.05)
    assert len(family) == 2
    assert family[one].corrected == family[other].corrected
    assert family[one].side == -family[other].side
    assert family[one].toward(1) == (1.0, 1.0)


def test_a_word_of_an_earlier_look_stays_and_a_look_has_its_share():
    test = PairTest("a", "b")
    sure, unsure = Fixed(evidence()), Fixed(evidence(1e-5))
    early = Family([test], [(0.5, sure), (0.5, unsure)], 0.05)[test]
    assert early.side == -1 and early.corrected == pytest.approx(2 * early.raw)
    late = Family([test], [(0.5, unsure), (0.5, sure)], 0.05)[test]
    assert (early.look, late.look) == (0, 1) and replace(late, look=0) == early
    # p of 0.0008 is no word where the look has a hundredth of alpha.
    assert Family([test], [(0.01, sure)], 0.05)[test].corrected > 0.05
    none = Family([test], [], 0.05)
    assert not none.has_look and none[test].toward(0) == (1.0, 1.0)


def test_a_look_so_early_that_it_spends_nothing_decides_nothing():
    test = PairTest("a", "b")
    stages = [(part, Fixed(evidence())) for part in shares([2, 800], 0.05)]
    early, late = (Family([test], stages[:count], 0.05)[test] for count in (1, 2))
    assert (early.corrected, early.look, late.look) == (1.0, 0, 1)
    assert late.corrected == pytest.approx(late.raw)


def test_words_of_twelve_seeds_at_three_looks_are_false_no_more_often_than_promised():
    draws, false = 300, 0
    rng, test = np.random.default_rng(1), PairTest("a", "b")
    for _ in range(draws):
        gaps = rng.normal(0, 1, 12)
        stages = [
            (part, Fixed(Evidence(found=paired_difference(gaps[:look].tolist(), [0.0] * look))))
            for part, look in zip(shares([3, 6, 12], 0.05), (3, 6, 12), strict=True)
        ]
        false += Family([test], stages, 0.05)[test].corrected < 0.05
    assert false <= stats.binom.ppf(0.999, draws, 0.05)


def test_tests_made_elsewhere_are_corrected_with_these():
    """As those of the other sizes of a ladder: Holm over all, and the word may fall."""
    test, stage = PairTest("a", "base"), Fixed(evidence())
    alone = Family([test], [(1.0, stage)], 0.05)
    beside = [alone.raw[0] / 2, 0.5, 0.9]
    found = Family([test], [(1.0, stage)], 0.05, beside)
    assert len(alone) == 1 and len(found) == 4 and found.raw == alone.raw
    assert alone[test].corrected == alone.raw[0]
    assert found[test].corrected == pytest.approx(3 * alone.raw[0])


def literal_holm(raw: list[float]) -> list[float]:
    """Holm (1979) as it is told: the smallest p times k, the next times k - 1, never falling."""
    order = sorted(range(len(raw)), key=lambda index: raw[index])
    found = {}
    for place, index in enumerate(order):
        before = [(len(raw) - earlier) * raw[order[earlier]] for earlier in range(place + 1)]
        found[index] = min(1.0, max(before))
    return [found[index] for index in range(len(raw))]


@given(PS)
def test_holm_is_what_holm_says_and_never_below_the_raw_p(raw):
    corrected = holm(raw)
    assert corrected == literal_holm(raw)
    assert all(one >= other for one, other in zip(corrected, raw, strict=True))
    assert max(corrected) <= 1
    ordered = [corrected[index] for index in np.argsort(raw, kind="stable")]
    assert ordered == sorted(ordered)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True))
def test_holm_does_not_care_for_the_order_of_arms(raw):
    expected = dict(zip(raw, holm(raw), strict=True))
    for order in permutations(raw):
        assert dict(zip(order, holm(order), strict=True)) == expected


@given(PS, st.integers(0, 5), st.floats(0, 1))
def test_holm_grows_with_every_p(raw, place, larger):
    changed = list(raw)
    changed[place % len(raw)] = max(raw[place % len(raw)], larger)
    assert all(one >= other for one, other in zip(holm(changed), holm(raw), strict=True))
