"""Scalings of rotations that one side applies alone are named, and are gone behind the record."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from layerlab.numerics.recorded.rotary_scaling import SCALINGS, scale_rotations
from tests.numerics.recorded.recording import CANDIDATES, find, record

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
LLAMA3 = {
    **PLAIN,
    **SCALINGS["scaled as llama3 by 8"],
    "original_max_position_embeddings": 64,
}
YARN = {**PLAIN, **SCALINGS["scaled as yarn by 4"], "original_max_position_embeddings": 64}


def make(rotations: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rotations)).eval()


@pytest.mark.full
@pytest.mark.parametrize(
    ("mine", "theirs", "name"),
    [
        (PLAIN, YARN, "rotations scaled as yarn by 4"),
        (LLAMA3, PLAIN, "rotations without the scaling (llama3) of the configuration"),
        (PLAIN, LLAMA3, "rotations scaled as llama3 by 8"),
        (YARN, PLAIN, "rotations without the scaling (yarn) of the configuration"),
    ],
)
def test_a_scaling_on_one_side_alone_is_named(mine, theirs, name):
    own, engine = make(mine), make(theirs)
    before = {key: one.clone() for key, one in own.named_buffers()}
    texts = [torch.randint(3, 300, (60,)) for _ in range(2)]

    def read(ids: Tensor) -> Tensor:
        return engine(input_ids=ids[None]).logits[0]

    found = find(own, record(texts, read), CANDIDATES[:2])
    assert found.is_bug and found.cause is not None and found.cause.name == name
    assert found.forwards <= 30
    torch.testing.assert_close(dict(own.named_buffers()), before, rtol=0, atol=0)
    assert own.model.rotary_emb.attention_scaling == make(mine).model.rotary_emb.attention_scaling


def test_what_does_not_rotate_is_not_scaled():
    assert list(scale_rotations(torch.nn.Linear(2, 2))) == []


def test_heads_whose_width_is_not_told_are_scaled_as_others():
    """Mixtral's configuration says by default nothing of it, and means an equal share."""
    sizes = {**SIZES, "num_local_experts": 2, "num_key_value_heads": 2, "rope_parameters": PLAIN}
    found = []
    for width in (None, 32):
        model = MixtralForCausalLM(MixtralConfig(**sizes, head_dim=width))
        assert model.config.head_dim == width
        read = {name: model.model.rotary_emb.inv_freq.clone() for name in scale_rotations(model)}
        assert list(read) == [f"rotations {one}" for one in SCALINGS]
        found.append(read)
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.full
def test_the_token_of_the_beginning_twice_is_named():
    own = make(PLAIN)
    own.config.bos_token_id = 1
    first = torch.tensor([1])
    texts = [torch.cat([first, torch.randint(3, 300, (50,))]) for _ in range(2)]

    def read(ids: Tensor) -> Tensor:
        logits: Tensor = own(input_ids=torch.cat([first, ids])[None]).logits[0]
        return logits[1:]

    found = find(own, record(texts, read), CANDIDATES[:2])
    assert found.cause is not None and found.cause.name == "the token of the beginning twice"
