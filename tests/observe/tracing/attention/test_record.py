import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from layerlab.observe.tracing.attention.record import AttentionRecord


def random(heads=4, kv_heads=2, tokens=12, width=8, seed=0, **options):
    draw = torch.Generator().manual_seed(seed)
    return AttentionRecord(
        layer=0,
        name="attention",
        scaling=width**-0.5,
        query=torch.randn(heads, tokens, width, generator=draw),
        key=torch.randn(kv_heads, tokens, width, generator=draw),
        value=torch.randn(kv_heads, tokens, width, generator=draw),
        **options,
    )


@given(
    heads=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 20),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_weights_times_values_is_torchs_attention(heads, tokens, causal, seed):
    record = random(heads, max(1, heads // 2), tokens, seed=seed, causal=causal)
    expected = scaled_dot_product_attention(
        record.query[None], record.key[None], record.value[None], is_causal=causal, enable_gqa=True
    )[0]
    index = [record.kv_head(head) for head in range(heads)]
    error = tokens * torch.finfo(torch.float32).eps * record.value.abs().max() * 8
    assert (record.weights() @ record.value[index] - expected).abs().max() <= error


def test_tiles_put_together_are_the_matrix():
    record = random()
    parts = [record.weights(rows=slice(start, start + 5)) for start in range(0, 12, 5)]
    error = 12 * torch.finfo(torch.float32).eps
    assert (torch.cat(parts, 1) - record.weights()).abs().max() <= error
    tile = record.weights(slice(1, 3), slice(4, 7))
    assert (tile - record.weights()[1:3, 4:7]).abs().max() <= error


@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_window_allows_the_last_keys_only(window):
    allowed = random(window=window).allowed_keys()[0]
    for row in range(12):
        keys = allowed[row].nonzero().flatten().tolist()
        assert keys == list(range(max(0, row - window + 1), row + 1))


def test_a_boolean_mask_and_its_additive_form_agree():
    mask = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1)) < 0.6
    mask |= torch.eye(12, dtype=torch.bool)
    additive = torch.zeros(1, 12, 12).masked_fill(~mask, torch.finfo(torch.float32).min)
    boolean = random(bias=mask, causal=False).weights()
    assert torch.equal(boolean, random(bias=additive, causal=False).weights())


def test_rows_may_share_one_line_of_a_mask():
    bias = torch.arange(12.0)[None, None]
    for shared in (bias, bias > 2):
        record = random(bias=shared, causal=False)
        whole = random(bias=shared.expand(1, 12, 12), causal=False).weights()
        parts = [record.weights(rows=slice(start, start + 5)) for start in range(0, 12, 5)]
        assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-6)


def test_sinks_take_probability_and_give_no_value():
    record = random(sinks=torch.tensor([0.0, 1.0, 2.0, 30.0]))
    sums = record.weights().sum(-1)
    assert not record.sums_to_one and (sums < 1).all()
    assert (sums[3] < 1e-6).all() and (sums[0] > sums[3]).all()


def test_a_softcap_bounds_what_the_softmax_sees_but_not_the_logits():
    record = random(softcap=0.1)
    seen = record.masked_scores()
    assert seen[seen > -torch.inf].abs().max() <= 0.1
    assert record.logits().abs().max() > 0.1


def test_scores_of_a_family_that_hides_its_factors_give_the_same_weights():
    record = random()
    scores = record.logits().masked_fill(~record.allowed_keys(), torch.finfo(torch.float32).min)
    seen = AttentionRecord(layer=0, name="attention", scores=scores)
    assert torch.equal(seen.weights(), record.weights())
    assert (seen.heads, seen.tokens, seen.keys) == (4, 12, 12)


def test_asking_for_weights_leaves_the_record_as_it_was():
    scores = random().logits()
    seen = AttentionRecord(layer=0, name="attention", scores=scores.clone())
    seen.weights()
    assert torch.equal(seen.logits(), scores)
