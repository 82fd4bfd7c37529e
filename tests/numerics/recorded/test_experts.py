"""Records of mixtures of experts: a token that rounding sends to another expert is no bug."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

from layerlab.numerics.profiles.profile import load_profile
from layerlab.numerics.profiles.real_runs import prepare_model
from layerlab.numerics.recorded.record import TokenRecord
from tests.numerics.recorded.recording import EAGER, find, record

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.05,
}
TEXTS, TOKENS = 3, 150
VLLM = load_profile("vllm")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**SIZES)).eval()


@pytest.fixture(scope="module")
def logits(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Texts, and what torch makes of them in bf16."""
    torch.manual_seed(1)
    engine = prepare_model(model, "sdpa")
    texts = [torch.randint(3, 300, (TOKENS,)) for _ in range(TEXTS)]
    with torch.no_grad():
        return [(ids, engine(input_ids=ids[None]).logits[0]) for ids in texts]


def recorded(logits: list[tuple[Tensor, Tensor]], temperature: float = 1.0) -> list[TokenRecord]:
    read = {id(ids): rows.double() / temperature for ids, rows in logits}
    return record([ids for ids, _ in logits], lambda ids: read[id(ids)])


@pytest.mark.parametrize("real", [True, False])
def test_tokens_of_other_experts_are_no_bug(
    model: nn.Module, logits: list[tuple[Tensor, Tensor]], real: bool
) -> None:
    found = find(model, recorded(logits), [EAGER, VLLM, load_profile("torch-sdpa")], real)
    print(found)
    assert not found.is_bug and not found.outliers and found.excess == 0
    if real:
        assert found.best[0].name == "torch-sdpa" and found.candidates[0].share > 0.99


@pytest.mark.parametrize("real", [True, False])
def test_a_token_that_is_wrong_is_still_found(
    model: nn.Module, logits: list[tuple[Tensor, Tensor]], real: bool
) -> None:
    records = recorded(logits)
    values = list(records[1].logprobs)
    values[40] = values[40] - 3.0  # type: ignore[operator]
    records[1] = TokenRecord(token_ids=records[1].token_ids, logprobs=tuple(values))
    found = find(model, records, [EAGER, load_profile("torch-sdpa")], real)
    assert found.is_bug and [(one.text, one.place) for one in found.outliers] == [(2, 40)]


def test_a_mistake_is_named_though_experts_change(
    model: nn.Module, logits: list[tuple[Tensor, Tensor]]
) -> None:
    found = find(model, recorded(logits, 0.8), [EAGER, VLLM])
    print(found)
    assert found.cause is not None and found.cause.name.startswith("temperature 0.")
    assert "none that was tried" not in str(found)
