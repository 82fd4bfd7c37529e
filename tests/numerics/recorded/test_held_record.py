"""Digits that an engine stores are told by what they leave, and are no bug."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from layerlab.numerics.recorded.record import TokenRecord
from tests.numerics.recorded.recording import CANDIDATES, find, load_shallow, record


def store(values: Tensor) -> Tensor:
    """Values of fp8 with a scale a row."""
    scale = values.float().abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return ((values.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


@pytest.mark.full
def test_weights_in_fp8_are_no_bug_and_their_format_is_named(model, pieces):
    engine = load_shallow("sdpa")
    with torch.no_grad():
        for name, weight in engine.named_parameters():
            if "proj" in name:
                weight.copy_(store(weight))
    read = record(pieces, lambda ids: engine(input_ids=ids[None]).logits[0])
    found = find(model, read, CANDIDATES[:1])
    assert found.cause is not None and not found.is_bug
    assert found.cause.name == "weights quantized to fp8_e4m3:channel"
    assert str(found).startswith("quantization, no bug: weights quantized to fp8_e4m3:channel")


class CacheInFp8(DynamicCache):
    def update(self, keys, values, *args, **kwargs):
        kept = [one.to(torch.float8_e4m3fn).to(one.dtype) for one in (keys, values)]
        return super().update(*kept, *args, **kwargs)


@pytest.mark.full
def test_a_cache_in_fp8_is_named(model, pieces):
    engine = load_shallow("sdpa")

    def read(ids: Tensor) -> Tensor:
        cache = CacheInFp8(config=engine.config)
        logits: Tensor = engine(input_ids=ids[None], past_key_values=cache).logits[0]
        return logits

    found = find(model, record(pieces, read), CANDIDATES[:1])
    assert found.cause is not None and found.cause.name == "cache quantized to fp8_e4m3"
    assert not found.is_beyond and not found.is_bug


@pytest.mark.full
def test_nothing_is_quantized_where_nothing_was(model, pieces):
    engine = load_shallow("eager")

    def read(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = engine(input_ids=ids[None]).logits[0]
        return logits

    found = find(model, record(pieces, read), CANDIDATES[:2])
    assert not found.is_bug and found.cause is None and not found.causes


@pytest.mark.full
def test_zeros_of_masked_tokens_are_named(model, pieces):
    engine, masked = load_shallow("sdpa"), slice(20, 40)
    records = []
    for one in record(pieces, lambda ids: engine(input_ids=ids[None]).logits[0]):
        values = list(one.logprobs)
        values[masked] = [0.0] * len(values[masked])
        records.append(TokenRecord(token_ids=one.token_ids, logprobs=tuple(values)))
    found = find(model, records, CANDIDATES[:1])
    assert found.cause is not None
    assert found.cause.name == "0 recorded of masked tokens or padding (write null there)"
    missing = [
        TokenRecord(
            token_ids=one.token_ids,
            logprobs=tuple(None if value == 0 else value for value in one.logprobs),
        )
        for one in records
    ]
    assert not find(model, missing, CANDIDATES[:1]).is_bug
