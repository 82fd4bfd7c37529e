"""Verdicts are sentences that say what was seen, how sure it is, and what cannot be said."""

from dataclasses import replace

import numpy as np
import pytest

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.verdict import Case, Verdict, judge, number
from layerlab.experiments.statistics.differences import Level, paired_difference, welch
from layerlab.experiments.statistics.multiple_comparisons import Evidence, Family, PairTest
from tests.training.support.drawn import recipe, record, runs

BASE = [3.0, 3.3, 3.1]


def verdict(arm: list[float], comparisons: int = 1, **given: object) -> Verdict:
    level = Level(comparisons=comparisons)
    return judged(paired_difference(arm, BASE[: len(arm)], level), comparisons, **given)


class Given:
    """Evidence as it is given, for whichever pair."""

    def __init__(self, evidence: Evidence) -> None:
        self.found, self.blank = evidence, Evidence(found=paired_difference([], []))

    def evidence(self, test: PairTest) -> Evidence:
        return self.found if test.arm == "siaf" else self.blank


def judged(found: object, comparisons: int = 1, **given: object) -> Verdict:
    lost = tuple(len(given.get(name, ())) for name in ("diverged", "base_diverged"))
    ended = tuple(found.n + one for one in lost)
    evidence = Evidence(found=found, lost=lost, ended=given.pop("ended", ended))
    others = [PairTest(f"a{number}", "llama") for number in range(comparisons - 1)]
    test = PairTest("siaf", "llama")
    family = Family([test, *others], [(1.0, Given(evidence))], found.level.alpha)
    case = {"arm": "siaf", "baseline": "llama", "level": found.level, "planned": found.n}
    return judge(Case(evidence=evidence, finding=family[test], **{**case, **given}))


def test_a_difference_beyond_chance_is_better_or_worse_with_its_evidence():
    better = verdict([2.99, 3.2895, 3.0905])
    assert better.word == "better"
    assert better.said == (
        "siaf is better than llama by 0.0100 nats (95 % interval -0.0112 to -0.0088, p = 0.00083, "
        "3 seeds)."
    )
    worse = verdict([3.01, 3.3105, 3.1095])
    assert worse.word == "worse" and "worse than llama by 0.0100 nats" in worse.said


def test_within_chance_it_says_what_would_have_been_seen_and_what_it_would_take():
    found = verdict([2.99, 3.32, 3.1])
    assert found.word == "not distinguishable"
    assert found.said.startswith("siaf is not distinguishable from llama at this budget: +0.0033")
    assert "3 seeds find an effect of 0.0" in found.said
    assert "with a probability of 80 % (a range, as sigma is an estimate)" in found.said
    assert "; confirming the observed difference with that probability would need " in found.said
    assert found.said.endswith(" more seeds.")
    tiny = verdict([2.99 + 1e-9, 3.31, 3.1])
    assert tiny.said.endswith("even 1,000,000 seeds would not confirm the observed difference.")


def test_where_seeds_cannot_help_and_text_can_it_says_so():
    found = replace(paired_difference([2.99, 3.2895, 3.0905], BASE), text=(0.02, 15))
    said = [judged(found, questions=questions).said for questions in (False, True)]
    assert said[0].endswith("would not confirm the observed difference; more held-out text might.")
    assert said[1].endswith("would not confirm the observed difference; more questions might.")
    tiny = replace(paired_difference([2.99 + 1e-9, 3.31, 3.1], BASE), text=(0.02, 15))
    assert judged(tiny).said.endswith("would not confirm the observed difference.")


def test_one_seed_of_planned_ones_asks_for_no_more_in_the_recipe():
    waiting, alone = verdict([2.99], planned=3, missing=[2, 3]).said, verdict([2.99]).said
    assert "be needed: the planned ones have not all finished; 1 of 3 planned seeds" in waiting
    assert "type compare.seeds" not in waiting and "type compare.seeds = [1, 2, 3]" in alone


def test_an_interval_that_the_correction_takes_back_is_explained():
    arm = [2.99, 3.286, 3.093]
    assert verdict(arm).word == "better"
    found = verdict(arm, comparisons=7)
    assert found.word == "not distinguishable"
    assert "leaves 0 out, but not after the correction for 7 tests" in found.said
    assert "after Holm's correction for 7 tests" in found.said


def test_identical_arms_and_one_seed_and_no_spread_are_told_apart():
    assert verdict(BASE).word == "identical"
    assert verdict(BASE).said.endswith("a difference of exactly 0 at 3 seeds.")
    few = verdict([2.9])
    assert few.word == "too few seeds" and "type compare.seeds = [1, 2, 3]" in few.said
    assert verdict([2.9, 3.2, 3.0]).word == "no verdict"
    assert "every seed shows the same difference of -0.1000 nats" in verdict([2.9, 3.2, 3.0]).said
    assert verdict([]).said == ("no verdict on siaf: no seed has finished for it and llama both.")


LOST = dict.fromkeys(range(1, 6), "NaN")


@pytest.mark.parametrize(
    ("ours", "theirs", "ended", "word"),
    [
        ({2: "NaN"}, {}, (3, 3), "diverged"),
        ({}, {1: "NaN"}, (3, 3), "diverged"),
        ({1: "NaN"}, {2: "NaN"}, (3, 3), "diverged"),
        # Three of three against none: Fisher's exact p is 0.1, and no three seeds can decide it.
        ({1: "NaN", 2: "NaN", 3: "loss of 99"}, {}, (3, 3), "diverged"),
        (LOST, {}, (5, 5), "worse"),
        ({}, LOST, (5, 5), "better"),
    ],
)
def test_who_diverges_more_often_is_worse_where_an_exact_test_says_so(ours, theirs, ended, word):
    found = verdict([2.99], diverged=ours, base_diverged=theirs, planned=3, ended=ended)
    assert found.word == word
    for name, losses in (("siaf", ours), ("llama", theirs)):
        assert (f"{name} diverged at seed" in found.said) == bool(losses)
    assert f"{len(ours)} of {ended[0]} runs against {len(theirs)} of {ended[1]}" in found.said
    assert "over the 1 seed left the difference is -0.0100 nats" in found.said


def test_an_arm_that_diverged_is_not_better_for_what_is_left_of_it():
    better = [2.99, 3.2895, 3.0905]
    assert verdict(better).word == "better"
    assert verdict(better, diverged={4: "NaN"}).word == "diverged"
    assert verdict(better, base_diverged={4: "NaN"}).word == "better"
    assert "interval" in verdict(better, base_diverged={4: "NaN"}).said


def test_what_limits_a_verdict_is_said_with_it():
    found = verdict([2.99, 3.29], planned=3, missing=[3], differ=["train.batch_size"])
    assert "; 2 of 3 planned seeds: this verdict is not final; " in found.said
    assert found.said.endswith(
        "arms also differ in train.batch_size, so this is no comparison of variants alone."
    )


def test_unpaired_arms_are_labelled():
    found = judged(welch([2.0, 2.01, 2.02], BASE))
    assert found.word == "better"
    assert "unpaired: no seed has a number for both" in found.said


def test_a_verdict_names_its_scale_and_the_parts_of_its_error():
    found = verdict([2.99, 3.2895, 3.0905], scale="at 1.4 M parameters and 200 k tokens a run")
    assert found.said.endswith("3 seeds); at 1.4 M parameters and 200 k tokens a run.")
    text = judged(replace(paired_difference([2.99, 3.2895, 3.0905], BASE), text=(0.002, 15)))
    assert "standard error 0.00029 by seeds and 0.0020 by held-out text" in text.said
    assert text.word == "better"


def test_a_look_that_decided_stands_alone_where_no_later_seed_has_a_number():
    found = verdict([2.99, 3.2895, 3.0905], later=paired_difference([], []))
    assert found == verdict([2.99, 3.2895, 3.0905])


def test_numbers_keep_their_sign_and_their_digits():
    shown = [number(0), number(-0.01234, sign=True), number(3.2e-5), number(5, sign=True)]
    assert shown == ["0.0000", "-0.0123", "3.2e-05", "+5.0000"]


def test_the_look_that_decided_is_named_by_its_seeds_though_the_first_of_a_sweep_only_chose():
    given = recipe(seeds=list(range(1, 13)), looks=[6, 12], learning_rates=[1e-3, 3e-3, 1e-2])
    rng = np.random.default_rng(0)
    found = [
        record(
            one, float(3 - 2 * (one.arm == "gpt2") + 0.1 * (one.rate != 3e-3) + rng.normal(0, 0.01))
        )
        for one in runs(given)
    ]
    said = compare_runs(given, found).row("gpt2")["said"]
    assert "; decided by the look at 6 seeds; over 11 seeds it is" in said
