import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from layerlab.observe.tracing.attention.record import AttentionRecord, group_alike, join


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


@st.composite
def records(draw):
    """A record of any rules, and the matrix that they say, entry by entry."""
    tokens, older = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    causal = draw(st.booleans())
    window = draw(st.none() | st.integers(1, 9)) if causal else None
    seed, kind = (
        draw(st.integers(0, 99)),
        draw(st.sampled_from(["none", "bool", "lowest", "added"])),
    )
    generator = torch.Generator().manual_seed(seed)
    query, key = (
        torch.randn(size, 4, generator=generator, dtype=torch.float64).expand(heads, -1, -1)
        for heads, size in ((4, tokens), (2, tokens + older))
    )
    shape = (draw(st.sampled_from([1, 4])), tokens, tokens + older)
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    scores = (query @ key.repeat_interleave(2, 0).mT) * 0.3
    for head in range(4):
        for row in range(tokens):
            for column in range(tokens + older):
                one, place = bias[head % shape[0], row, column], row + older
                if kind == "added":
                    scores[head, row, column] += one
                ahead, behind = causal and column > place, column <= place - (window or 99)
                masked = kind in ("bool", "lowest") and one > 1 and column != place
                if ahead or behind or masked:
                    scores[head, row, column] = -torch.inf
    # A key that is its own is never masked, so that each row has one.
    own = torch.eye(tokens, tokens + older, dtype=torch.bool).roll(older, -1)
    seen = (bias <= 1) | own
    given = {
        "none": None,
        "added": bias,
        "bool": seen,
        "lowest": torch.zeros_like(bias).masked_fill(~seen, torch.finfo(bias.dtype).min * 0.9),
    }[kind]
    record = AttentionRecord(
        layer=0,
        name="attention",
        scaling=0.3,
        query=query,
        key=key,
        bias=given,
        causal=causal,
        window=window,
    )
    return record, scores.softmax(-1)


@given(drawn=records(), rows=st.tuples(st.integers(0, 8), st.integers(1, 9)))
@settings(max_examples=200)
def test_weights_are_those_of_the_rules_entry_by_entry(drawn, rows):
    record, expected = drawn
    part = slice(rows[0], sum(rows))
    found = record.weights(slice(1, 3), part, torch.float64)
    torch.testing.assert_close(found, expected[1:3, part])
    allowed = record.allowed_keys(slice(1, 3), part).expand_as(found)
    assert torch.equal(allowed, expected[1:3, part] > 0)


def test_records_are_joined_that_differ_in_nothing_but_their_numbers():
    mask = torch.zeros(1, 12, 12)
    alike = [random(seed=seed, sinks=torch.arange(4.0)) for seed in range(2)]
    other = [
        random(),  # sinks are another rule
        random(window=3),
        random(softcap=1.0),
        random(causal=False),
        random(bias=mask),
        random(bias=mask.clone()),
        random(bias=mask.expand(4, -1, -1)),
        random(tokens=11),
    ]
    groups = group_alike([alike[0], *other, alike[1], other[5]])
    assert [0, 9] in groups and [6, 10] in groups and len(groups) == len(other) + 1
    headed = random(bias=mask.expand(4, -1, -1))
    assert group_alike([headed, headed]) == [[0], [1]]
    whole = join(alike).weights()
    torch.testing.assert_close(whole, torch.cat([one.weights() for one in alike]))
