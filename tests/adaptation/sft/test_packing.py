"""Packed is separate: blocks are full, positions start again, and nobody sees a neighbour."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask
from transformers.modeling_flash_attention_utils import _is_packed_sequence

from layerlab import build
from layerlab.adaptation.sft.dataset import answer_loss
from layerlab.adaptation.sft.encode import Example
from layerlab.adaptation.sft.packing import Collator, best_fit
from layerlab.adaptation.sft.train import mean_loss
from layerlab.adaptation.trainer.separation import check_separation
from layerlab.corpus.batches import IGNORED
from layerlab.loading.batching import find_batching
from tests.evaluation.candidate import candidate
from tests.loading.test_batching import LONGROPE
from tests.support.refused import refuses

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 64}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "llama": LLAMA,
    "qwen3": {**LLAMA, "head_dim": 8},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}
OURS = ("llama", "pangu-pi", "history-3", "canon")
BOTH = ("sdpa", "eager")
PACKED = ("packed conversations", "packing", 4)


def made(name: str, implementation: str = "sdpa") -> Any:
    """A model with noise on every parameter, in float64."""
    kind, _, own = name.partition(":")
    if kind == "ours":
        model: Any = build(own, **SIZES)
    else:
        options = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, **FAMILIES[kind]}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.2 * torch.randn(one.shape, generator=generator))
    model.set_attn_implementation(implementation)
    return model.double().eval()


def example(length: int, seed: int) -> Example:
    generator = np.random.default_rng(seed)
    answer = generator.random(length) < 0.5
    answer[0], answer[-1] = False, True
    return Example(generator.integers(0, 64, length).astype(np.int32), answer, (length,))


EXAMPLES = [example(length, length) for length in (7, 12, 3, 9)]
NAMES = [*FAMILIES, *(f"ours:{name}" for name in OURS)]


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_packed_logits_are_those_of_each_alone(name, implementation):
    model = made(name, implementation)
    # Where attention is written out, transformers takes its softmax in float32.
    unit = torch.finfo(torch.float32 if implementation == "eager" else torch.float64).eps
    collator = Collator(filler=5)
    rows = collator([EXAMPLES[:2], EXAMPLES[2:]])
    with torch.no_grad():
        packed = model(**rows, use_cache=False).logits
        for row, pair in zip(packed, (EXAMPLES[:2], EXAMPLES[2:]), strict=True):
            at = 0
            for one in pair:
                ids = torch.from_numpy(one.ids.astype(np.int64))[None]
                alone = model(input_ids=ids, use_cache=False).logits[0]
                found = row[at : at + len(one.ids)]
                # Sums of at most 64 terms, a dozen of them behind each other.
                limit = 64 * 12 * unit * float(alone.abs().max())
                assert float((found - alone).abs().max()) <= limit
                at += len(one.ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_a_packed_batch_is_the_mean_over_the_tokens_of_all(name):
    model = made(name)
    count = sum(int(one.answer.sum()) for one in EXAMPLES)

    def loss(rows: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = rows.pop("labels")
        return mean_loss(model, model(**rows, use_cache=False), labels, count)

    packed = loss(Collator(5)([EXAMPLES[:2], EXAMPLES[2:]]))
    parts = [loss(Collator(5, packed=False)([[one]])) for one in EXAMPLES]
    assert packed.item() == pytest.approx(sum(one.item() for one in parts), rel=1e-12)
    separate = []
    for one in EXAMPLES:
        rows = Collator(5, packed=False)([[one]])
        loss_alone = model(**rows, use_cache=False).loss.item()
        separate.append(loss_alone * int(one.answer.sum()))
    assert packed.item() == pytest.approx(sum(separate) / count, rel=1e-6)
    gradients = [torch.autograd.grad(one, list(model.parameters())) for one in (packed, sum(parts))]
    for left, right in zip(*gradients, strict=True):
        assert torch.allclose(left, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_keep_conversations_apart_are_accepted(name, dtype):
    model = made(name).to(dtype).train()
    check_separation(model, *PACKED)
    assert model.training


def test_a_fresh_model_is_accepted(tiny):
    for family in ("llama", "gpt2"):
        check_separation(tiny(family), *PACKED)
    check_separation(build("pangu-pi", **SIZES), *PACKED)


def test_a_model_that_ignores_positions_is_refused():
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2))
    deaf = model.forward
    model.forward = lambda position_ids=None, **rest: deaf(**rest)
    error = refuses("does not keep packed conversations apart", check_separation, model, *PACKED)
    assert "; set packing to false, or" in error


def test_a_model_whose_positions_alone_start_again_is_refused():
    """Positions start again, but an own mask lets everything be seen."""
    model = made("llama")
    whole = model.forward

    def seeing(input_ids: torch.Tensor, **rest: Any) -> Any:
        size = input_ids.shape[1]
        mask = torch.ones(size, size).tril().bool()[None, None]
        return whole(input_ids=input_ids, attention_mask=mask, **rest)

    model.forward = seeing
    refuses("does not keep packed conversations apart", check_separation, model, *PACKED)


def test_a_model_whose_mask_alone_starts_again_is_refused():
    """Nobody sees a neighbour, and yet a text stands elsewhere than by itself."""
    model = made("gpt2")
    whole = model.forward

    def placing(input_ids: torch.Tensor, position_ids: torch.Tensor, **rest: Any) -> Any:
        own = (position_ids == 0).cumsum(-1)
        size = input_ids.shape[1]
        mask = torch.ones(size, size).tril().bool() & (own[:, :, None] == own[:, None, :])
        return whole(input_ids=input_ids, attention_mask=mask[:, None], **rest)

    model.forward = placing
    refuses("does not keep packed conversations apart", check_separation, model, *PACKED)


def test_a_model_that_sees_a_neighbour_a_little_is_refused(tiny):
    model = tiny("llama", initializer_range=0.5)

    def leak(module: Any, given: Any, options: Any, found: Any) -> None:
        found.logits += 1e-6 * options["input_ids"].cumsum(-1)[..., None]

    model.register_forward_hook(leak, with_kwargs=True)
    refuses("does not keep packed conversations apart", check_separation, model, *PACKED)


def flatten(module: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> Any:
    """Attention that restarts where flash attention of transformers does, without its kernels."""
    positions, rows = rest.pop("position_ids"), len(query)
    mask = torch.ones(query.shape[2], query.shape[2], device=query.device).tril().bool()[None, None]
    if _is_packed_sequence(positions, rows):
        own = (positions == 0).cumsum(-1)
        mask = mask & (own[:, None, :, None] == own[:, None, None, :])
    return sdpa_attention_forward(module, query, key, value, mask, **rest)


def test_attention_that_restarts_in_a_pass_of_one_row_alone_is_refused_for_more():
    AttentionInterface.register("flattened", flatten)
    AttentionMaskInterface.register("flattened", flash_attention_mask)
    model = made("llama", "flattened")
    check_separation(model, *PACKED[:2], 1)
    error = refuses("does not keep packed conversations apart", check_separation, model, *PACKED)
    assert "; set micro_batch_size to 1, packing to false, or" in error


def test_a_model_that_gives_no_numbers_is_refused_as_that(tiny):
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    refuses("LlamaForCausalLM gives logits that are not finite", check_separation, model, *PACKED)


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=60))
def test_best_fit_places_each_once_and_wastes_little(lengths):
    found = best_fit(lengths, 40)
    assert sorted(one for block in found for one in block) == list(range(len(lengths)))
    sums = [sum(lengths[one] for one in block) for block in found]
    assert all(0 < one <= 40 for one in sums)
    assert len(found) <= 11 / 9 * -(-sum(lengths) // 40) + 4 or any(2 * one > 40 for one in lengths)
    # A block is begun only for an example that no earlier one had room for.
    for later, block in enumerate(found):
        assert all(sums[one] + lengths[block[0]] > 40 for one in range(later))


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.lists(st.integers(2, 9), max_size=4), min_size=1, max_size=3))
def test_rows_hold_all_tokens_labels_and_positions(shape):
    rows = [
        [example(length, length + 10 * place) for length in row] for place, row in enumerate(shape)
    ]
    batch = Collator(filler=63)(rows)
    assert {one.shape for one in batch.values()} == {
        (len(rows), max(2, *(sum(row) for row in shape), 2))
    }
    for ids, labels, positions, row in zip(
        batch["input_ids"], batch["labels"], batch["position_ids"], rows, strict=True
    ):
        size = sum(len(one.ids) for one in row)
        expected = [number for one in row for number in range(len(one.ids))]
        assert positions.tolist() == [*expected, *range(len(positions) - size)]
        assert ids.tolist()[:size] == [token for one in row for token in one.ids.tolist()]
        learned = [token for one in row for token in one.ids[one.answer].tolist()]
        assert labels[labels != IGNORED].tolist() == learned
        assert labels[(positions == 0)].eq(IGNORED).all(), "nothing predicts a first token"
    assert "position_ids" not in Collator(63, packed=False)(rows)


@pytest.mark.parametrize("packed", [True, False])
def test_a_held_out_loss_does_not_depend_on_the_batch(packed):
    model = candidate(rope_parameters=LONGROPE).model
    given = [example(length, length) for length in (9, 60, 30, 48, 49)]
    collator, own = Collator(0, packed), find_batching(model, "right")
    alone, together = (
        answer_loss(model, given, collator, batching=own, precision=nullcontext, batch=batch)
        for batch in (1, 5)
    )
    assert together == pytest.approx(alone, rel=1e-5)
