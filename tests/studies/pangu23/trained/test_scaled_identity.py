"""A shortcut of larger weight, trained: words for losses that are known."""

import numpy as np
import pytest

from layerlab.studies.pangu23.trained.scaled_identity import (
    ARMS,
    AUGMENTED,
    LARGER,
    judge_augmented,
    judge_prevents,
    judge_wider,
    judge_worse,
)
from layerlab.studies.support.feature_statistics import DIMENSION, RESIDUAL
from layerlab.studies.support.small_models import PLAIN


def planted(nats, residual, dimension):
    """Three seeds of two blocks, all alike within a thousandth."""
    generator = np.random.default_rng(0)
    parts = {}
    for arm, loss, share, width in zip(ARMS, nats, residual, dimension, strict=True):
        noise = generator.normal(1, 1e-3, (3, 3))
        layers = np.stack([share * noise, width * noise], -1)
        parts[arm] = {"nats": loss + generator.normal(0, 1e-3, 3), "layers": layers}
    return parts


def words(parts):
    return [
        judge(parts).word for judge in (judge_worse, judge_prevents, judge_wider, judge_augmented)
    ]


def test_words_follow_the_numbers():
    # In the order of the arms: plain, larger weight, augmented shortcut.
    assert ARMS == (PLAIN, LARGER, AUGMENTED)
    as_said = planted((5.0, 5.1, 4.9), (0.5, 0.9, 0.6), (0.2, 0.3, 0.2))
    assert words(as_said) == ["holds"] * 4
    assert judge_worse(as_said).number == pytest.approx(0.1, abs=5e-3)
    assert judge_augmented(as_said).number == pytest.approx(0.2, abs=5e-3)
    otherwise = planted((5.1, 5.0, 5.05), (0.9, 0.5, 0.6), (0.3, 0.2, 0.2))
    assert words(otherwise) == ["fails"] * 4


def test_what_is_compared_is_the_last_layer_and_the_mean_of_blocks():
    parts = planted((5.0, 5.0, 5.0), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    parts[LARGER]["layers"][:, 1, RESIDUAL] = 9.0
    parts[LARGER]["layers"][:, 0, DIMENSION] = 9.0
    assert words(parts) == ["not decided"] * 4
    parts[LARGER]["layers"][:, 2, RESIDUAL] = 0.75
    parts[LARGER]["layers"][:, 1:, DIMENSION] *= 2
    assert words(parts)[1:3] == ["holds", "holds"]
    assert judge_prevents(parts).number == pytest.approx(0.25, abs=0.01)
    assert judge_wider(parts).number == pytest.approx(2, rel=0.01)
