"""What a text was read beside, or its positions counted from, is found in what was recorded."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from tests.numerics.recorded.recording import CANDIDATES, find, record

PAD = 3


@pytest.fixture(scope="module")
def learned() -> Any:
    """A model with learned positions that matter."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=128,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=PAD,
    )
    return GPT2LMHeadModel(config).eval()


def pad(ids: Tensor, texts: list[Tensor]) -> tuple[Tensor, int]:
    """Fill a text up on the left to the length of the longest."""
    more = max(map(len, texts)) - len(ids)
    return torch.cat([ids.new_full((more,), PAD), ids]), more


def read_offset(model: Any, ids: Tensor, texts: list[Tensor]) -> Tensor:
    places = torch.arange(2, len(ids) + 2)
    return model(input_ids=ids[None], position_ids=places[None]).logits[0]


def read_counted(model: Any, ids: Tensor, texts: list[Tensor]) -> Tensor:
    """Mask padding, and count positions from its beginning."""
    whole, more = pad(ids, texts)
    mask = torch.arange(len(whole)) >= more
    places = torch.arange(len(whole))
    logits: Tensor = model(
        input_ids=whole[None], attention_mask=mask[None].long(), position_ids=places[None]
    ).logits[0, more:]
    return logits


def read_attended(model: Any, ids: Tensor, texts: list[Tensor]) -> Tensor:
    whole, more = pad(ids, texts)
    return model(input_ids=whole[None]).logits[0, more:]


def read_packed(model: Any, ids: Tensor, texts: list[Tensor]) -> Tensor:
    at = next(number for number, one in enumerate(texts) if one is ids)
    before = [one for one in texts[:at]]
    return model(input_ids=torch.cat([*before, ids])[None]).logits[0, -len(ids) :]


CONTEXTS: dict[str, tuple[Callable[[Any, Tensor, list[Tensor]], Tensor], str]] = {
    "offset": (read_offset, "learned positions off by +2"),
    "counted": (read_counted, "learned positions that count padding on the left"),
    "attended": (read_attended, "padding on the left attended to"),
    "packed": (read_packed, "the texts before each attended to"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONTEXTS)
def test_what_a_text_was_read_beside_is_named(learned, name):
    read, cause = CONTEXTS[name]
    texts = [torch.arange(20, 20 + size) for size in (40, 31, 25)]
    before = {key: one.clone() for key, one in learned.named_parameters()}
    engine = copy.deepcopy(learned).to(torch.bfloat16)
    found = find(learned, record(texts, lambda ids: read(engine, ids, texts)), CANDIDATES[:2])
    assert found.is_bug and found.cause is not None and found.cause.name == cause
    assert found.forwards <= 30
    torch.testing.assert_close(dict(learned.named_parameters()), before, rtol=0, atol=0)


@pytest.mark.full
def test_texts_that_the_model_cannot_read_at_once_were_not_read_beside_each_other(learned):
    texts = [torch.arange(20, 20 + size) for size in (70, 60)]
    read = record(texts, lambda ids: 2 * learned(input_ids=ids[None]).logits[0])
    names = [one.name for one in find(learned, read, CANDIDATES[:1]).causes]
    assert "padding on the left attended to" in names
    assert "the texts before each attended to" not in names
