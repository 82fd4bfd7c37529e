"""Both modules before training: variants share what they can, and words follow planted losses."""

import numpy as np
import pytest
import torch

from layerlab.model.build import build
from layerlab.studies.pangu23.theory.modules_at_init import (
    NAMES,
    STARTS,
    VARIANTS,
    judge_limits,
    judge_series,
    one,
    scatter,
)
from tests.studies.small import drawing

SIZES = {"width": 32, "layers": 2, "heads": 4, "vocab": 512, "context": 128}


def made(name):
    variant, options = VARIANTS[name]
    return build(variant, **SIZES, **options, seed=5)


def test_variants_share_all_weights_that_they_have_in_common():
    models = {name: dict(made(name).named_parameters()) for name in NAMES}
    for name in NAMES:
        for key, value in models["neither"].items():
            assert torch.equal(models[name][key], value), (name, key)
    extra = {name: set(models[name]) - set(models["neither"]) for name in NAMES}
    assert extra["both modules"] == extra["without shortcut"] | extra["without series"]
    assert extra["without shortcut"] and extra["without series"]


def test_only_terms_are_scattered_and_no_path_is_silent():
    model, plain = made("both modules"), dict(made("both modules").named_parameters())
    scatter(model, 1)
    changed = {k for k, v in model.named_parameters() if not torch.equal(v, plain[k])}
    assert changed == {key for key in plain if ".terms." in key}
    assert all(value.abs().max() > 0 for value in model.parameters())


@pytest.mark.full
def test_a_batch_has_a_share_for_every_variant_start_and_layer():
    found = one(drawing(), layers=2, width=32)["dimension"]
    assert found.shape == (1, len(NAMES), len(STARTS), 3)
    assert ((found > 0) & (found <= 1)).all()
    # Behind the embedding all variants are one.
    assert (found[:, :, :, 0] == found[:, :1, :1, 0]).all()


def planted(without, loss):
    values = np.full((12, len(NAMES), len(STARTS), 3), 0.4)
    values[:, NAMES.index(without), :, -1] -= loss
    return values


def test_words_follow_the_losses():
    for loss, word in (
        (0.2, "holds"),
        (0.001, "smaller than asked"),
        (-0.2, "fails"),
    ):
        assert judge_limits(planted("without shortcut", loss), 0).word == word
        assert judge_series(planted("without series", loss), 1, 0).word == word
    assert judge_limits(planted("without series", 0.2), 0).number == 0
