from collections import Counter
from dataclasses import replace

import pytest
import torch

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing import device_schedule
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.verify_weights import verify_weights
from tests.measures.family import built, layers
from tests.measures.head import random
from tests.support.host_reads import Counts, counted

WRONG = ("query", "key", "value", "output", "gain")


@pytest.fixture
def cut_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)


def count(*given: object) -> tuple[HeadWeights, Counts]:
    with counted() as counts:
        found = verify_weights(*given)  # type: ignore[arg-type]
    return found, counts


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "bloom", "qwen3", "cohere qk"])
def test_the_host_waits_once_for_the_weights_of_a_layer(family, cut_for_an_accelerator):
    """Before, up to 18 times, and the host sent four lists of rows."""
    weights, *given = layers(built(family))[-1]
    for part in (None, *WRONG):
        wrong = {} if part is None else {part: getattr(weights, part).flip(0)}
        _, counts = count(replace(weights, **wrong), *given)
        assert sum(counts.reads.values()) == 1, counts.reads
        assert +counts.copies == Counter()


def grouped(heads: int) -> tuple[HeadWeights, AttentionRecord, torch.Tensor, torch.Tensor]:
    """Heads of 8 features at 300 tokens, two for each key, and what their attention gives."""
    width = 32
    z = random(300, width, seed=0).float()
    query, key, value = (
        random(count, 8, width, seed=seed).float() / width**0.5
        for seed, count in enumerate((heads, heads // 2, heads // 2), 1)
    )
    output = random(heads, width, 8, seed=4).float()
    attended = AttentionRecord(
        layer=0, name="attention", query=z @ query.mT, key=z @ key.mT, value=z @ value.mT
    )
    values = attended.of_kv_heads(z @ value.mT)
    left = (attended.weights() @ values @ output.mT).sum(0)
    weights = HeadWeights(
        layer=0, name="attention", scaling=1.0, query=query, key=key, value=value, output=output
    )
    return weights, attended, z, left


def test_operations_do_not_grow_with_the_heads(cut_for_an_accelerator):
    """Before, 11 more for each head and each part of the rows."""
    (few, some), (many, more) = (count(*grouped(heads)) for heads in (2, 16))
    assert not few.refused and not many.refused
    assert few.attained is not None and many.attained is not None
    assert (len(few.attained), len(many.attained)) == (2, 16)
    assert sum(some.operations.values()) == sum(more.operations.values()) <= 620


@pytest.mark.parametrize("part", [None, "query", "key", "value", "output"])
def test_heads_are_verified_alike_where_one_fits_at_a_time(part, monkeypatch):
    weights, *given = grouped(8)
    if part is not None:
        weights = replace(weights, **{part: getattr(weights, part).flip(0)})
    whole, together = count(weights, *given)
    cramped = replace(device_schedule.ACCELERATOR, block_bytes=8, tile_bytes=8)
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", cramped)
    alone, one_by_one = count(weights, *given)
    assert set(alone.refused) == {part} - {None} and alone.refused == whole.refused
    assert one_by_one.operations["aten.bmm.default"] > together.operations["aten.bmm.default"]
    if alone.attained is None or whole.attained is None:
        assert part is not None
    else:
        assert torch.allclose(alone.attained, whole.attained, rtol=1e-5)


def test_an_output_is_not_refused_with_the_value_that_it_reads():
    weights, attended, entered, left = grouped(2)
    assert weights.value is not None and weights.output is not None
    wrong = replace(weights, value=-weights.value, output=-weights.output)
    assert set(verify_weights(wrong, attended, entered, left).refused) == {"value"}


@pytest.mark.parametrize("family", ["mpt", "gpt_neo"])
def test_scores_that_are_widened_are_held_against_the_precision_of_their_factors(family):
    for weights, *given in layers(built(family, torch.bfloat16)):
        assert given[0].scores.dtype == torch.float32
        assert "query" not in verify_weights(weights, *given).refused
        wrong = replace(weights, query=weights.query.flip(0))
        assert "query" in verify_weights(wrong, *given).refused
