"""Weights that are no numbers are found and counted, in memory and in files."""

import pytest
import torch

from layerlab.loading.model import load_model
from layerlab.loading.weights.matrices import (
    count_matrices,
    find_weight_faults,
    read_matrices,
)
from tests.families.recipe import build


@pytest.mark.parametrize("stored", [False, True])
def test_weights_that_are_not_finite_are_counted_with_their_layer(stored, tiny, tmp_path):
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, :3] = torch.nan
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = torch.inf
        model.model.norm.weight[:2] = -torch.inf
        model.model.embed_tokens.weight[5, 5] = torch.nan
    model.save_pretrained(tmp_path)
    found = find_weight_faults(load_model(str(tmp_path), unloaded=stored))
    assert {one["kind"] for one in found} == {"weights"}
    assert {one["name"]: (one["layer"], one["what"].split(" weights")[0]) for one in found} == {
        "model.layers.0.self_attn.q_proj.weight": (0, "1 of 256"),
        "model.layers.1.mlp.up_proj.weight": (1, "3 of 512"),
        "model.norm.weight": (None, "2 of 16"),
        "model.embed_tokens.weight": (None, "1 of 1024"),
    }


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "mixtral", "dbrx"])
def test_as_many_matrices_are_counted_as_are_read(stored, family, tmp_path):
    build(family).save_pretrained(tmp_path)
    subject = load_model(str(tmp_path), unloaded=stored)
    assert count_matrices(subject) == len(list(read_matrices(subject))) > 8
