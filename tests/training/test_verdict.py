"""Verdicts are sentences that say what was seen, how sure it is, and what cannot be said."""

import pytest

from layerlab.training.statistics import Level, holm, paired, welch
from layerlab.training.verdict import Case, Verdict, judge, number

BASE = [3.0, 3.3, 3.1]


def verdict(arm: list[float], comparisons: int = 1, **given: object) -> Verdict:
    level = Level(comparisons=comparisons)
    found = paired(arm, BASE[: len(arm)], level)
    p = None if found.p is None else holm([found.p, *[1.0] * (comparisons - 1)])[0]
    case = {"arm": "siaf", "baseline": "llama", "holm": p, "level": level, "planned": len(arm)}
    return judge(Case(difference=found, **{**case, **given}))


def test_a_difference_beyond_chance_is_better_or_worse_with_its_evidence() -> None:
    better = verdict([2.99, 3.2895, 3.0905])
    assert better.word == "better"
    assert better.said == (
        "siaf is better than llama by 0.0100 nats (95 % interval -0.0112 to -0.0088, p = 0.00083, "
        "3 seeds)."
    )
    worse = verdict([3.01, 3.3105, 3.1095])
    assert worse.word == "worse" and "worse than llama by 0.0100 nats" in worse.said


def test_within_chance_it_says_what_would_have_been_seen_and_what_it_would_take() -> None:
    found = verdict([2.99, 3.32, 3.1])
    assert found.word == "not distinguishable"
    assert found.said.startswith("siaf is not distinguishable from llama at this budget: +0.0033")
    assert "3 seeds find an effect of 0.0" in found.said
    assert "with a probability of 80 %" in found.said
    assert "if it is as large as it looks, " in found.said and "more seeds would tell" in found.said
    tiny = verdict([2.99 + 1e-9, 3.31, 3.1])
    assert "no larger than it looks, even 1,000,000 seeds would not tell" in tiny.said


def test_an_interval_that_the_correction_takes_back_is_explained() -> None:
    arm = [2.99, 3.286, 3.093]
    assert verdict(arm).word == "better"
    found = verdict(arm, comparisons=7)
    assert found.word == "not distinguishable"
    assert "leaves 0 out, but not after the correction for 7 arms" in found.said
    assert "after Holm's correction for 7 arms" in found.said


def test_identical_arms_and_one_seed_and_no_spread_are_told_apart() -> None:
    assert verdict(BASE).word == "identical"
    assert verdict(BASE).said.endswith("a difference of exactly 0 at 3 seeds.")
    few = verdict([2.9])
    assert few.word == "too few seeds" and "type compare.seeds = [1, 2, 3]" in few.said
    assert verdict([2.9, 3.2, 3.0]).word == "no verdict"
    assert "the seeds did not vary the runs" in verdict([2.9, 3.2, 3.0]).said
    assert verdict([]).said == ("no verdict on siaf: no seed has finished for it and llama both.")


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ({2: "NaN"}, {}, "worse"),
        ({}, {1: "NaN"}, "better"),
        ({1: "NaN", 2: "loss of 99"}, {1: "NaN"}, "worse"),
        ({1: "NaN"}, {2: "NaN"}, "no verdict"),
    ],
)
def test_who_diverges_more_often_is_worse(
    ours: dict[int, str], theirs: dict[int, str], word: str
) -> None:
    found = verdict([2.99], diverged=ours, base_diverged=theirs, holm=None, planned=3)
    assert found.word == word
    for name, losses in (("siaf", ours), ("llama", theirs)):
        assert (f"{name} diverged at seed" in found.said) == bool(losses)
    assert "over the 1 seed left the difference is -0.0100 nats" in found.said


def test_what_limits_a_verdict_is_said_with_it() -> None:
    found = verdict([2.99, 3.29], planned=3, missing=[3], differ=["train.batch"])
    assert "; 2 of 3 planned seeds: this verdict is not final; " in found.said
    assert found.said.endswith(
        "arms also differ in train.batch, so this is no comparison of variants alone."
    )


def test_unpaired_arms_are_labelled() -> None:
    found = welch([2.0, 2.01, 2.02], BASE)
    case = Case(arm="a", baseline="b", difference=found, holm=found.p, level=Level(), planned=3)
    assert judge(case).word == "better"
    assert "unpaired: the two share no seed" in judge(case).said


def test_numbers_keep_their_sign_and_their_digits() -> None:
    shown = [number(0), number(-0.01234, sign=True), number(3.2e-5), number(5, sign=True)]
    assert shown == ["0.0000", "-0.0123", "3.2e-05", "+5.0000"]
