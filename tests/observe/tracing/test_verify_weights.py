from collections import Counter
from dataclasses import replace

import pytest
import torch

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing import device_schedule
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.verify_weights import verify_weights
from tests.measures.family import built, layers
from tests.measures.support.head import random
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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("wrong", [None, "heads", "entries", "inputs", "sign"])
def test_scores_of_wide_heads_in_bfloat16_tell_a_wrong_cut(wrong, biased):
    heads, width, tokens = 8, 512, 40
    z = random(tokens, width, seed=0).bfloat16()
    query, key = ((random(heads, 64, width, seed=seed) / width**0.5).bfloat16() for seed in (1, 2))
    scores = ((z @ query.mT) @ (z @ key.mT).mT / 8).float()
    if biased:  # ALiBi: of the last token with the first, as of the first with itself
        scores[:, -1] += torch.arange(tokens)
    attended = AttentionRecord(layer=0, name="attention", scores=scores, biased=biased)
    cuts = {
        None: query,
        "heads": query.flip(0),
        "entries": query.flip(1),
        "inputs": query.roll(1, 2),
        "sign": -query,
    }
    weights = HeadWeights(layer=0, name="attention", scaling=1 / 8, query=cuts[wrong], key=key)
    if biased:
        weights = replace(weights, refused={"scores": "a bias is added to the scores"})
    refused = verify_weights(weights, attended, z).refused
    assert ("query" in refused) == (wrong is not None)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("window", [None, 7])
def test_what_is_attained_is_the_largest_product_of_inputs_of_norm_one(sign, window):
    weights, attended, entered, *_ = grouped(16)
    assert weights.query is not None and weights.key is not None
    entered[5] = 0
    query, key = entered @ weights.query.mT, entered @ weights.key.mT
    weights = replace(weights, scaling=0.5 * sign)
    attended = replace(attended, query=query, key=key, scaling=0.5 * sign, window=window)
    found = verify_weights(weights, attended, entered)
    assert found.attained is not None and found.window == window and not found.refused
    unit = torch.nn.functional.normalize(entered, dim=-1)
    place = torch.arange(len(entered))
    past = (place <= place[:, None]) & (place > place[:, None] - (window or len(entered)))
    for head, one in enumerate(found.attained):
        products = (unit @ weights.query[head].T) @ (unit @ weights.key[head // 2].T).T
        assert float(one) == pytest.approx(float(products[past].abs().max()), rel=1e-5)
    # What is clipped is not the weights' alone.
    assert verify_weights(replace(weights, clip=1e3), attended, entered).attained is None


def test_outputs_of_two_heads_in_the_place_of_each_other_are_refused():
    weights, *given = grouped(16)
    assert weights.output is not None
    swapped = weights.output[[1, 0, *range(2, 16)]]
    assert set(verify_weights(replace(weights, output=swapped), *given).refused) == {"output"}


def turn(features: torch.Tensor, start: int) -> torch.Tensor:
    """Rotate pairs of a head's entries by the place of each token."""
    one, other = features.chunk(2, -1)
    angle = (torch.arange(features.shape[1])[:, None] + start) / torch.tensor([1.0, 5, 25, 125])
    sine, cosine = angle.sin(), angle.cos()
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1)


@pytest.mark.parametrize("start", [0, 7, None])
def test_entries_that_are_turned_are_compared_where_they_are_not(start):
    weights, attended, entered, *_ = grouped(4)
    assert weights.query is not None and attended.query is not None and attended.key is not None
    turned = (
        turn(one, start or 3) if start != 0 else turn(one, 0)
        for one in (attended.query, attended.key)
    )
    attended = replace(attended, **dict(zip(("query", "key"), turned, strict=True)))
    weights = replace(weights, rotary=1.0)
    assert not verify_weights(weights, attended, entered, start=start).refused
    # Entries in another order have the same length, at every place.
    wrong = replace(weights, query=weights.query.flip(1))
    assert ("query" in verify_weights(wrong, attended, entered, start=start).refused) == (
        start == 0
    )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_an_input_that_no_norm_can_give_is_refused(norm):
    weights, attended, entered, *_ = grouped(2)
    width = entered.shape[-1]
    centred = entered - entered.mean(-1, keepdim=True) if norm == "layer" else entered
    normed = centred / centred.square().mean(-1, keepdim=True).sqrt()
    gain = torch.linspace(0.5, 2, width)
    weights = replace(weights, gain=gain, norm=norm, query=None, value=None, output=None)

    def is_refused(given: torch.Tensor) -> bool:
        return "gain" in verify_weights(weights, attended, given).refused

    assert not is_refused(gain * normed) and not is_refused(gain * normed * 0.5)
    assert is_refused(gain * normed * 1.01)
    lifted = (normed + 1) / 2  # its square is no larger, and its mean is not 0
    assert is_refused(gain * lifted) == (norm == "layer")


def test_a_key_that_one_head_may_not_use_is_told():
    weights, attended, entered, *_ = grouped(4)
    seen = torch.ones(4, 300, 300, dtype=torch.bool)
    assert not verify_weights(weights, replace(attended, bias=seen), entered).refused
    seen[2, 299, 17] = False
    refused = verify_weights(weights, replace(attended, bias=seen), entered).refused
    assert refused == {"scores": "row 299 uses 299 keys where 300 were expected"}
