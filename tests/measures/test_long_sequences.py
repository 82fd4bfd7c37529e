"""What attention costs as a sequence grows: memory by the token, scores by the window.

No accelerator is needed: numbers are counted where they are made.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from layerlab.measures.quantities.spectrum import spectrum
from layerlab.measures.runner import readings
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.plugins import resolve
from tests.measures.asked import subject
from tests.measures.regime import record
from tests.support.live_bytes import live_bytes

pytestmark = pytest.mark.full

WINDOW = 32
PRODUCTS = ("aten.mm.default", "aten.bmm.default")


class Scores(TorchDispatchMode):
    """The numbers that products of matrices give."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += result.numel() if str(func) in PRODUCTS else 0
        return result


def masked(tokens: int, boolean: bool = True) -> AttentionRecord:
    """A sliding window as sdpa is given it: a matrix of all rows and keys."""
    allowed = torch.ones(1, tokens, tokens, dtype=torch.bool).tril().triu(1 - WINDOW)
    bias: Tensor = allowed
    if not boolean:
        bias = torch.zeros(1, tokens, tokens).masked_fill(~allowed, torch.finfo().min)
    return replace(record("local", tokens), causal=False, bias=bias)


def scores_per_token(attended: AttentionRecord, dense: int) -> float:
    with Scores() as found:
        spectrum(attended, dense=dense)
    return found.count / attended.tokens


@pytest.mark.parametrize("dense", [0, 4096])
@pytest.mark.parametrize("boolean", [True, False])
def test_the_scores_of_a_window_that_a_mask_says_grow_with_the_tokens(dense, boolean):
    """Before, twice as many tokens took 1.8 times the scores for each."""
    short, long = (scores_per_token(masked(tokens, boolean), dense) for tokens in (512, 1024))
    assert long < 1.3 * short
    said = replace(record("local", 1024), window=WINDOW)
    assert long == scores_per_token(said, dense)


def test_streamed_attention_holds_no_more_than_twice_for_twice_the_tokens():
    peaks = []
    for tokens in (512, 1024, 2048):
        attended = record("init", tokens)
        with live_bytes([attended.query, attended.key]) as found:
            spectrum(attended, dense=0)
        peaks.append(found.peak)
    assert all(long < 2.2 * short for short, long in pairwise(peaks))
    # All heads' matrices in float32 are 48 MiB.
    assert peaks[-1] < 3 * 2048**2 * 4 / 4


@pytest.mark.full
def test_a_long_sequence_takes_memory_by_the_token(tiny):
    """From the embedding to the rows of the table, with the model's own pass."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = tiny("llama", max_position_embeddings=2**15, num_hidden_layers=1, **heads)
    peaks = []
    for tokens in (4224, 8448):
        with live_bytes([*model.parameters(), *model.buffers()]) as found:
            sequences = [torch.arange(tokens) % 61]
            rows = readings(subject(model), sequences, resolve(["spectrum", "attention"])).rows
        assert len(rows["spectrum"]) == model.config.num_attention_heads
        peaks.append(found.peak)
    assert peaks[1] < 2.2 * peaks[0]
    # A byte for every second pair of tokens; the matrices of both heads take eight for each.
    assert peaks[1] < 8448**2 / 2
