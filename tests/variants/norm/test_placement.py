"""Peri-LN against Gemma 2, the output norm against OLMo 2."""

import pytest
import torch
from torch import Tensor

from tests.model.small import shaken, small, tokens
from tests.variants.relative import gives_their_logits, ours, published, words

OUTPUT_NORMS = {
    "post_attention_layernorm": "attention_norm",
    "post_feedforward_layernorm": "ffn_norm",
}
PERI_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_norm_out",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "ffn_norm_out",
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_output_norm_with_the_weights_of_olmo_2_gives_its_logits(implementation):
    gives_their_logits("olmo2", "output-norm", OUTPUT_NORMS, implementation)


def test_peri_ln_with_the_weights_of_gemma_2_gives_its_logits():
    theirs = published(
        "gemma2",
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        query_pre_attn_scalar=12,
        hidden_activation="silu",
        sliding_window=64,
    )
    theirs.set_attn_implementation("eager")

    def change(key: str, value: Tensor) -> Tensor:
        """Gains are stored less 1 there, and the embedding is scaled at each use."""
        if key.endswith("embed_tokens.weight"):
            return value * torch.tensor(48**0.5)
        return 1.0 + value if "norm" in key else value

    model = ours("peri-ln", theirs, PERI_NORMS, change, embedding_norm="none")
    model.set_attn_implementation("eager")
    assert torch.equal(model(words()).logits, theirs(words()).logits)


def test_what_peri_ln_adds_to_the_stream_has_the_size_of_its_gain():
    model = small("peri-ln")
    states = model(tokens(), output_hidden_states=True).hidden_states
    # Embedding norm: mean square 1; each of two sublayers then adds a vector of mean square 1.
    # Cauchy-Schwarz: the root mean square grows by at most 2 in each layer.
    for layer, state in enumerate(states[:-1]):
        size = state.square().mean(-1).sqrt()
        assert size.max() <= (1 + 2 * layer) * (1 + 1e-6)
    assert states[0].square().mean(-1).sqrt().min() > 0.99


def test_the_embedding_norm_of_peri_ln_may_be_left_out():
    model = small("peri-ln", embedding_norm="none")
    kept = {name for name, _ in small("peri-ln").named_parameters()}
    assert kept - {name for name, _ in model.named_parameters()} == {"model.embedding_norm.weight"}
    assert not torch.equal(
        shaken(model)(tokens()).logits, shaken(small("peri-ln"))(tokens()).logits
    )
