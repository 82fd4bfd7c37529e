"""Published implementations with random weights, and ours with the same weights."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab.model.build import build
from layerlab.model.modeling import LabForCausalLM

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "ffn.gate",
    "mlp.up_proj": "ffn.up",
    "mlp.down_proj": "ffn.down",
}


def published(family: str, **changes: object) -> PreTrainedModel:
    """A tiny model of a family of transformers, with noise on every weight, norms too."""
    config = AutoConfig.for_model(family, **{**SIZES, **changes})
    generator = torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def ours(
    name: str,
    theirs: PreTrainedModel,
    norms: Mapping[str, str],
    change: Callable[[str, Tensor], Tensor] = lambda key, value: value,
    **options: object,
) -> LabForCausalLM:
    """Our variant with their weights; `norms` names ours by theirs, `change` converts a value."""
    model = build(
        name, width=48, layers=3, heads=4, kv_heads=2, vocab=61, context=32, inner=128, **options
    )
    state = {}
    for key, value in theirs.state_dict().items():
        new = key
        for old, name_here in {**NAMES, **norms}.items():
            new = new.replace(f".{old}.", f".{name_here}.")
        state[new] = change(key, value)
    model.load_state_dict(state)
    return model


def words() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 61, (2, 20), generator=generator)


def gives_their_logits(
    family: str, name: str, norms: Mapping[str, str], implementation: str
) -> None:
    """Check that with the weights of a family our variant gives its logits bit for bit."""
    theirs = published(family)
    model = ours(name, theirs, norms)
    for one in (theirs, model):
        one.set_attn_implementation(implementation)
    assert torch.equal(model(words()).logits, theirs(words()).logits)
