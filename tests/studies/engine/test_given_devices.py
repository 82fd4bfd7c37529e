"""Models on another device than what is drawn: no study joins the tensors of both."""

import pytest
import torch
from torch import Tensor

from layerlab.loading.model import load_model
from layerlab.studies.budzinskiy25 import section3_condition, section4_bounds, theorem_4_30
from layerlab.studies.engine.given_models import GivenModel
from layerlab.studies.pangu23.theory import (
    attention_lambda,
    collapse_depth,
    shortcut_noise,
    theorems,
)
from layerlab.studies.pangu23.trained import features_pca, saliency_repeat
from layerlab.studies.spectral25 import (
    attention_norm_bound,
    batch_independence,
    block_anatomy,
    gpt1_gpt2,
    mlp_lipschitz,
    norms_by_depth,
    path_decomposition,
    unit_ball,
)
from layerlab.studies.support.passages import get_model
from tests.studies.engine.test_given_models import made
from tests.studies.small import drawing
from tests.support.elsewhere import living_elsewhere

# Studies that emulate are not here: what an emulated tensor holds cannot be marked.
PARTS = {
    "attention-lambda": lambda draw: attention_lambda.one(draw, 8, ["own"]),
    "attention-gain": lambda draw: attention_norm_bound.norms(draw, "own"),
    "batch-independence": lambda draw: batch_independence.beside(draw, "own"),
    "block-anatomy": lambda draw: block_anatomy.anatomy(draw, "own"),
    "bound-depth": lambda draw: theorem_4_30.errors_of_trained(draw, "own"),
    "bounds-table": lambda draw: section4_bounds.one(draw, "own"),
    "condition-table": lambda draw: section3_condition.one(draw, "own"),
    "mlp-lipschitz": lambda draw: mlp_lipschitz.residual_by_dose(draw, "own"),
    "collapse-depth": lambda draw: collapse_depth.trained_depths(draw, "own"),
    "deep-curve": lambda draw: norms_by_depth.norms_of_given(draw, "own"),
    "features-pca": lambda draw: features_pca.ours(draw, "own"),
    "gpt-curves": lambda draw: gpt1_gpt2.norms(draw, "own", "short"),
    "pangu-theorems": lambda draw: theorems.one(draw, "own", True, 8),
    "path-length": lambda draw: path_decomposition.one(draw, "own"),
    "saliency-repeat": lambda draw: saliency_repeat.ours(draw, "own"),
    "shortcut-noise": lambda draw: shortcut_noise.one(draw, 1, "own"),
    "unit-ball": lambda draw: unit_ball.angles(draw, "own"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", PARTS)
def test_what_is_drawn_goes_to_the_device_of_the_model(name):
    whole = load_model(made("llama"), tokenizer=get_model("llama").tokenizer)
    given = {"own": GivenModel(subject=whole, tokens=torch.arange(10, 250), text=None)}
    draw = drawing(2, **given)
    with living_elsewhere(whole.model):
        found = PARTS[name](draw)
    assert found and all(isinstance(one, Tensor) for one in found.values())
