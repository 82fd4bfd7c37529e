"""Differences against chance: textbook numbers, and what more questions would decide."""

from dataclasses import replace

import numpy as np
import pytest

from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables.ablation_noise import BOTH, SPLITS, Contest, word


def test_the_interval_covers_what_chance_makes_of_the_questions():
    contest = Contest(name="", better=37.9, worse=35.0, source="")
    generator = np.random.default_rng(0)
    drawn = generator.binomial(1346, 0.379, 20_000) - generator.binomial(1346, 0.35, 20_000)
    low, high = np.percentile(100 * drawn / 1346, [2.5, 97.5])
    found = contest.interval(1346)
    assert found.low == pytest.approx(low, abs=0.15) and found.high == pytest.approx(high, abs=0.15)


def test_four_times_the_questions_halve_the_interval():
    few, many = (BOTH.interval(questions) for questions in (1000, 4000))
    assert few.high - few.low == pytest.approx(2 * (many.high - many.low))


def test_words_need_both_splits():
    assert word(replace(BOTH, better=45.0)) == "holds"
    assert word(replace(BOTH, better=25.0)) == "fails"
    assert word(BOTH) == "not decided" and BOTH.interval(SPLITS["test"]).low > 0


def test_the_verdicts():
    found = study("ablation-noise", fast=True, progress=False)
    assert [one["word"] for one in found.verdicts] == ["not decided"] * 4
    assert found.number == pytest.approx(2.9)
