"""Value residuals against their equation, and the carry and cache under them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from layerlab.model.modeling import LabForCausalLM
from layerlab.system.model_cache import read_on
from tests.model.small import SIZES, shaken, small, tokens

FORMS = ("identity", "learned", "shared")
ROUNDING = 1e-12  # float64: some hundred operations of 1e-16 each


def values(model: LabForCausalLM, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What each layer's attention reads, and the values that it keeps in the cache."""
    read: list[Tensor] = []
    handles = [
        layer.attention.register_forward_pre_hook(lambda module, given: read.append(given[0]))
        for layer in model.model.layers
    ]
    cache = DynamicCache(config=model.config)
    read_on(model, ids, cache)
    for handle in handles:
        handle.remove()
    return read, [layer.values for layer in cache.layers]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("form", FORMS)
def test_values_are_what_the_equation_says(form, kv_heads):
    model = shaken(
        small("value-residual", kv_heads=kv_heads, attention={"form": form, "bias": "qkv"})
    )
    read, found = values(model, tokens())
    first = model.model.layers[0].attention.value(read[0])
    for number, (layer, x, kept) in enumerate(zip(model.model.layers, read, found, strict=True)):
        attention: Any = layer.attention
        if number == 0 or form == "shared":
            expected = first
        elif form == "identity":
            expected = 0.5 * first + 0.5 * attention.value(x)
        else:
            expected = attention.mix[0] * first + attention.mix[1] * attention.value(x)
        heads = [kept[:, head] for head in range(kv_heads)]
        torch.testing.assert_close(torch.cat(heads, -1), expected, rtol=0, atol=ROUNDING)


def test_learned_numbers_start_as_halves():
    fixed, learned = small("value-residual"), small("value-residual", form="learned")
    assert torch.equal(fixed(tokens()).logits, learned(tokens()).logits)
    names = [name for name, _ in learned.named_parameters() if name.endswith("mix")]
    assert len(names) == SIZES["layers"] - 1


def test_the_shared_form_has_one_value_matrix_and_the_first_layer_no_mix():
    names = [name for name, _ in small("value-residual", form="shared").named_parameters()]
    held = [name for name in names if name.endswith("attention.value.weight")]
    assert held == ["model.layers.0.attention.value.weight"]


def test_one_layer_is_llama_bit_for_bit():
    for form in FORMS:
        one = shaken(small("value-residual", layers=1, form=form))
        plain = shaken(small("llama", layers=1))
        assert torch.equal(one(tokens()).logits, plain(tokens()).logits)
