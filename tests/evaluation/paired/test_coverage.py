"""How often 95 % intervals over questions miss the truth: ours, and those of bootstraps.

Scores are as F1 has them: many at 0 and at 1, the rest between. Questions about one document are
easy or hard together, and for one model more than for the other.
"""

import math

import numpy as np
import pytest

from layerlab.evaluation.paired.question_statistics import compare_questions
from layerlab.experiments.statistics.differences import Level

ROUNDS, RESAMPLED = 2000, 999
# Documents: their sizes, and whether their questions hang together.
DESIGNS = {
    "20 questions": ([1] * 20, False),
    "300 questions": ([1] * 300, False),
    "8 documents of 5": ([5] * 8, True),
    "40 documents of 5": ([5] * 40, True),
    "20 documents, one of them large": ([60, *range(1, 20)], True),
    "100 documents, one of them large": ([200, *[1, 2, 3] * 33], True),
}


def draw_scores(ease: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    worth = 1 / (1 + np.exp(-1.6 * (ease + rng.normal(0, 0.8, len(ease)))))
    return np.clip((worth - 0.25) / 0.55, 0.0, 1.0)


def draw_models(
    sizes: np.ndarray, together: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the scores of two models that are alike: neither is better in the long run."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ease = rng.normal(0, 1, len(sizes))[groups] + rng.normal(0, 1, len(groups))
    spread = 0.7 if together else 0.0
    first, second = (
        draw_scores(ease + spread * rng.normal(0, 1, len(sizes))[groups], rng) for _ in range(2)
    )
    return first, second


def misses(design: str) -> dict[str, float]:
    """Return the share of intervals that miss 0: ours, and a bootstrap's by its percentiles."""
    given, together = DESIGNS[design]
    sizes, rng = np.array(given), np.random.default_rng(6)
    groups = np.repeat(np.arange(len(sizes)), sizes) if together else None
    drawn = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), RESAMPLED)
    missed = {"ours": 0, "bootstrap": 0}
    for _ in range(ROUNDS):
        ours, theirs = draw_models(sizes, together, rng)
        low, high = compare_questions(ours, theirs, groups, Level()).found.interval or (1.0, -1.0)
        missed["ours"] += not low <= 0 <= high
        sums = np.add.reduceat(ours - theirs, np.cumsum(sizes) - sizes)
        low, high = np.quantile(drawn @ sums / (drawn @ sizes), (0.025, 0.975))
        missed["bootstrap"] += not low <= 0 <= high
    return {name: count / ROUNDS for name, count in missed.items()}


@pytest.mark.full
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_over_questions_and_documents_miss_as_often_as_they_say(design):
    """Ours in 5 % within four errors of 2,000 rounds; the bootstrap more often where units are few.

    Beside one document with half of all questions, with as many degrees as there are documents but
    one, an interval missed in 35 % (of 100) and 8 % (of 20).
    """
    found = misses(design)
    error = math.sqrt(0.05 * 0.95 / ROUNDS)
    assert found["ours"] == pytest.approx(0.05, abs=4 * error)
    if design not in ("300 questions", "40 documents of 5"):
        assert found["bootstrap"] > 0.05 + 4 * error
