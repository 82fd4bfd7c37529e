"""Attention that is routed through ours keeps the name that a model's own code knows it by."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab.numerics.emulation.policies.attention_dtype import PREFIX, RoutedName, answer, attends
from tests.families.recipe import FAMILIES, TOKENS, UNBUILT, build

# Attention by an index of keys, masked under known names alone; a mask given by its keyword.
SAMPLE = ("deepseek_v32", "dots3_note_text", "glm_moe_dsa", "afmoe", "doge", "gemma3", "llama")
REST = sorted(set(FAMILIES) - set(UNBUILT) - set(SAMPLE))


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    words = torch.randint(10, 64, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    return model(input_ids=words, use_cache=False).logits


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "family", [*SAMPLE, *(pytest.param(one, marks=pytest.mark.full) for one in REST)]
)
def test_a_route_alone_changes_no_bit(family):
    model = build(family)
    before = logits(model)
    answer(model)
    assert torch.equal(logits(model), before)
    # The code that runs is ours where the model asks for it by name.
    asking = [one for one in model.modules() if attends(one) and hasattr(one, "config")]
    assert all(isinstance(one.config._attn_implementation, RoutedName) for one in asking)


def test_a_routed_name_equals_its_own_and_finds_ours():
    answer(build("llama"))
    name = RoutedName("sdpa")
    for one in (name, copy.deepcopy(name), pickle.loads(pickle.dumps(name)), RoutedName(name)):
        assert one == "sdpa" and "sdpa" == one and one in ("eager", "sdpa") and one == name
        assert one != "eager" and not one != "sdpa" and one == PREFIX + "sdpa"
        assert f"{one}" == str(one) == "sdpa"
        for interface in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            assert interface[one] is interface[PREFIX + "sdpa"]
    assert ALL_ATTENTION_FUNCTIONS[name] is not ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_routing_twice_is_routing_once():
    model = build("llama")
    before = logits(model)
    for _ in range(2):
        answer(model)
    assert torch.equal(logits(model), before)
