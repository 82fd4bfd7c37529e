"""What prompts begin with alike is run once, and no logit is another for it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    JambaConfig,
    MambaConfig,
    PreTrainedModel,
    RecurrentGemmaConfig,
    RwkvConfig,
)

import layerlab
from layerlab.evaluation.harness.prefix_cache import WORTH, Forward
from layerlab.system.logs import quiet_libraries
from layerlab.system.model_cache import cache_of
from tests.evaluation.candidate import candidate

# float32, a few hundred terms: thousands of roundings of 6e-8 at the very most.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def batch(lengths: list[int], alike: int) -> torch.Tensor:
    """Rows that begin alike, padded with zeros."""
    draw = torch.Generator().manual_seed(alike)
    width = max(lengths)
    rows = torch.randint(0, 300, (len(lengths), width), generator=draw)
    rows[:, :alike] = rows[0, :alike].clone()
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = 0
    return rows


def agree(forward: Forward, ids: torch.Tensor, lengths: list[int], need: int) -> None:
    """Every logit that may be asked for is that of the plain forward pass."""
    with torch.no_grad():
        whole = forward.model(ids).logits
    found = forward(ids, need)
    cut = ids.shape[1] - found.shape[1]
    for row, length in enumerate(lengths):
        wanted = whole[row, length - need : length]
        torch.testing.assert_close(found[row, length - need - cut : length - cut], wanted, **CLOSE)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return candidate().model


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(40, 60), min_size=2, max_size=5), st.integers(0, 40), st.integers(1, 5))
def test_logits_are_those_of_a_plain_pass(model, lengths, alike, need):
    forward = Forward(model)
    for _ in range(2):  # the first batch proves the cache, the second uses it
        agree(forward, batch(lengths, alike), lengths, need)


def test_a_shared_beginning_is_run_once(model):
    forward = Forward(model)
    ids = batch([60] * 8, 50)
    forward(ids, 1)
    assert forward.share and forward.passed == ids.numel()
    forward(ids, 1)
    assert forward.passed == ids.numel() + 50 + 8 * 10


def test_a_batch_has_the_same_logits_whether_or_not_it_is_the_first(model):
    forward = Forward(model)
    ids = batch([60, 40, 30], 20)
    first, again = forward(ids, 4), forward(ids, 4)
    assert forward.passed < forward.tokens * 2 and torch.equal(first, again)


@pytest.mark.parametrize("variant", ["pangu-pi", "gpt2", "value-residual", "canon"])
def test_no_logit_of_a_variant_is_another(variant):
    model = layerlab.build(variant, width=32, layers=2, heads=4, vocab=300, context=64).eval()
    forward = Forward(model)
    for _ in range(2):
        agree(forward, batch([50, 48, 44], 30), [50, 48, 44], 2)


def test_a_cache_that_gives_other_logits_is_not_used(model, monkeypatch):
    forward = Forward(model)
    run = forward._run

    def wrong(ids: torch.Tensor, keep: int, **options: object) -> torch.Tensor:
        return run(ids, keep, **options) + ("use_cache" in options)

    monkeypatch.setattr(forward, "_run", wrong)
    agree(forward, batch([40, 40], 30), [40, 40], 1)
    assert not forward.share
    agree(forward, batch([40, 40], 30), [40, 40], 1)


STATES = [
    MambaConfig(vocab_size=300, hidden_size=16, state_size=4, num_hidden_layers=2),
    RwkvConfig(vocab_size=300, hidden_size=16, num_hidden_layers=2, context_length=64),
    RecurrentGemmaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        lru_width=16,
        attention_window_size=64,
    ),
    JambaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        use_mamba_kernels=False,
    ),
]


@pytest.mark.parametrize("config", STATES, ids=lambda config: config.model_type)
def test_a_model_with_a_recurrent_state_is_run_plainly(config):
    with quiet_libraries():
        torch.manual_seed(0)
        forward = Forward(AutoModelForCausalLM.from_config(config).eval())
        for _ in range(2):
            agree(forward, batch([50, 48, 44], 30), [50, 48, 44], 2)
    assert not forward.share and forward.passed == forward.tokens


@pytest.mark.parametrize("fault", [AttributeError, NotImplementedError, IndexError, RuntimeError])
def test_a_cache_that_cannot_be_repeated_is_not_used(model, monkeypatch, fault):
    def refuse(*given: object) -> None:
        raise fault("not for this cache")

    monkeypatch.setattr("transformers.DynamicCache.batch_repeat_interleave", refuse)
    forward = Forward(model)
    agree(forward, batch([40, 40], 30), [40, 40], 1)
    assert not forward.share


def test_a_lack_of_memory_is_no_fault_of_the_cache(model, monkeypatch):
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("transformers.DynamicCache.batch_repeat_interleave", full)
    with pytest.raises(torch.OutOfMemoryError):
        Forward(model)(batch([40, 40], 30), 1)


def test_a_plain_pass_keeps_no_keys_and_values(model):
    kept = []
    handle = model.register_forward_hook(lambda *given: kept.append(cache_of(given[-1])))
    forward, ids = Forward(model), batch([60] * 8, 50)
    forward(ids[:1], 1)
    forward(ids, 1)
    handle.remove()
    assert [one is None for one in kept] == [True, False, False, True]


def test_a_short_beginning_is_not_worth_it(model):
    forward = Forward(model)
    ids = batch([40, 40], WORTH - 1)
    ids[1, WORTH - 1] = (ids[0, WORTH - 1] + 1) % 300
    forward(ids, 1)
    assert forward.passed == ids.numel() and not forward._proven


def test_tokens_that_are_zero_at_an_end_are_not_cut(model):
    ids = batch([40, 40], 35)
    ids[:, 36:] = 0  # tokens, not padding
    agree(Forward(model), ids, [40, 40], 2)
