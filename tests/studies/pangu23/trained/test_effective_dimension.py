"""Effective dimension of trained twins: words for dimensions that are known."""

import numpy as np
import pytest

from layerlab.studies.pangu23.trained.effective_dimension import (
    ARMS,
    FULL,
    NO_SERIES,
    NO_SHORTCUT,
    VANILLA,
    compare_arms,
    judge_every_layer,
    judge_most,
    judge_ordered,
    judge_without_shortcut,
)
from layerlab.studies.support.feature_statistics import DIMENSION


def planted(**dimensions):
    """Three seeds, an embedding and four blocks; the dimension of every arm as given."""
    spread = np.random.default_rng(0).normal(1, 1e-3, (len(ARMS), 3, 5))
    parts = {}
    for arm, noise in zip(ARMS, spread, strict=True):
        layers = np.zeros((3, 5, 2))
        layers[..., DIMENSION] = noise * dimensions[arm.replace("-", "_")]
        layers[:, 0, DIMENSION] = 99.0  # what stands behind the embedding is no layer
        parts[arm] = {"layers": layers, "nats": np.ones(3)}
    return parts


def as_the_source():
    return planted(pangu_pi=0.5, pangu_pi_no_siaf=0.4, pangu_pi_no_as=0.3, llama=0.2)


def test_the_order_of_the_source_is_recognized():
    parts = as_the_source()
    verdicts = [
        judge(parts)
        for judge in (judge_ordered, judge_without_shortcut, judge_every_layer, judge_most)
    ]
    assert [one.word for one in verdicts] == ["holds"] * 4
    assert verdicts[1].number == pytest.approx(5 / 3, rel=0.01)
    assert compare_arms(parts, NO_SERIES, VANILLA).value == pytest.approx(2, rel=0.01)


def test_equal_twins_are_no_order():
    parts = planted(pangu_pi=0.4, pangu_pi_no_siaf=0.4, pangu_pi_no_as=0.4, llama=0.4)
    judges = (judge_ordered, judge_without_shortcut, judge_every_layer, judge_most)
    # They differ by a thousandth and less: nobody knows in which direction.
    assert "holds" not in {judge(parts).word for judge in judges}
    turned = planted(pangu_pi=0.2, pangu_pi_no_siaf=0.3, pangu_pi_no_as=0.4, llama=0.5)
    assert [judge(turned).word for judge in judges] == ["fails"] * 4
    less = planted(pangu_pi=0.412, pangu_pi_no_siaf=0.404, pangu_pi_no_as=0.4, llama=0.392)
    assert judge_without_shortcut(less).word == judge_most(less).word == "smaller than asked"


def test_one_layer_is_enough_against_every_layer():
    parts = as_the_source()
    parts[FULL]["layers"][:, 3, DIMENSION] = 0.9 * parts[NO_SERIES]["layers"][:, 3, DIMENSION]
    found = judge_every_layer(parts)
    assert found.word == "fails" and "in layer 3 of 4" in found.said
    assert judge_ordered(parts).word == "holds"


def test_seeds_that_disagree_decide_nothing():
    parts = as_the_source()
    parts[NO_SHORTCUT]["layers"][0, :, DIMENSION] *= 10
    assert judge_without_shortcut(parts).word == "not decided"
