"""Records of mixtures of experts: a token that rounding sends to another expert is no bug."""

import shutil
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

from layerlab.api.gap import run_model
from layerlab.numerics.profiles.profile import load_profile
from layerlab.numerics.profiles.real_runs import COMPILERS, prepare_model, read_real
from layerlab.numerics.profiles.token_scores import TokenScores
from layerlab.numerics.recorded.held_record import EXACT, HeldRecord
from layerlab.numerics.recorded.mistakes import changing, find_rounded, round_down
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import HALF
from tests.numerics.recorded.recording import EAGER, find, record

pytestmark = pytest.mark.full

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
FEW = 3
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
def test_tokens_of_other_experts_are_no_bug(model, logits, real):
    found = find(model, recorded(logits), [EAGER, VLLM, load_profile("torch-sdpa")], real)
    assert not found.is_bug and not found.outliers and found.excess == 0
    if real:
        assert found.best[0].name == "torch-sdpa" and found.candidates[0].share > 0.99


@pytest.mark.parametrize("real", [True, False])
def test_a_token_that_is_wrong_is_still_found(model, logits, real):
    records = recorded(logits)
    values = list(records[1].logprobs)
    values[40] = values[40] - 3.0  # type: ignore[operator]
    records[1] = TokenRecord(token_ids=records[1].token_ids, logprobs=tuple(values))
    found = find(model, records, [EAGER, load_profile("torch-sdpa")], real)
    assert found.is_bug and [(one.text, one.place) for one in found.outliers] == [(2, 40)]


def test_a_mistake_is_named_though_experts_change(model, logits):
    found = find(model, recorded(logits, 0.8), [EAGER, VLLM])
    assert found.cause is not None and found.cause.name.startswith("temperature 0.")
    assert "none that was tried" not in str(found)


def test_experts_that_agree_by_chance_are_no_cast_of_the_model(model, logits):
    """A few tokens make most of a difference, and a cast model may send these where others do."""
    scores = TokenScores(model, [ids for ids, _ in logits], run_model)
    exact, whole = scores.read_each((EXACT, VLLM))
    with changing(find_rounded(model)[1], round_down):
        _, cast = scores.read_each((EXACT, VLLM))
    alike = (cast - exact).abs().topk(FEW).indices
    record = whole.clone()
    record[alike] = cast[alike]
    held = HeldRecord(scores, [VLLM], record, exact)
    assert held.explain(cast) > 1 - HALF**2  # of the squared difference
    assert held.try_rounded(0.0, [whole], []) == []
    assert len(HeldRecord(scores, [VLLM], cast, exact).try_rounded(0.0, [whole], [])) == 1


@pytest.mark.full
@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C++ compiler")
def test_what_a_compiler_says_of_routers_reaches_nobody(model):
    torch._dynamo.utils.warn_once_cache.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read_real(model, [torch.arange(3, 9)], load_profile("torch-compile"), run_model)
    assert not said
