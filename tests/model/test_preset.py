"""Presets against what is printed: totals, and the one record of operations that gives a shape."""

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from layerlab import UserError
from layerlab.model.build import build
from layerlab.model.cost.cost import account
from layerlab.model.design import design
from layerlab.model.preset import presets
from layerlab.variants.registry import variants


def total(name, **given):
    found = design(name, **given)
    return account(found.spec, found.shape).parameters


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_built_on_the_meta_device_with_what_was_predicted(name):
    model = build(name, device="meta")
    assert all(one.is_meta for one in model.parameters())
    assert model.num_parameters() == total(name)


@pytest.mark.parametrize("name", presets())
def test_a_preset_says_what_is_published_and_what_is_not(name):
    one = presets()[name]
    assert one.variant in variants() and name not in variants()
    assert one.published.endswith(".") and one.unsaid.endswith(".")


def test_llama_7b_is_as_large_as_that_of_transformers():
    import torch

    shape = design("llama-7b").shape
    config = LlamaConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        vocab_size=shape.vocab,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        assert LlamaForCausalLM(config).num_parameters() == total("llama-7b")
    assert round(total("llama-7b") / 1e9, 3) == 6.738


@pytest.mark.parametrize(
    ("name", "family", "sizes", "published"),
    [
        ("gpt1-117m", "openai-gpt", {}, 116_534_784),
        ("gpt2-124m", "gpt2", {}, 124_439_808),
        ("gpt2-large", "gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}, 774_030_080),
    ],
)
def test_gpt_1_and_2_are_as_large_as_those_of_transformers(name, family, sizes, published):
    import torch

    config = AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        counted = AutoModelForCausalLM.from_config(config).num_parameters()
    assert counted == total(name) == published
    shape = design(name).shape
    assert (shape.vocab, shape.context) == (config.vocab_size, config.n_positions)


def test_pangu_pi_7b_matches_llama_7b_by_dropping_layers_for_a_larger_vocabulary():
    shape = design("pangu-pi-7b").shape
    d, inner = shape.width, shape.inner
    block = 4 * d * d + 3 * d * inner + 2 * d * (d // 32) + 2 * d
    body = shape.layers * block + 2 * shape.vocab * d + d
    assert round(body / 1e9, 3) == 6.726
    series = shape.layers * 2 * 2 * inner  # two terms, a scale and a shift for each channel
    assert total("pangu-pi-7b") == body + series
    assert abs(total("pangu-pi-7b") / total("llama-7b") - 1) < 0.002


def test_pangu_pi_1b_has_about_a_billion_parameters_where_no_width_is_printed():
    assert 1.02e9 <= total("pangu-pi-1b") <= 1.03e9
    assert "inner" not in presets()["pangu-pi-1b"].sizes
    assert "not printed" in presets()["pangu-pi-1b"].unsaid


def test_the_shape_of_the_eight_residuals_gives_the_printed_operations():
    found = design("eight-residuals")
    cost = account(found.spec, found.shape)
    counted = cost.parameters - cost.embedding
    tokens = 5 * 68_009 * found.shape.context
    printed = int(presets()["eight-residuals"].published.split(" GF")[0].replace(",", ""))
    assert 6 * counted * tokens >> 30 == printed
    # One more row of the head would show: the record is that sharp.
    assert 6 * (counted + found.shape.width) * tokens >> 30 != printed
    assert round(cost.parameters / 1e6, 2) == 51.65


@pytest.mark.parametrize("preset", ["eight-residuals", "eight-residuals-small"])
@pytest.mark.parametrize("name", [one for one in variants() if one.startswith("history-")])
def test_every_scheme_has_the_shape_of_the_eight_residuals(name, preset):
    assert total(name, preset=preset) == total("llama", preset=preset) == total(preset)


def test_the_small_twin_is_a_quarter_as_wide():
    large, small = (design(name).shape for name in ("eight-residuals", "eight-residuals-small"))
    assert (large.width, large.inner) == (4 * small.width, 4 * small.inner)
    assert (large.layers, large.heads, large.kv_heads) == (
        small.layers,
        small.heads,
        small.kv_heads,
    )


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UserError, match="no preset is called 'pangu-pi-7'; did you mean"):
        design("llama", preset="pangu-pi-7")
