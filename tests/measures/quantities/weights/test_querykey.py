import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab import UserError
from layerlab.errors import NotApplicable
from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.weights.querykey import (
    MEASURES,
    factored_spectrum,
    prenorm_bound,
    printed_bound,
    read,
)
from layerlab.observe.architecture.head_weights import SCALED, STRETCHED, HeadWeights, project
from layerlab.observe.architecture.structure import anatomy, text_config
from layerlab.observe.tracing.attained_scores import find_attained
from layerlab.observe.tracing.trace import trace
from layerlab.observe.tracing.verify_weights import verify_weights
from tests.measures.family import built as family_of
from tests.measures.support.head import built, causal_attention, random, weights_of

ROUNDOFF = 2.0**-53


def conditioned(rows: int, width: int, condition: float, seed: int) -> Tensor:
    """A matrix of norm 1 and a known condition."""
    left = torch.linalg.qr(random(rows, rows, seed=seed)).Q
    right = torch.linalg.qr(random(width, rows, seed=seed + 1)).Q
    values = torch.logspace(0, -math.log10(condition), rows, dtype=torch.float64)
    return left @ torch.diag(values) @ right.T


# The spectrum


@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(4, 40),
    heads=st.integers(1, 3),
    head_width=st.integers(1, 8),
    seed=st.integers(0, 999),
)
def test_spectrum_is_that_of_the_dense_form(width, heads, head_width, seed):
    rank = min(width, head_width)
    query = random(heads, rank, width, seed=seed)
    key = random(heads, rank, width, seed=seed + 1000)
    dense = torch.linalg.svdvals(key.mT @ query)[:, :rank]
    error = 8 * width * ROUNDOFF * dense[:, :1]
    assert ((factored_spectrum(query, key) - dense).abs() <= error).all()


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
def test_condition_of_ill_conditioned_heads_keeps_its_digits(condition):
    """A Gram matrix would square the condition and lose the smallest value to rounding."""
    width = 24
    same = conditioned(8, width, condition, seed=0)
    other = torch.linalg.qr(random(width, 8, seed=5)).Q.T
    values = factored_spectrum(same[None], other[None])[0]
    dense = torch.linalg.svdvals(other.T @ same)
    relative = 16 * width * ROUNDOFF * condition
    assert abs(values[-1] / dense[7] - 1) <= relative
    assert abs(values[0] / values[-1] / condition - 1) <= relative
    both = factored_spectrum(same[None], same[None])[0]
    assert abs(both[0] / both[-1] / condition**2 - 1) <= 16 * width * ROUNDOFF * condition**2


def test_query_heads_share_key_heads_in_order():
    query, key = random(6, 3, 10, seed=1), random(2, 3, 10, seed=2)
    values = factored_spectrum(query, key)
    for head in range(6):
        dense = torch.linalg.svdvals(key[head // 3].T @ query[head])[:3]
        torch.testing.assert_close(values[head], dense, rtol=1e3 * ROUNDOFF, atol=0)


def test_heads_that_cannot_share_are_refused():
    with pytest.raises(UserError, match="3 query heads cannot share 2 key heads"):
        factored_spectrum(random(3, 2, 4, seed=0), random(2, 2, 4, seed=1))


def test_a_broken_head_leaves_the_others_alone():
    query, key = random(2, 3, 8, seed=3), random(2, 3, 8, seed=4)
    whole = factored_spectrum(query, key)
    query[0, 1, 2] = torch.nan
    values = factored_spectrum(query, key)
    assert values[0].isnan().all() and torch.equal(values[1], whole[1])


@settings(max_examples=30, deadline=None)
@given(width=st.integers(2, 20), seed=st.integers(0, 999))
def test_absolute_norm_is_that_of_the_dense_form_and_never_below_the_norm(width, seed):
    query, key = random(2, 2, width, seed=seed), random(1, 2, width, seed=seed + 1000)
    dense = torch.linalg.matrix_norm(key.abs().mT @ query.abs(), 2)
    error = 16 * width * ROUNDOFF
    assert ((factored_spectrum(query.abs(), key.abs())[:, 0] / dense - 1).abs() <= error).all()
    assert (factored_spectrum(query, key)[:, 0] <= dense * (1 + error)).all()


# The bound on the attention norm


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 24),
    window=st.none() | st.integers(1, 12),
    limit=st.sampled_from([0.0, 0.01, 0.1, 1.0, 3.0, 20.0]),
    seed=st.integers(0, 999),
    adversary=st.booleans(),
)
def test_norm_of_causal_attention_is_within_the_bound(tokens, window, limit, seed, adversary):
    scores = limit * torch.tanh(3 * random(tokens, tokens, seed=seed))
    if adversary:  # every row prefers one key as much as the scores allow
        scores = torch.full((tokens, tokens), -limit, dtype=torch.float64)
        scores[:, 0 if window is None else seed % tokens] = limit
    attention = causal_attention(scores, window)
    bound = prenorm_bound(torch.tensor([limit]), tokens, window=window)[0]
    assert torch.linalg.matrix_norm(attention, 2) <= bound * (1 + 4 * tokens * ROUNDOFF)


def test_entries_attain_the_bound_on_their_column():
    """One key preferred by all: its column sum is what the bound is the root of."""
    tokens, limit = 16, 1.5
    scores = torch.full((tokens, tokens), -limit, dtype=torch.float64)
    scores[:, 0] = limit
    column = causal_attention(scores)[:, 0].sum()
    bound = prenorm_bound(torch.tensor([limit], dtype=torch.float64), tokens)[0]
    assert abs(column / bound**2 - 1) <= 4 * tokens * ROUNDOFF


def test_the_printed_bound_is_false_under_a_causal_mask():
    """Scores of at most 0.1, 128 tokens: the unmasked form says 1.10."""
    limit = torch.tensor([0.1])
    measured = torch.linalg.matrix_norm(causal_attention(torch.zeros(128, 128)), 2)
    assert measured > 1.4 * prenorm_bound(limit, 128, causal=False)[0]
    assert measured <= prenorm_bound(limit, 128)[0]


def test_bound_of_uniform_rows_is_the_root_of_the_harmonic_number():
    harmonic = sum(1 / i for i in range(1, 129))
    bound = prenorm_bound(torch.zeros(1, dtype=torch.float64), 128)[0]
    assert abs(bound**2 / harmonic - 1) <= 128 * ROUNDOFF


def test_bound_of_unlimited_scores_is_the_root_of_the_tokens_or_the_window():
    limit = torch.tensor([1e9])
    assert prenorm_bound(limit, 100).item() == 10
    assert prenorm_bound(limit, 100, window=25).item() == 5
    assert prenorm_bound(limit, 4, window=25).item() == 2


def test_a_window_wider_than_the_sequence_changes_nothing():
    limit = torch.tensor([0.3, 1.0])
    assert torch.equal(prenorm_bound(limit, 20), prenorm_bound(limit, 20, window=20))


def test_no_token_is_refused():
    with pytest.raises(UserError, match="tokens=0 is not a length"):
        prenorm_bound(torch.zeros(1), 0)


# The measure


def rows_of(weights: HeadWeights, **options: Any) -> tuple[list[dict[str, Any]], MeasureContext]:
    run = MeasureContext(options={"tokens": 16, **options})
    return list(read(weights, run)), run


def test_rows_hold_every_column_for_every_head():
    weights = weights_of(built("gpt2", 0))
    rows, run = rows_of(weights)
    names = [*MEASURES[0].per, *MEASURES[0].columns]
    assert [list(row) for row in rows] == [names] * 4
    assert list(run.notes) == ["attained"]
    assert weights.query is not None and weights.key is not None
    values = torch.linalg.svdvals(weights.key[2].double().T @ weights.query[2].double())
    assert math.isclose(rows[2]["norm"], values[0], rel_tol=1e3 * ROUNDOFF)
    assert math.isclose(rows[2]["smallest"], values[5], rel_tol=1e5 * ROUNDOFF)
    assert rows[2]["condition"] == rows[2]["norm"] / rows[2]["smallest"]
    assert rows[2]["norm"] <= rows[2]["abs_norm"]


def test_the_form_is_that_of_the_raw_weights():
    weights = weights_of(built("gpt2", 0))
    assert weights.gain is not None
    other = replace(weights, scaling=7.0, gain=3 * weights.gain)
    for one, two in zip(rows_of(weights)[0], rows_of(other)[0], strict=True):
        assert all(one[name] == two[name] for name in ("norm", "smallest", "condition", "abs_norm"))


def test_normed_queries_have_no_form_but_a_bound():
    rows, run = rows_of(weights_of(built("qwen3", 0)))
    assert all(math.isnan(row["norm"]) and math.isnan(row["abs_norm"]) for row in rows)
    assert all(row["score_bound"] > 0 and row["prenorm_bound"] >= 1 for row in rows)
    assert "QK-norm" in run.notes["norm"]


def test_rotary_bound_covers_every_distance():
    model = built("llama", 1)
    weights = weights_of(model)
    rows, _ = rows_of(weights)
    assert weights.query is not None and weights.key is not None
    rotary = model.model.rotary_emb
    positions = torch.tensor([[0, 1, 3, 17, 40]])
    cos, sin = (table[0].double() for table in rotary(torch.zeros(1, 5, 1).double(), positions))
    for head, row in enumerate(rows):
        query, key = weights.query[head].double(), weights.key[head // 2].double()
        turned = [_turned(query, cos[i], sin[i]) for i in range(5)]
        still = _turned(key, cos[0], sin[0])
        norms = [torch.linalg.matrix_norm(still.T @ part, 2).item() for part in turned]
        assert max(norms) <= row["rope_bound"] * (1 + 2.0**-20)


def _turned(weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = len(weight) // 2
    return cos[:, None] * weight + sin[:, None] * torch.cat([-weight[half:], weight[:half]])


def test_weights_without_a_norm_in_front_have_no_bound():
    rows, run = rows_of(replace(weights_of(built("gpt2", 0)), gain=None, shift=None, norm=None))
    assert all(math.isnan(row["score_bound"]) and row["norm"] > 0 for row in rows)
    assert "no norm in front" in run.notes["score_bound"]


def test_a_bias_on_the_scores_leaves_the_score_bound_only():
    weights = replace(weights_of(built("gpt2", 0)), refused={"scores": "a bias is added"})
    rows, run = rows_of(weights)
    assert all(row["score_bound"] > 0 and math.isnan(row["prenorm_bound"]) for row in rows)
    assert "a bias is added" in run.notes["prenorm_bound"]


@pytest.mark.parametrize("reason", [STRETCHED, SCALED])
def test_queries_that_are_stretched_or_scaled_have_no_bound(reason):
    weights = replace(weights_of(built("gpt2", 0)), refused={"scores": reason})
    rows, run = rows_of(weights)
    assert all(math.isnan(row["score_bound"]) and math.isnan(row["prenorm_bound"]) for row in rows)
    assert reason in run.notes["score_bound"]


def test_a_scale_behind_the_norm_on_the_query_is_seen():
    """Dory, of transformers 5.24, calls it so: its scores exceed what its norms alone bound."""
    model = built("llama", 0)
    model.model.layers[0].self_attn.sqk = torch.nn.Parameter(torch.ones(32))
    assert weights_of(model).refused == {"scores": SCALED}


def test_refused_weights_are_not_applicable_with_the_reason():
    weights = replace(weights_of(built("gpt2", 0)), query=None, refused={"query": "compressed"})
    with pytest.raises(NotApplicable, match="compressed"):
        rows_of(weights)


def test_without_a_length_the_context_of_the_model_is_taken():
    weights = weights_of(built("gpt2", 0))
    assert rows_of(weights, tokens=None)[0] == rows_of(weights, tokens=64)[0]


def test_printed_bound_ignores_the_scale_of_the_module_and_the_biases():
    weights = weights_of(built("gpt2", 0))
    other = replace(weights, scaling=9.0, query_bias=None, shift=None)
    assert torch.equal(printed_bound(weights, 16), printed_bound(other, 16))


def test_broken_weights_give_nan_and_no_crash():
    weights = weights_of(built("gpt2", 0))
    assert weights.query is not None
    broken = weights.query.clone()
    broken[1] = torch.inf
    rows, _ = rows_of(replace(weights, query=broken))
    assert math.isnan(rows[1]["norm"]) and rows[0]["norm"] > 0


@pytest.mark.parametrize(
    ("family", "length"),
    [("llama", 150), ("llama yarn", 150), ("llama", 24), ("gptj", 24), ("gpt_neo", 24)],
)
def test_what_is_attained_is_below_the_norm_at_the_distances_of_the_text(family, length):
    """The largest of all rows, though 128 are held at once."""
    model = family_of(family)
    tokens = torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(2))
    (row, *_), (weights, record, entered) = _seen(model, tokens)
    z = entered.double()
    limit = row["norm"] if weights.rotary is None else row["rope_bound"]
    assert 0 < row["attained"] <= limit * (1 + 2.0**-16)
    scores = record.logits(slice(0, 1))[0].double() / weights.scaling
    if weights.rotary is None:
        query, key = weights.query[0].double(), weights.key[0].double()
        plain = ((z @ query.T) @ (z @ key.T).T).tril()
        assert torch.allclose(scores.nan_to_num(neginf=0.0).tril(), plain, rtol=1e-3, atol=1e-4)
    sizes = z.norm(dim=1)
    hand = (scores.abs() / (sizes[:, None] * sizes)).nan_to_num(posinf=0.0).tril().max()
    assert row["attained"] == pytest.approx(float(hand), rel=1e-4)
    bare = entered.clone()
    bare[3] = 0  # what nothing enters attains nothing
    again = find_attained(weights, record, bare)
    assert again is not None and bool(again.isfinite().all())


def _seen(model: Any, tokens: Tensor) -> Any:
    """The rows of the first layer beside its weights, its attention and what that read."""
    stack, found = anatomy(model), list[Any]()
    trace(model, stack, [tokens], found.append)
    layer = next(one for one in found if one.layer == 0)
    part, entered = stack.attentions[0], layer.sublayers["attention"].entered
    given = project(stack.blocks[0], part, config=text_config(model))
    weights = verify_weights(given, layer.attention, entered)
    return rows_of(weights)[0], (weights, layer.attention, entered)


def test_nothing_is_attained_behind_biases_and_without_a_text():
    assert math.isnan(rows_of(weights_of(built("llama", 1)))[0][0]["attained"])
    (row, *_), _ = _seen(family_of("gpt2"), torch.arange(8))
    assert math.isnan(row["attained"])
