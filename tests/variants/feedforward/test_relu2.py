"""Squared ReLU against Arcee, which is Llama with this feed-forward."""

import pytest
import torch

from layerlab.model.cost.cost import account
from tests.model.small import small
from tests.variants.relative import ours, published, words

NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_with_the_weights_of_arcee_it_gives_its_logits(implementation: str) -> None:
    theirs = published("arcee")
    model = ours("relu2", theirs, NORMS)
    theirs.set_attn_implementation(implementation)
    model.set_attn_implementation(implementation)
    assert torch.equal(model(words()).logits, theirs(words()).logits)


def test_it_has_as_many_weights_as_the_gated_baseline() -> None:
    sizes = {"width": 96, "inner": None}
    one, other = (small(name, device="meta", **sizes).config for name in ("relu2", "llama"))
    assert one.intermediate_size == 384 and other.intermediate_size == 256
    assert (
        account(one.parsed(), one.shape()).blocks == account(other.parsed(), other.shape()).blocks
    )
