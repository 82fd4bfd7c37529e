"""Every threshold that decides stands in the sentence of its verdict, and in the set-up."""

import numpy as np
import pytest

from layerlab.studies.budzinskiy25 import (
    condition_alone,
    figure1_depth,
    figure2_spectral_norm,
    figure3_input_norm,
    figure4_norm_placement,
    layernorm_rmsnorm,
)
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.statistics import LOOKED, Interval, mean, median
from layerlab.studies.pangu23.theory import scaled_identity


def noise(*shape):
    return np.random.default_rng(0).uniform(1, 1.01, shape)


@pytest.mark.parametrize(
    ("ratio", "word", "size"),
    [(1.2, "holds", "below 1.5"), (3.0, "holds", "more than one"), (0.8, "fails", "below 1.5")],
)
def test_which_norm_is_the_less_stable_is_one_sentence_and_by_how_much_another(ratio, word, size):
    error = noise(3 * layernorm_rmsnorm.TOKENS, 5)
    one = {"rms": error, "layer": ratio * error, "ratio": np.ones(5)}
    found = layernorm_rmsnorm.judge_real({"pre-norm": one, "llama": one}, 0, "one text")
    assert found.word == word and "above 1 was asked for in each. In size" in found.said
    assert size in found.said.split("In size")[1]
    assert found.unit == f"{layernorm_rmsnorm.TOKENS} tokens of one text, 2 models"


@pytest.mark.parametrize(
    ("value", "low", "high", "word"),
    [
        (1.92, 1.81, 1.98, "holds"),
        (1.24, 1.2, 1.27, "fails"),
        (2.9, 2.7, 3.1, "fails"),
        (1.6, 1.4, 1.8, "not decided"),
    ],
)
def test_about_quadratic_is_nearer_to_2_than_to_another_whole_power(value, low, high, word):
    assert figure3_input_norm.quadratic(Interval(value, low, high)) == word


def test_sharp_is_a_digit_more():
    pre = noise(8, 3)
    for factor, word in ((20, "holds"), (5, "smaller than asked"), (0.5, "fails")):
        found = figure4_norm_placement.judge("x.", "post", {"pre": pre, "post": factor * pre}, 0)
        assert found.word == word and "above 10 was asked for" in found.said


def test_the_median_is_far_below_the_mean_by_one_threshold():
    draws = noise(50, 2)
    assert "above 3 was asked for" in figure1_depth.judge_spread({"normwise": draws}, 0).said
    # Twice: once this was not decided, by a second threshold that nobody was told of.
    draws[:5] *= 11
    found = figure1_depth.judge_spread({"normwise": draws}, 0)
    assert 1.5 < found.number < 3 and found.word == "smaller than asked"


def planted(last, layers=8):
    """Errors of some draws that grow by a tenth a layer, with known last ones."""
    steps = 1.1 ** (np.arange(layers) - layers + 1)
    return np.asarray(last)[:, None] * steps


@pytest.mark.full
def test_a_word_on_depth_is_said_where_both_errors_say_it():
    many = np.arange(400) < 40
    alike, heavy = planted(noise(400)), planted(np.where(many, 1e6, noise(400)))
    for other, words in ((heavy, ("holds", "holds")), (alike, ("not decided", "not decided"))):
        errors = {"normwise": heavy, "rho_c": other}
        found = (
            figure1_depth.judge_spread(errors, 0).word,
            figure1_depth.judge_rare(errors, 0).word,
        )
        assert found == words
    # One draw in place of forty: the mean is that of this draw, and tells nothing of the next.
    single = {name: np.where(many[:, None], alike, one) for name, one in errors.items()}
    single["normwise"] = planted(np.where(np.arange(400) < 1, 1e6, noise(400)))
    found = figure1_depth.judge_rare(single, 0)
    assert found.word == "not decided" and "The mean rests on 1 draws (normwise)" in found.said
    # An exponential by construction, whatever the draw; a power of the depth is none.
    grown = figure1_depth.judge_growth({"normwise": alike, "rho_c": heavy}, mean, "x.", 0)
    assert grown.word == "holds" and grown.number == pytest.approx(1.1)
    power = noise(400)[:, None] * np.arange(1, 9) ** 2.0
    both = {"normwise": power, "rho_c": power}
    assert figure1_depth.judge_growth(both, median, "x.", 0).word == "fails"
    assert figure1_depth.judge_growth({**both, "rho_c": alike}, mean, "x.", 0).word == "not decided"


def test_how_much_of_a_mean_is_saturated_is_told():
    errors = np.full((10, 1, 4, 3), 1e-3)
    errors[:1, :, 2] = 0.9
    (said,) = figure1_depth.saturation(errors)
    assert "With 24 digits 10.0% of the draws are above 0.1" in said and "make 99%" in said


def test_one_layer_is_no_layers():
    effects = {("spectral", depth, 16): Interval(2, 1, 3) for depth in (1, 8)}
    one, eight = (condition_alone._name_effect(key, effects) for key in effects)
    assert "1 layer," in one and "8 layers," in eight


@pytest.mark.parametrize(
    ("module", "thresholds"),
    [
        (figure3_input_norm, ["within 0.5 of 2", "within 0.5 of 2"]),
        pytest.param(
            figure2_spectral_norm, ["above 0", "within 0.5 of 1 and of 2"], marks=pytest.mark.full
        ),
    ],
    ids=["rounding-input", "rounding-norm"],
)
def test_what_was_asked_for_is_said_with_every_verdict(module, thresholds):
    found = study(module.STUDY.name, fast=True, draws=4, progress=False, threads=1)
    for threshold, verdict in zip(thresholds, found.verdicts, strict=True):
        assert f"{threshold} was asked for" in verdict["said"]


def test_thresholds_that_came_after_a_first_look_are_told():
    options = {"draws": 4, "layers": 2, "width": 16, "progress": False, "threads": 1}
    found = study(scaled_identity.STUDY.name, **options)
    assert LOOKED in found.to_dict()["remarks"]
    # What is above 0 needs no threshold; the others are marked where they stand.
    assert [one["looked"] for one in found.verdicts] == [False, True, True]
