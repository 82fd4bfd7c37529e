"""The bound on the scores, held against the modules of real families."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab.measures.quantities.weights.querykey import prenorm_bound, score_bound
from tests.measures.support.head import (
    MODULES,
    SMALL,
    adversaries,
    built,
    random,
    recording,
    scores_of,
    weights_of,
)

ROUNDOFF = 2.0**-53


@pytest.fixture(autouse=True)
def _recording() -> Iterator[None]:
    with recording():
        yield


@pytest.mark.parametrize("family", MODULES)
@pytest.mark.parametrize("seed", range(3))
def test_no_input_scores_above_the_bound(family, seed):
    model = built(family, seed)
    weights = weights_of(model)
    bound = score_bound(weights)
    scores, attention = scores_of(model, adversaries(weights, 16, seed))
    largest = scores.abs().amax((1, 2))
    # The model's rotary tables, norms and gains are rounded to float32.
    assert (largest <= bound * (1 + 64 * 2.0**-24)).all()
    differences = score_bound(weights, differences=True)
    limit = prenorm_bound(differences, 16, window=weights.window)
    measured = torch.linalg.matrix_norm(attention, 2)
    assert (measured <= limit * (1 + 64 * 2.0**-24)).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_scores_with_layer_norm_and_biases_are_within_the_bound(seed, scale):
    model = _gpt2()
    scores, _ = scores_of(model, scale * random(8, 24, seed=seed))
    assert (scores.abs().amax((1, 2)) <= score_bound(weights_of(model))).all()


_CACHE: list[PreTrainedModel] = []


def _gpt2() -> PreTrainedModel:
    if not _CACHE:
        _CACHE.append(built("gpt2", 0))
    return _CACHE[0]


def test_bound_without_the_biases_is_false():
    """Large query and key biases: the source's M, which leaves them out, is far exceeded."""
    model = built("gpt2", 0)
    attention = model.transformer.h[0].attn
    with torch.no_grad():
        attention.c_attn.bias[:48] = 50.0
    weights = weights_of(model)
    bare = replace(weights, query_bias=None, key_bias=None, shift=None)
    scores, _ = scores_of(model, random(8, 24, seed=0))
    assert scores[0].abs().max() > 10 * score_bound(bare)[0]
    assert (scores.abs().amax((1, 2)) <= score_bound(weights)).all()


def test_stretched_rotary_tables_exceed_the_bound_of_plain_ones():
    """One direction, nothing else: plain RoPE would attain M, YaRN gives m^2 M."""
    model = built("llama", 0)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.input_layernorm.weight.fill_(1)
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.bias.zero_()
            projection.weight.zero_()
            projection.weight[0, 0] = 1
    weights = weights_of(model)
    assert weights.rotary is not None and weights.rotary > 1
    stream = torch.eye(24, dtype=torch.float64)[:1].expand(4, -1) * 1e3
    largest = scores_of(model, stream)[0][0].max()
    plain = score_bound(replace(weights, rotary=1.0))[0]
    assert largest > 1.1 * plain
    torch.testing.assert_close(largest, score_bound(weights)[0], rtol=64 * 2.0**-24, atol=0)


def test_one_head_of_olmo_may_own_the_norm_of_all():
    """The norm spans 8 heads of 16: scale * d_h = 4 is no bound, scale * d_h * 8 is attained."""
    options = {**SMALL, "hidden_size": 16, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = AutoConfig.for_model("olmo2", **{**options, "head_dim": 16})
    model = AutoModelForCausalLM.from_config(config).eval().double()
    model.config._attn_implementation = "scores_test"
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.zero_()
            projection.weight[:16] = torch.eye(16)
    weights = weights_of(model)
    per_head = weights.scaling * 16
    stream = 1e4 * random(1, 16, seed=0).expand(4, -1)
    scores, _ = scores_of(model, stream)
    assert scores[0].max() > 7.9 * per_head
    assert scores[0].max() <= score_bound(weights)[0] * (1 + 2.0**-23)
    assert abs(score_bound(weights)[0] / (8 * per_head) - 1) <= 8 * ROUNDOFF
