"""Models whose layers have unequal shapes: every head counts, or one line says why not."""

import copy

import pytest
import torch
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaAttention

from layerlab.errors import NotApplicable
from layerlab.studies.budzinskiy25 import section4_bounds
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.theory import theorem_case
from layerlab.studies.spectral25 import attention_norm_bound, block_anatomy, unit_ball
from layerlab.studies.support.passages import get_model
from tests.studies.small import QUICK, drawing, given_of, made


def sampler(model, count=2):
    given = given_of("unit-ball", model=model, tokenizer=get_model("llama").tokenizer)
    return drawing(count, **given), *given


def with_fewer_heads():
    """A llama of three layers, of which the second has half of the heads."""
    model = made("llama", head_dim=8)
    config = copy.deepcopy(model.config)
    config.num_attention_heads = 2
    model.model.layers[1].self_attn = LlamaAttention(config, 1).eval()
    return model


@pytest.mark.parametrize(
    ("part", "quantity"), [(attention_norm_bound.norms, "norm"), (unit_ball.angles, "aligned")]
)
def test_every_head_counts_where_layers_have_different_numbers_of_them(part, quantity):
    assert part(*sampler(with_fewer_heads()))[quantity].shape == (2, 4 + 2 + 4)


def test_the_head_of_a_picture_is_found_where_layers_have_different_numbers_of_them():
    model = with_fewer_heads()
    with torch.no_grad():  # what the last head of the second layer passes on
        model.model.layers[1].self_attn.o_proj.weight[:, 8:16] *= 100
    draw, name = sampler(model)
    assert unit_ball.choose_head(name, draw.given).name == f"{name}, layer 2, head 1"


def test_heads_are_not_laid_side_by_side_where_layers_have_different_numbers_of_them():
    with pytest.raises(NotApplicable, match="different numbers of heads"):
        block_anatomy.anatomy(*sampler(with_fewer_heads()))


@pytest.mark.full
def test_nothing_is_said_of_other_heads_where_there_is_one():
    model = made("llama", num_attention_heads=1, num_key_value_heads=1)
    words = get_model("llama").tokenizer
    found = study("block-anatomy", model=model, tokenizer=words, **QUICK | {"draws": 4})
    assert len(found.verdicts) == 4
    assert not any("nan" in one["said"] for one in found.verdicts)


def test_feedforwards_of_different_widths_are_refused_where_one_matrix_stands_beside_all():
    model = made("gpt2")
    model.transformer.h[1].mlp = GPT2MLP(200, model.config).eval()
    draw, name = sampler(model, count=8)
    with pytest.raises(NotApplicable, match="not all as wide"):
        theorem_case.parts(get_model(name, draw.given), torch.arange(8))
    with pytest.raises(NotApplicable, match="matrices of different sizes"):
        section4_bounds.modules_of_blocks(draw, name)
