"""Squared ReLU against Arcee, which is Llama with this feed-forward."""

import pytest

from layerlab.model.cost.cost import account
from tests.model.small import small
from tests.variants.relative import gives_their_logits

NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_with_the_weights_of_arcee_it_gives_its_logits(implementation):
    gives_their_logits("arcee", "relu2", NORMS, implementation)


def test_it_has_as_many_weights_as_the_gated_baseline():
    sizes = {"width": 96, "inner": None}
    one, other = (small(name, device="meta", **sizes).config for name in ("relu2", "llama"))
    assert one.intermediate_size == 384 and other.intermediate_size == 256
    assert (
        account(one.parse_spec(), one.shape()).blocks
        == account(other.parse_spec(), other.shape()).blocks
    )
