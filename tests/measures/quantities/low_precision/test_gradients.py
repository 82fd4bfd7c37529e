"""Gradients of the loss that is meant, whatever a model of transformers calls its loss."""

from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import layerlab
from tests.families import recipe
from tests.measures.quantities.low_precision.test_rounding import measured

TOKENS = torch.arange(3, 43)[None]
SMALL = {"vocab_size": 96, "d_model": 32, "pad_token_id": 0, "dropout": 0.0}
DECODER: dict[str, Any] = {
    "is_decoder": True,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
MODELS = {
    # Without a shift in their own loss.
    "bart": lambda: transformers.BartForCausalLM(transformers.BartConfig(**SMALL, **DECODER)),
    "xlnet": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(
            vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=48, attn_type="uni", dropout=0.0
        )
    ),
    "mixtral": lambda: _balanced(),
    "gpt2": lambda: recipe.build("gpt2"),
    "git": lambda: recipe.build("git"),  # whose own loss wants a picture
}


def _balanced() -> Any:
    """Return a model whose own loss has a part that balances its experts."""
    model = recipe.build("mixtral")
    model.config.output_router_logits = True
    return model


def norm(model: Any, *, shift: bool) -> float:
    """The norm of all gradients of the loss of the next token, or of the same."""
    logits = model(TOKENS, use_cache=False).logits[0]
    logits, wanted = (logits[:-1], TOKENS[0, 1:]) if shift else (logits, TOKENS[0])
    grown = torch.autograd.grad(
        cross_entropy(logits, wanted), list(model.parameters()), allow_unused=True
    )
    return sum(float(one.double().square().sum()) for one in grown if one is not None) ** 0.5


def told(model: Any) -> tuple[float, list[str]]:
    found = layerlab.inspect(
        model, input_ids=TOKENS, measures="gradients(tokens=40)", formats="bf16", progress=False
    )
    size = float(found.frame("gradients").norm.pow(2).sum() ** 0.5)
    return size, found.measures["gradients"]["notes"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_the_next_token(name):
    transformers.set_seed(0)
    model = MODELS[name]().eval()
    size, notes = told(model)
    assert size == pytest.approx(norm(model, shift=True), rel=1e-4)
    assert notes == []


@pytest.mark.full
def test_the_loss_of_logits_that_have_seen_the_next_token_is_of_their_own():
    transformers.set_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(vocab_size=96, intermediate_size=48, **shape)
    model = transformers.BertForMaskedLM(config).eval()
    size, notes = told(model)
    assert size == pytest.approx(norm(model, shift=False), rel=1e-4)
    assert any("of each token itself" in str(one) for one in notes)


@pytest.mark.parametrize("measure", ["rounding", "gradients", "attribution"])
def test_a_model_without_a_head_has_no_errors_of_logits(measure):
    found = measured(recipe.build("gpt2").transformer, measure)
    assert found.refused[measure] == "it gives no logits"
