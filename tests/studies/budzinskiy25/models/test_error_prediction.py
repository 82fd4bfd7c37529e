"""Foretold and observed errors: planted factors are judged, and no error passes its bound."""

import numpy as np
import pytest
import torch

from layerlab import builtin
from layerlab.studies.budzinskiy25.models.error_prediction import (
    BOUND,
    NEAR,
    SAMPLED,
    TWICE,
    VARIANCE,
    judge_near,
    judge_telling,
    length,
    medians,
    name_places,
    one,
    plot,
)
from tests.studies.small import context, drawing

WORK = context(models=builtin.NAMES)


def planted(factor, places=2):
    spread = np.linspace(0.95, 1.05, 8)[:, None, None]
    found = factor * spread * np.ones((8, places, 3))
    return {(model, "bf16"): found for model in builtin.NAMES}


@pytest.mark.full
def test_planted_factors_are_found_and_judged():
    found = medians(planted(0.7), VARIANCE, 0)
    assert found["llama", "bf16", "logits"].value == pytest.approx(0.7)
    words = [
        judge_near(planted(factor), SAMPLED, TWICE, "", WORK).word for factor in (0.7, 3.0, 0.3)
    ]
    assert words == ["holds", "fails", "fails"]
    assert judge_near(planted(NEAR), SAMPLED, NEAR, "", WORK).word == "not decided"


def test_a_bound_of_one_says_nothing():
    for size, word in ((1.5, "fails"), (0.2, "holds"), (1.0, "not decided")):
        assert (
            judge_telling({label: found[..., 0] for label, found in planted(size).items()}).word
            == word
        )


def test_lengths_and_names():
    assert length(torch.tensor([[[3.0], [4.0]], [[torch.inf], [0.0]]])).tolist() == [5.0, torch.inf]
    assert name_places(3) == ["block 1", "block 2", "logits"]


def test_the_picture_says_of_each_model_where_its_logits_are():
    same = {(model, "bf16"): planted(0.9, 3)["llama", "bf16"] for model in ("a", "b")}
    told = plot(same, "bf16", ("a", "b")).layout["xaxis"]["title"]["text"]
    assert told == "block; 3 is the logits"
    same["b", "bf16"] = planted(0.9, 5)["llama", "bf16"]
    told = plot(same, "bf16", ("a", "b")).layout["xaxis"]["title"]["text"]
    assert told == "block; the logits are 3 (a), 5 (b)"


@pytest.mark.full
def test_no_error_passes_its_bound_and_the_seed_settles_the_passages():
    first, second = (one(drawing(seed=1), "post-norm", "fp32") for _ in range(2))
    assert torch.equal(first["ratios"], second["ratios"])
    assert (first["ratios"][..., BOUND] <= 1).all()
    assert first["ratios"].shape == (1, 9, 3)
