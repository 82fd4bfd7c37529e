import warnings
from dataclasses import replace

import pytest
import torch
from accelerate import disk_offload
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from layerlab.loading.weights.by_layer import project_layers
from layerlab.observe.architecture.head_weights import project
from layerlab.observe.architecture.qkv_layouts import layout
from layerlab.observe.architecture.structure import anatomy, text_config
from layerlab.observe.tracing.verify_weights import faults, verify_weights
from tests.families import recipe
from tests.measures.family import FAMILIES, LLAMA, built, layers

# What must be refused; everything else must be found, and agree.
REFUSED = {
    "bloom": {"scores"},
    "mpt": {"scores"},
    "falcon alibi": {"scores"},
    "qwen3_next": {"output"},
    "bitnet": {"output"},
    "deepseek_v3": {"query", "key", "value", "output"},
}
NO_FRONT = {"openai-gpt", "opt post", "olmo2", "deepseek_v3"}


@pytest.mark.few(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_give_the_queries_keys_values_and_outputs_of_the_model(family):
    found = layers(built(family))
    assert found
    for number, (weights, attended, entered, left) in enumerate(found):
        assert set(weights.refused) == REFUSED.get(family, set())
        contradicted = faults(weights, attended, entered, left)
        assert not contradicted or set(weights.refused) == {"scores"}, contradicted
        for part in {"query", "key", "value", "output"} - set(weights.refused):
            assert getattr(weights, part) is not None
        assert (weights.gain is None) == (
            family in NO_FRONT and (number == 0 or family in ("olmo2", "deepseek_v3"))
        )


def test_heads_give_what_a_trained_model_multiplied(data):
    model = AutoModelForCausalLM.from_pretrained(data / "model-stories260K" / "hf").eval()
    found = layers(model)
    assert len(found) == model.config.num_hidden_layers
    for weights, attended, entered, left in found:
        assert not weights.refused and not faults(weights, attended, entered, left)


def test_weights_that_wait_on_disk_are_fetched(tmp_path):
    model = built("llama bias")
    stack, config = anatomy(model), text_config(model)
    part = stack.attentions[1]
    here = project(stack.blocks[1], part, config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disk_offload(model, str(tmp_path), torch.device("cpu"))
    assert part.module.q_proj.weight.device.type == "meta"
    away = project(stack.blocks[1], part, config=config)
    for name in ("query", "key_bias", "output", "gain"):
        assert torch.equal(getattr(away, name), getattr(here, name))
    assert away.matrices.keys() == here.matrices.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["llama yarn", "gpt2", "cohere qk", "gemma2"])
def test_the_check_allows_the_rounding_of_every_precision(family, dtype):
    for weights, attended, entered, left in layers(built(family, dtype)):
        assert weights.gain is not None
        assert not faults(weights, attended, entered, left)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "llama yarn", "qwen3", "olmo2", "gptj"])
def test_a_wrong_cut_of_the_queries_is_refused(family):
    weights, attended, entered, left = layers(built(family))[1]
    assert weights.query is not None
    wrong = replace(weights, query=weights.query.flip(0), query_bias=None)
    assert "query" in verify_weights(wrong, attended, entered, left).refused
    assert verify_weights(wrong, attended, entered, left).query is None
    inside = replace(weights, query=weights.query.roll(1, 1))
    assert "query" in verify_weights(inside, attended, entered, left).refused


@pytest.mark.parametrize(
    ("field", "part"),
    [("value", "value"), ("output", "output"), ("key", "key"), ("gain", "gain")],
)
def test_every_other_wrong_part_is_refused(field, part):
    weights, attended, entered, left = layers(built("gpt2"))[1]
    wrong = getattr(weights, field).flip(0)
    found = verify_weights(replace(weights, **{field: wrong}), attended, entered, left)
    assert set(found.refused) == {part}
    assert getattr(found, field) is None


def test_a_wrong_scale_is_refused():
    for family in ("gpt2", "qwen3"):
        weights, attended, entered, left = layers(built(family))[0]
        wrong = replace(weights, scaling=weights.scaling * 2)
        assert "query" in verify_weights(wrong, attended, entered, left).refused


def test_an_input_of_another_length_is_refused():
    weights, attended, entered, left = layers(built("gpt2"))[0]
    assert "tokens" in verify_weights(weights, attended, entered[:-1], left[:-1]).refused["query"]


def test_the_window_that_was_seen_replaces_the_one_that_was_read():
    weights, attended, entered, _ = layers(built("mistral"))[0]
    assert weights.window == 8
    seen = replace(attended, window=5)
    assert verify_weights(weights, seen, entered).window == 5


def test_layers_of_two_kinds_have_the_windows_that_their_rows_show():
    model = recipe.build("exaone4").eval()
    kinds = {"sliding_attention": 8, "full_attention": None}
    wanted = [kinds[one] for one in model.config.layer_types]
    assert [one.window for one in project_layers(model)] == wanted
    assert len(set(wanted)) == 2


def test_rows_that_choose_their_keys_have_no_bound_on_the_norm():
    last = list(project_layers(recipe.build("qwen4_exp_text")))[-1]
    assert last.query is not None and "chooses" in last.refused["scores"]


def test_a_reason_known_before_the_trace_is_kept():
    weights, attended, entered, _ = layers(built("mistral"))[0]
    known = replace(weights, window=None, refused={"scores": "known before"})
    holes = torch.zeros(1, attended.tokens, attended.tokens)
    holes[:, 5:, 2] = -torch.inf
    found = verify_weights(known, replace(attended, bias=holes), entered)
    assert found.refused["scores"] == "known before"


def test_rows_that_use_other_keys_than_expected_leave_no_bound_on_the_norm():
    weights, attended, entered, left = layers(built("gpt2"))[0]
    assert "scores" not in verify_weights(weights, attended, entered, left).refused
    holes = torch.zeros(1, attended.tokens, attended.tokens)
    holes[:, 5:, 2] = -torch.inf
    found = verify_weights(weights, replace(attended, bias=holes), entered)
    assert "keys" in found.refused["scores"]


def test_an_added_bias_leaves_no_bound_on_the_scores():
    weights, attended, entered, _ = layers(built("gpt2"))[0]
    slope = torch.arange(attended.tokens, dtype=torch.float32).expand(1, attended.tokens, -1)
    found = verify_weights(weights, replace(attended, bias=slope), entered)
    assert found.refused == {"scores": "a bias is added to the scores"}


@pytest.mark.parametrize("name", ["granite", "granitemoe", "granitemoeshared"])
def test_a_factor_on_scores_may_be_written_as_a_whole_number(name):
    config = recipe.build(name).config
    config.attention_multiplier = 1
    found = layers(AutoModelForCausalLM.from_config(config).eval())
    assert found
    for weights, attended, entered, left in found:
        assert weights.scaling == attended.scaling == 1
        assert not faults(weights, attended, entered, left)


def test_rotary_factor_is_that_of_the_models_own_tables():
    model = built("llama yarn")
    for weights, *_ in layers(model):
        assert weights.rotary == model.model.rotary_emb.attention_scaling > 1
    assert layers(built("llama"))[0][0].rotary == 1
    assert layers(built("gpt2"))[0][0].rotary is None


def test_experts_stay_one_matrix_of_three_axes():
    shapes = {name: m.ndim for name, m in layers(built("mixtral"))[0][0].matrices.items()}
    assert 3 in shapes.values() and shapes["self_attn.q_proj.weight"] == 2


def test_grouped_heads_keep_their_own_count():
    weights = layers(built("llama"))[0][0]
    assert weights.query is not None and weights.key is not None
    assert (len(weights.query), len(weights.key)) == (4, 2)


class StrangeAttention(nn.Module):
    """A fused projection that no table knows."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.head_dim = 4
        self.add_module(part, nn.Linear(8, 24))
        self.o_proj = nn.Linear(8, 8)


@pytest.mark.parametrize("part", ["query_key_value", "Wqkv", "mystery_proj"])
def test_an_unknown_layout_is_refused_and_not_guessed(part):
    module = StrangeAttention(part)
    config = AutoConfig.for_model("llama", **LLAMA)
    found = layout(nn.ModuleDict({"attention": module}), module, config)
    assert found.query is None and "StrangeAttention" in found.refused["query"]
