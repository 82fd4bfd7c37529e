import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from layerlab import UserError
from layerlab.measures.anatomy import anatomy, text_config
from layerlab.measures.measure import NotApplicable, Run
from layerlab.measures.projection import LayerWeights, project
from layerlab.measures.querykey import (
    MEASURES,
    absolute_norm,
    factored_spectrum,
    prenorm_bound,
    printed_bound,
    read,
    score_bound,
)

ROUNDOFF = 2.0**-53
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
}


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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
def test_spectrum_is_that_of_the_dense_form(
    width: int, heads: int, head_width: int, seed: int
) -> None:
    rank = min(width, head_width)
    query = random(heads, rank, width, seed=seed)
    key = random(heads, rank, width, seed=seed + 1000)
    dense = torch.linalg.svdvals(key.mT @ query)[:, :rank]
    error = 8 * width * ROUNDOFF * dense[:, :1]
    assert ((factored_spectrum(query, key) - dense).abs() <= error).all()


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
def test_condition_of_ill_conditioned_heads_keeps_its_digits(condition: float) -> None:
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


def test_query_heads_share_key_heads_in_order() -> None:
    query, key = random(6, 3, 10, seed=1), random(2, 3, 10, seed=2)
    values = factored_spectrum(query, key)
    for head in range(6):
        dense = torch.linalg.svdvals(key[head // 3].T @ query[head])[:3]
        torch.testing.assert_close(values[head], dense, rtol=1e3 * ROUNDOFF, atol=0)


def test_heads_that_cannot_share_are_refused() -> None:
    with pytest.raises(UserError, match="3 query heads cannot share 2 key heads"):
        factored_spectrum(random(3, 2, 4, seed=0), random(2, 2, 4, seed=1))


def test_a_broken_head_leaves_the_others_alone() -> None:
    query, key = random(2, 3, 8, seed=3), random(2, 3, 8, seed=4)
    whole = factored_spectrum(query, key)
    query[0, 1, 2] = torch.nan
    values = factored_spectrum(query, key)
    assert values[0].isnan().all() and torch.equal(values[1], whole[1])


@settings(max_examples=30, deadline=None)
@given(width=st.integers(2, 20), seed=st.integers(0, 999))
def test_absolute_norm_is_that_of_the_dense_form_and_never_below_the_norm(
    width: int, seed: int
) -> None:
    query, key = random(2, 2, width, seed=seed), random(1, 2, width, seed=seed + 1000)
    dense = torch.linalg.matrix_norm(key.abs().mT @ query.abs(), 2)
    error = 16 * width * ROUNDOFF
    assert ((absolute_norm(query, key) / dense - 1).abs() <= error).all()
    assert (factored_spectrum(query, key)[:, 0] <= dense * (1 + error)).all()


def test_absolute_norm_of_weights_of_one_sign_is_their_norm() -> None:
    query, key = random(2, 3, 9, seed=6).abs(), random(2, 3, 9, seed=7).abs()
    assert torch.equal(absolute_norm(-query, key), factored_spectrum(query, key)[:, 0])


# The bound on the attention norm


def causal_attention(scores: Tensor, window: int | None = None) -> Tensor:
    tokens = scores.shape[-1]
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if window is not None:
        allowed &= ~torch.ones(tokens, tokens, dtype=torch.bool).tril(-window)
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 24),
    window=st.none() | st.integers(1, 12),
    limit=st.sampled_from([0.0, 0.01, 0.1, 1.0, 3.0, 20.0]),
    seed=st.integers(0, 999),
    adversary=st.booleans(),
)
def test_norm_of_causal_attention_is_within_the_bound(
    tokens: int, window: int | None, limit: float, seed: int, adversary: bool
) -> None:
    scores = limit * torch.tanh(3 * random(tokens, tokens, seed=seed))
    if adversary:  # every row prefers one key as much as the scores allow
        scores = torch.full((tokens, tokens), -limit, dtype=torch.float64)
        scores[:, 0 if window is None else seed % tokens] = limit
    attention = causal_attention(scores, window)
    bound = prenorm_bound(torch.tensor([limit]), tokens, window=window)[0]
    assert torch.linalg.matrix_norm(attention, 2) <= bound * (1 + 4 * tokens * ROUNDOFF)


def test_entries_attain_the_bound_on_their_column() -> None:
    """One key preferred by all: its column sum is what the bound is the root of."""
    tokens, limit = 16, 1.5
    scores = torch.full((tokens, tokens), -limit, dtype=torch.float64)
    scores[:, 0] = limit
    column = causal_attention(scores)[:, 0].sum()
    bound = prenorm_bound(torch.tensor([limit], dtype=torch.float64), tokens)[0]
    assert abs(column / bound**2 - 1) <= 4 * tokens * ROUNDOFF


def test_the_printed_bound_is_false_under_a_causal_mask() -> None:
    """Scores of at most 0.1, 128 tokens: the unmasked form says 1.10."""
    limit = torch.tensor([0.1])
    measured = torch.linalg.matrix_norm(causal_attention(torch.zeros(128, 128)), 2)
    assert measured > 1.4 * prenorm_bound(limit, 128, causal=False)[0]
    assert measured <= prenorm_bound(limit, 128)[0]


def test_bound_of_uniform_rows_is_the_root_of_the_harmonic_number() -> None:
    harmonic = sum(1 / i for i in range(1, 129))
    bound = prenorm_bound(torch.zeros(1, dtype=torch.float64), 128)[0]
    assert abs(bound**2 / harmonic - 1) <= 128 * ROUNDOFF


def test_bound_of_unlimited_scores_is_the_root_of_the_tokens_or_the_window() -> None:
    limit = torch.tensor([1e9])
    assert prenorm_bound(limit, 100).item() == 10
    assert prenorm_bound(limit, 100, window=25).item() == 5
    assert prenorm_bound(limit, 4, window=25).item() == 2


def test_a_window_wider_than_the_sequence_changes_nothing() -> None:
    limit = torch.tensor([0.3, 1.0])
    assert torch.equal(prenorm_bound(limit, 20), prenorm_bound(limit, 20, window=20))


def test_no_token_is_refused() -> None:
    with pytest.raises(UserError, match="tokens=0 is not a length"):
        prenorm_bound(torch.zeros(1), 0)


# The bound on the scores, on real modules

SMALL = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {name: value for name, value in SMALL.items() if name != "head_dim"}
MODULES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 32, "n_embd": 24, "n_layer": 1, "n_head": 4, "n_positions": 64},
    "llama": {**SMALL, "attention_bias": True, "rope_parameters": YARN},
    "qwen2": {**SMALL, "rope_parameters": YARN},
    "olmo2": {**SMALL, "rope_parameters": YARN},
    "qwen3": {**SMALL, "rope_parameters": YARN},
    "gemma2": SMALL,
    "gemma3_text": {**SMALL, "layer_types": ["full_attention"]},
    "stablelm": {**PLAIN, "hidden_size": 32, "qk_layernorm": True},
    "cohere": {**PLAIN, "use_qk_norm": True},
}
SEEN: list[tuple[Tensor, Tensor, float]] = []


def _record(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query[0] @ key[0].mT * options["scaling"]
    cap = options.get("softcap")
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    SEEN.append((scores, causal_attention(scores), options["scaling"]))
    return torch.zeros_like(query).transpose(1, 2), None


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    AttentionInterface.register("querykey_test", _record)
    yield
    AttentionInterface._global_mapping.pop("querykey_test", None)
    SEEN.clear()


def built(family: str, seed: int) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **MODULES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval().double()
        with torch.no_grad():
            for parameter in model.parameters():
                scale = 0.5 if parameter.dim() == 1 else 0.3
                parameter.add_(scale * torch.randn_like(parameter))
    model.config._attn_implementation = "querykey_test"
    return model


def weights_of(model: PreTrainedModel) -> LayerWeights:
    stack = anatomy(model)
    part = stack.attentions[0]
    block = stack.blocks[0]
    return project(block, part.module, name=part.name, layer=0, config=text_config(model))


def adversaries(weights: LayerWeights, tokens: int, seed: int) -> Tensor:
    """Random streams, and streams along the directions that the first head reads most."""
    assert weights.query is not None and weights.key is not None
    width = weights.query.shape[-1]
    streams = random(tokens, width, seed=seed)
    gain = torch.ones(width) if weights.gain is None else weights.gain
    for row, part in enumerate((weights.query, weights.key)):
        direction = torch.linalg.svd(part[0].double() * gain)[2][0]
        streams[row], streams[row + 2] = direction, -direction
    streams[4] = torch.eye(width, dtype=torch.float64)[gain.abs().argmax()]
    return streams * torch.logspace(-2, 3, tokens, dtype=torch.float64)[:, None]


def scores_of(model: PreTrainedModel, stream: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and causal attention of the first block on a stream, through the real modules."""
    SEEN.clear()
    stack = anatomy(model)
    block = stack.blocks[0]
    options: dict[str, Any] = {}
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is not None:
        positions = torch.arange(len(stream))[None]
        kind = ("full_attention",) if hasattr(rotary, "full_attention_inv_freq") else ()
        options = {"position_embeddings": rotary(stream[None], positions, *kind)}
    with torch.no_grad():
        block(stream[None], attention_mask=None, **options)
    scores, attention, _ = SEEN[0]
    return scores, attention


@pytest.mark.parametrize("family", MODULES)
@pytest.mark.parametrize("seed", range(3))
def test_no_input_scores_above_the_bound(family: str, seed: int) -> None:
    model = built(family, seed)
    weights = weights_of(model)
    bound = score_bound(weights)
    scores, attention = scores_of(model, adversaries(weights, 16, seed))
    largest = scores.abs().amax((1, 2))
    # The model's rotary tables, norms and gains are rounded to float32.
    assert (largest <= bound * (1 + 64 * 2.0**-24)).all()
    differences = score_bound(weights, differences=True)
    limit = prenorm_bound(differences, 16, window=weights.window)
    measured = torch.linalg.matrix_norm(attention, 2)
    assert (measured <= limit * (1 + 64 * 2.0**-24)).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_scores_with_layer_norm_and_biases_are_within_the_bound(seed: int, scale: float) -> None:
    model = _gpt2()
    scores, _ = scores_of(model, scale * random(8, 24, seed=seed))
    assert (scores.abs().amax((1, 2)) <= score_bound(weights_of(model))).all()


_CACHE: list[PreTrainedModel] = []


def _gpt2() -> PreTrainedModel:
    if not _CACHE:
        _CACHE.append(built("gpt2", 0))
    return _CACHE[0]


def test_bound_without_the_biases_is_false() -> None:
    """Large query and key biases: the source's M, which leaves them out, is far exceeded."""
    model = built("gpt2", 0)
    attention = model.transformer.h[0].attn
    with torch.no_grad():
        attention.c_attn.bias[:48] = 50.0
    weights = weights_of(model)
    bare = replace(weights, query_bias=None, key_bias=None, shift=None)
    scores, _ = scores_of(model, random(8, 24, seed=0))
    assert scores[0].abs().max() > 10 * score_bound(bare)[0]
    assert (scores.abs().amax((1, 2)) <= score_bound(weights)).all()


def test_stretched_rotary_tables_exceed_the_bound_of_plain_ones() -> None:
    """One direction, nothing else: plain RoPE would attain M, YaRN gives m^2 M."""
    model = built("llama", 0)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.input_layernorm.weight.fill_(1)
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.bias.zero_()
            projection.weight.zero_()
            projection.weight[0, 0] = 1
    weights = weights_of(model)
    assert weights.rotary is not None and weights.rotary > 1
    stream = torch.eye(24, dtype=torch.float64)[:1].expand(4, -1) * 1e3
    largest = scores_of(model, stream)[0][0].max()
    plain = score_bound(replace(weights, rotary=1.0))[0]
    assert largest > 1.1 * plain
    torch.testing.assert_close(largest, score_bound(weights)[0], rtol=64 * 2.0**-24, atol=0)


def test_one_head_of_olmo_may_own_the_norm_of_all() -> None:
    """The norm spans 8 heads of 16: scale * d_h = 4 is no bound, scale * d_h * 8 is attained."""
    options = {**SMALL, "hidden_size": 16, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = AutoConfig.for_model("olmo2", **{**options, "head_dim": 16})
    model = AutoModelForCausalLM.from_config(config).eval().double()
    model.config._attn_implementation = "querykey_test"
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.zero_()
            projection.weight[:16] = torch.eye(16)
    weights = weights_of(model)
    per_head = weights.scaling * 16
    stream = 1e4 * random(1, 16, seed=0).expand(4, -1)
    scores, _ = scores_of(model, stream)
    assert scores[0].max() > 7.9 * per_head
    assert scores[0].max() <= score_bound(weights)[0] * (1 + 2.0**-23)
    assert abs(score_bound(weights)[0] / (8 * per_head) - 1) <= 8 * ROUNDOFF


# The measure


def rows_of(weights: LayerWeights, **options: Any) -> tuple[list[dict[str, Any]], Run]:
    run = Run(options={"tokens": 16, **options})
    return list(read(weights, run)), run


def test_rows_hold_every_column_for_every_head() -> None:
    weights = weights_of(built("gpt2", 0))
    rows, run = rows_of(weights)
    names = [*MEASURES[0].per, *MEASURES[0].columns]
    assert [list(row) for row in rows] == [names] * 4
    assert not run.notes
    assert weights.query is not None and weights.key is not None
    values = torch.linalg.svdvals(weights.key[2].double().T @ weights.query[2].double())
    assert math.isclose(rows[2]["norm"], values[0], rel_tol=1e3 * ROUNDOFF)
    assert math.isclose(rows[2]["smallest"], values[5], rel_tol=1e5 * ROUNDOFF)
    assert rows[2]["condition"] == rows[2]["norm"] / rows[2]["smallest"]
    assert rows[2]["norm"] <= rows[2]["abs_norm"]


def test_the_form_is_that_of_the_raw_weights() -> None:
    weights = weights_of(built("gpt2", 0))
    assert weights.gain is not None
    other = replace(weights, scaling=7.0, gain=3 * weights.gain)
    for one, two in zip(rows_of(weights)[0], rows_of(other)[0], strict=True):
        assert all(one[name] == two[name] for name in ("norm", "smallest", "condition", "abs_norm"))


def test_normed_queries_have_no_form_but_a_bound() -> None:
    rows, run = rows_of(weights_of(built("qwen3", 0)))
    assert all(math.isnan(row["norm"]) and math.isnan(row["abs_norm"]) for row in rows)
    assert all(row["score_bound"] > 0 and row["prenorm_bound"] >= 1 for row in rows)
    assert "QK-norm" in run.notes["norm"]


def test_rotary_bound_covers_every_distance() -> None:
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


def test_weights_without_a_norm_in_front_have_no_bound() -> None:
    rows, run = rows_of(replace(weights_of(built("gpt2", 0)), gain=None, shift=None, norm=None))
    assert all(math.isnan(row["score_bound"]) and row["norm"] > 0 for row in rows)
    assert "no norm in front" in run.notes["score_bound"]


def test_a_bias_on_the_scores_leaves_the_score_bound_only() -> None:
    weights = replace(weights_of(built("gpt2", 0)), refused={"scores": "a bias is added"})
    rows, run = rows_of(weights)
    assert all(row["score_bound"] > 0 and math.isnan(row["prenorm_bound"]) for row in rows)
    assert "a bias is added" in run.notes["prenorm_bound"]


def test_refused_weights_are_not_applicable_with_the_reason() -> None:
    weights = replace(weights_of(built("gpt2", 0)), query=None, refused={"query": "compressed"})
    with pytest.raises(NotApplicable, match="compressed"):
        rows_of(weights)


def test_without_a_length_the_context_of_the_model_is_taken() -> None:
    weights = weights_of(built("gpt2", 0))
    assert rows_of(weights, tokens=None)[0] == rows_of(weights, tokens=64)[0]


def test_printed_bound_ignores_the_scale_of_the_module_and_the_biases() -> None:
    weights = weights_of(built("gpt2", 0))
    other = replace(weights, scaling=9.0, query_bias=None, shift=None)
    assert torch.equal(printed_bound(weights, 16), printed_bound(other, 16))


def test_broken_weights_give_nan_and_no_crash() -> None:
    weights = weights_of(built("gpt2", 0))
    assert weights.query is not None
    broken = weights.query.clone()
    broken[1] = torch.inf
    rows, _ = rows_of(replace(weights, query=broken))
    assert math.isnan(rows[1]["norm"]) and rows[0]["norm"] > 0
