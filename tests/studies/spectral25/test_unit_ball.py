"""A head's map and angles: known maps, the model's own output, pictures that fit, the verdicts."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.studies.engine.pictures import Curve, plane
from layerlab.studies.engine.runner import study
from layerlab.studies.spectral25.unit_ball import (
    axes,
    between,
    chance_of,
    choose_head,
    judge_aligned,
    maps,
    ratios,
    share_matched,
)
from layerlab.studies.support.attention_scores import check_scores
from layerlab.studies.support.passages import for_each_layer, get_model, tokens_of
from tests.families.recipe import family_config
from tests.studies.small import QUICK, made

TOKENS = 20
SQUARE = torch.ones(TOKENS, TOKENS, dtype=torch.bool)


def test_the_maps_of_a_layer_make_what_the_model_makes_of_a_lone_token():
    # The first token attends to itself, and this model has no biases.
    found = {}

    def read(layer):
        if layer.attention is not None:
            found[layer.attention.layer] = layer.sublayers["attention"]

    for_each_layer(get_model("llama"), tokens_of("llama")[None, :8], read)
    every = maps("llama")
    heads = len(every) // len(found)
    for number, sublayer in found.items():
        own = every[number * heads : (number + 1) * heads]
        made = (own @ sublayer.entered[0].double()).sum(0)
        assert torch.allclose(made, sublayer.left[0].double(), atol=1e-5)


def test_axes_of_known_maps():
    turned = torch.linalg.qr(
        torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    ).Q
    assert ratios(axes(turned).numpy()) == pytest.approx([1, 1, 1])
    flat = turned @ torch.diag(torch.tensor([4.0, 2.0, 1.0, 0, 0, 0])).double() @ turned.mT
    assert ratios(axes(flat).numpy()) == pytest.approx([4, 4, 4])


def test_images_of_tokens_lie_in_the_ellipse():
    one = choose_head("pre-norm")
    inside = (one.images / one.values[:2]).square().sum(1)
    assert len(inside) == 128 and (inside <= 1 + 1e-9).all() and inside.max() > 0.01
    assert one.query.shape == one.key.shape == (128, 16)


def test_keys_of_one_length_are_matched_by_angle_and_long_ones_are_not():
    draw = torch.Generator().manual_seed(0)
    query, key = (torch.randn(TOKENS, 5, generator=draw).double() for _ in range(2))
    key /= key.norm(dim=1, keepdim=True)
    assert share_matched(query, key, SQUARE).item() == 1
    key[3] *= 1e6
    # It wins wherever its score is above 0, and is the nearest in few of these.
    assert share_matched(query, key, SQUARE).item() < 0.8
    assert between(key, -key, torch.eye(TOKENS, dtype=torch.bool)).item() == pytest.approx(-1)


def test_chance_is_of_the_keys_that_a_row_may_use():
    causal = SQUARE.tril()
    assert chance_of(causal).item() == pytest.approx(sum(1 / n for n in range(8, 21)) / 13)
    assert chance_of(causal.triu(-9)).item() == pytest.approx((1 / 8 + 1 / 9 + 11 / 10) / 13)
    with pytest.raises(NotApplicable, match="no token sees 8 keys"):
        chance_of(causal.triu(-3))


@pytest.mark.parametrize(
    ("family", "biased"), [("falcon", True), ("falcon", False), ("bloom", True)]
)
def test_scores_with_a_bias_are_not_those_of_queries_and_keys(family, biased):
    """Falcon hands both over either way, and its ALiBi as a part of the mask."""
    config = family_config(family)
    config.alibi = biased
    model = AutoModelForCausalLM.from_config(config).eval()
    whole = LoadedModel(name=family, source="memory", model=model, tokenizer=None)

    def read(layer):
        if layer.attention is not None:
            check_scores(layer.attention)

    refused = pytest.raises(NotApplicable, match=r"a bias to scores|neither queries nor keys")
    with refused if biased else nullcontext():
        for_each_layer(whole, torch.arange(3, 27)[None], read)


def test_a_plane_has_one_unit_for_both_axes():
    one = Curve(name="a", x=[0, 1], y=[0, 2])
    picture = plane("p", "P", [one], [one], x="x", y="y")
    assert picture.layout["yaxis"]["scaleanchor"] == "x"
    assert [trace["mode"] for trace in picture.data] == ["lines+markers", "markers"]


def test_of_a_model_of_a_user_no_size_of_scores_is_explained_by_weights_that_a_norm_undoes():
    words = get_model("llama").tokenizer
    found = study("unit-ball", model=made("qwen3"), tokenizer=words, **QUICK, draws=4)
    (ordered,) = [one for one in found.verdicts if "order 1" in one["claim"]]
    assert ordered["said"].endswith("(median over passages)")


@pytest.mark.parametrize(
    ("share", "others"), [(0.9, "In all other rows a longer"), (1, "In no row")]
)
def test_other_rows_are_spoken_of_where_there_are_some(share, others):
    part = {"aligned": np.full((8, 2), float(share)), "chance": np.full((8, 2), 0.1)}
    assert others in judge_aligned({"one": part}, 0).said
