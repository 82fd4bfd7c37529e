"""The gain of diversity and its theorems, on real models and where the bounds are attained."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from layerlab.measures.measure import MeasureContext, Row
from layerlab.measures.quantities.gain import MEASURES, read
from layerlab.measures.support import attention_pass
from layerlab.measures.support.sublayers.sublayer_bounds import (
    attention_bound,
    contraction,
    spectral_bound,
)
from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.records import Layer, Sublayer
from tests.measures.family import built, traced
from tests.support.host_reads import counted

(MEASURE,) = MEASURES
SINGLE, DOUBLE = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def run() -> MeasureContext:
    return MeasureContext(options=MEASURE.options)


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(layers: Sequence[Layer], session: MeasureContext | None = None) -> list[Row]:
    session = session or run()
    return [row for layer in layers for row in read(layer, session)]


def made(block: nn.Module | None = None, **parts: Any) -> Layer:
    """A record by hand."""
    stream = next(iter(parts["sublayers"].values())).left
    return Layer(
        sequence=0, layer=1, tokens=torch.arange(len(stream)), stream=stream, block=block, **parts
    )


def sublayer(entered: Tensor, left: Tensor) -> Sublayer:
    return Sublayer(entered=entered, left=left, branch=left)


def attended(scores: Tensor, **options: Any) -> AttentionRecord:
    return AttentionRecord(layer=0, name="attn", scores=scores, causal=False, **options)


# On real models


@pytest.mark.full
def test_a_norm_that_the_first_factor_does_not_certify_is_raised_before_it_bounds(tiny):
    """Singular values are so close that Lanczos falls short of the largest."""
    model = tiny("llama", hidden_size=288, num_attention_heads=8, num_key_value_heads=8)
    (weight,) = (block.self_attn.o_proj.weight for block in model.model.layers[:1])
    gap = torch.linspace(1, 1 + 1e-4, 288, dtype=torch.float64)
    hard = torch.linalg.qr(gaussian(288, 288).double()).Q * gap
    weight.data.copy_(hard)
    layer = traced(model, range(20))[0]
    with counted() as counts:
        found = rows([layer])
    assert counts.operations["aten.linalg_cholesky_ex.default"] == 2  # others are small
    assert layer.attention is not None and layer.weights is not None
    values = spectral_bound(layer.weights.value)
    contractions = contraction(layer.attention, exact=True)
    exact = torch.linalg.matrix_norm(weight.detach().double(), 2)
    least, _ = attention_bound(contractions.to(values), values, exact)
    (bound,) = (row["bound"] for row in found if row["sublayer"] == "attention")
    assert float(least) * (1 - 1e-5) <= bound <= float(least) * (1 + 1e-3)


@pytest.mark.full
@settings(max_examples=24, deadline=None)
@given(
    family=st.sampled_from(["gpt2", "openai-gpt", "llama"]),
    exponent=st.floats(-2, 2),
    ids=st.lists(st.integers(0, 63), min_size=2, max_size=24),
)
def test_bounds_hold_on_real_models_of_any_weight_scale(tiny, family, exponent, ids):
    model = tiny(family)
    with torch.no_grad():
        for block in anatomy(model).blocks:
            for parameter in (p for p in block.parameters() if p.dim() == 2):
                parameter.mul_(10.0**exponent)
    found = rows(traced(model, ids))
    assert len(found) == 4
    for row in found:
        assert not isnan(row["bound"])
        assert not row["violated"]
        if row["sublayer"] == "attention":
            assert row["sharp"] <= row["bound"] * (1 + 16 * DOUBLE)
            assert row["factor"] == row["bound"]


def test_tightness_is_bound_over_measured_and_at_least_one(tiny):
    for row in rows(traced(tiny("gpt2"), range(20))):
        assert row["tightness"] == row["bound"] / row["measured"] >= 1


def test_measured_is_the_ratio_of_distances_from_equal_tokens(tiny):
    layer = traced(tiny("llama"), range(9))[0]
    for row in rows([layer]):
        part = layer.sublayers[row["sublayer"]]
        spread = [(h - h.mean(0)).double().norm() for h in (part.left, part.entered)]
        assert row["measured"] == pytest.approx(float(spread[0] / spread[1]), rel=64 * SINGLE)


def test_rows_are_numbered_from_zero_and_have_the_declared_columns(tiny):
    found = rows(traced(tiny("gpt2"), range(5), range(6)))
    keys = [(row["sequence"], row["layer"], row["sublayer"]) for row in found]
    assert keys == [(s, n, x) for s in (0, 1) for n in (0, 1) for x in ("attention", "ffn")]
    assert all(list(row) == [*MEASURE.per, *MEASURE.columns] for row in found)


def test_a_feed_forward_of_another_form_is_refused_and_still_measured(tiny):
    session = run()
    for layer in traced(tiny("llama"), range(8)):
        part = layer.sublayers["ffn"]
        normed = replace(part, left=nn.functional.layer_norm(part.left, part.left.shape[1:]))
        (row,) = rows([replace(layer, sublayers={"ffn": normed})], session)
        assert isnan(row["bound"]) and isnan(row["tightness"]) and row["measured"] > 0
        assert not row["violated"]
    said = session.notes["bound (ffn)"]
    assert said.startswith("bound: not applicable to ffn of layers 0, 1, because")
    assert "nor a gated one" in said


def test_a_mixture_of_experts_is_called_one():
    session = run()
    found = rows(traced(built("mixtral"), range(8)), session)
    assert all(isnan(row["bound"]) for row in found if row["sublayer"] == "ffn")
    assert "because it is a mixture of experts" in session.notes["bound (ffn)"]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_low_precision_models_are_recognized_too(family, tiny):
    session = run()
    found = rows(traced(tiny(family).to(torch.bfloat16), range(12)), session)
    assert not any(isnan(row["bound"]) for row in found if row["sublayer"] == "attention")
    assert "bound (attention)" not in session.notes


# What is refused, what is flagged


def test_a_corrupted_record_is_flagged_once_the_form_is_known(tiny):
    first, _, second, _ = traced(tiny("gpt2"), range(8), range(8, 20))
    session = run()
    assert not any(row["violated"] for row in rows([first], session))
    wrong = {name: replace(s, left=1e4 * s.left) for name, s in second.sublayers.items()}
    assert all(row["violated"] for row in rows([replace(second, sublayers=wrong)], session))


def test_an_output_that_the_form_does_not_give_is_refused(tiny):
    session = run()
    layer = traced(tiny("gpt2"), range(8))[0]
    normed = {
        name: replace(s, left=nn.functional.layer_norm(s.left, s.left.shape[1:]))
        for name, s in layer.sublayers.items()
    }
    assert all(isnan(row["bound"]) for row in rows([replace(layer, sublayers=normed)], session))
    assert "not the linear map of Theorem 2" in session.notes["bound (attention)"]


def test_sinks_are_refused(tiny):
    session = run()
    layer = traced(tiny("gpt2"), range(8))[0]
    assert layer.attention is not None
    sinking = replace(layer.attention, sinks=torch.zeros(2))
    row = rows([replace(layer, attention=sinking)], session)[0]
    assert isnan(row["bound"]) and isnan(row["factor"]) and isnan(row["contraction"])
    assert "do not sum to 1" in session.notes["bound (attention)"]


def test_weights_that_were_not_cut_are_refused_with_their_own_reason(tiny):
    session = run()
    layer = traced(tiny("gpt2"), range(8))[0]
    assert layer.weights is not None
    cut = replace(layer.weights, value=None, refused={"value": "a norm lies on the value path"})
    rows([replace(layer, weights=cut)], session)
    assert "a norm lies on the value path" in session.notes["bound (attention)"]


def test_equal_tokens_have_no_gain_and_violate_nothing(tiny):
    session = run()
    layer = traced(tiny("gpt2"), range(8))[0]
    rows([layer], session)
    same = {
        name: sublayer(s.entered[:1].expand(8, -1), s.left[:1].expand(8, -1))
        for name, s in layer.sublayers.items()
    }
    for row in rows([replace(layer, sublayers=same)], session):
        assert isnan(row["measured"]) and not row["violated"]


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(0, 2**20))
def test_rounding_of_nearly_equal_tokens_is_no_violation(digits, seed):
    """Tokens a distance 10^-digits apart: below float32 the output is nothing but rounding."""
    block = Plain(nn.GELU(), seed)
    entered = gaussian(1, 8, seed=seed) + 10.0**-digits * gaussian(6, 8, seed=seed + 1)
    layer = made(block, sublayers={"ffn": sublayer(entered, block(entered).detach())})
    (row,) = rows([layer])
    assert not isnan(row["bound"]) and not row["violated"]


# Where the bounds are attained


def attained(heads: int, tokens: int = 7, width: int = 5) -> Layer:
    """Equal heads that add up, and tokens spread along the top right singular vector of J A."""
    scores = gaussian(1, tokens, tokens).repeat(heads, 1, 1)
    matrix = torch.softmax(scores[0].double(), -1)
    centred = matrix - matrix.mean(0)
    worst = torch.linalg.svd(centred)[2][0]
    entered = worst[:, None] * gaussian(1, width).double() + gaussian(1, width, seed=1).double()
    identity = torch.eye(width).expand(heads, -1, -1)
    weights = HeadWeights(
        layer=0, name="attn", scaling=1.0, value=identity, output=identity / sqrt(heads)
    )
    left = sqrt(heads) * matrix @ entered
    return made(
        attention=attended(scores),
        weights=weights,
        sublayers={"attention": sublayer(entered.float(), left.float())},
    )


@pytest.mark.parametrize("heads", [1, 4])
def test_theorem_2_is_attained_by_equal_heads_and_the_worst_spread(heads):
    record = attained(heads)
    assert record.attention is not None
    (row,) = rows([record])
    slack = 64 * 7 * SINGLE
    largest = float(contraction(record.attention, exact=True).max())
    assert row["bound"] == pytest.approx(sqrt(heads) * largest, rel=slack)
    assert row["tightness"] == pytest.approx(1, rel=slack)
    assert row["sharp"] == pytest.approx(row["bound"], rel=slack)
    assert not row["violated"]


class Plain(nn.Module):
    """A block whose feed-forward is W_2 act(W_1 z)."""

    def __init__(self, act: nn.Module, seed: int = 0, inner: int = 12) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, inner), act, nn.Linear(inner, 8)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(gaussian(*parameter.shape, seed=seed + 7 * number))

    def forward(self, z: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(z)))


def test_theorem_3_is_attained_where_a_relu_lets_everything_pass():
    block = Plain(nn.ReLU(), inner=8).requires_grad_(False)
    for linear in (block.fc1, block.fc2):
        linear.weight.copy_(torch.eye(8))
        linear.bias.zero_()
    entered = gaussian(5, 8).abs()
    (row,) = rows([made(block, sublayers={"ffn": sublayer(entered, block(entered))})])
    assert row["bound"] == pytest.approx(1, rel=1e-9)
    assert row["tightness"] == pytest.approx(1, rel=64 * SINGLE)
    assert not row["violated"]


# The parts


causal_scores = st.builds(
    lambda tokens, heads, exponent, seed: (
        10.0**exponent * gaussian(heads, tokens, tokens, seed=seed)
    ),
    st.integers(2, 16),
    st.integers(1, 3),
    st.floats(-2, 1.5),
    st.integers(0, 2**20),
)


@settings(deadline=None)
@given(causal_scores, st.booleans())
def test_contraction_is_the_norm_of_the_centred_attention(scores, causal):
    record = replace(attended(scores), causal=causal)
    matrix = record.weights(dtype=torch.float64)
    truth = torch.linalg.matrix_norm(matrix - matrix.mean(1, keepdim=True), 2)
    exact = contraction(record, exact=True)
    assert ((exact - truth).abs() <= 64 * DOUBLE * scores.shape[1] * (1 + scores.abs().max())).all()
    # Lanczos may stop at another singular value, never above the first: entries of A are rounded
    # to float32, relative to scores of up to max |s|.
    slack = 16 * SINGLE * scores.shape[1] * (1 + scores.abs().max())
    assert (contraction(record) <= truth + slack).all()


@pytest.mark.parametrize("tokens", [8, 40])
def test_contraction_by_products_agrees_with_the_exact_one(tokens):
    record = replace(attended(2 * gaussian(3, tokens, tokens)), causal=True)
    assert contraction(record).tolist() == pytest.approx(
        contraction(record, exact=True).tolist(), rel=64 * tokens * SINGLE
    )


def test_a_contraction_that_came_out_too_small_is_computed_again_before_it_accuses(monkeypatch):
    record = attained(1)
    short = {"contraction": torch.full((record.attention.heads,), 1e-3).double()}
    monkeypatch.setattr(attention_pass, "read_heads", lambda attended, asked: short)
    (row,) = rows([record])
    assert not row["violated"]
    assert row["tightness"] == pytest.approx(1, rel=1e-4)


def test_contraction_is_zero_for_equal_rows_and_one_for_the_identity():
    equal = contraction(attended(torch.zeros(1, 6, 6)))
    identity = contraction(attended(200 * torch.eye(6)[None]))
    assert float(equal) <= 16 * SINGLE
    assert float(identity) == pytest.approx(1, rel=64 * SINGLE)


@settings(deadline=None)
@given(causal_scores, st.integers(0, 2**20))
def test_theorem_2_holds_for_any_heads(scores, seed):
    heads, tokens, _ = scores.shape
    matrix = attended(scores.double()).weights(dtype=torch.float64)
    z = gaussian(tokens, 6, seed=seed).double()
    value = gaussian(heads, 3, 6, seed=seed + 1).double()
    output = gaussian(heads, 6, 3, seed=seed + 2).double()
    left = torch.einsum("hij,jw,hvw,hxv->ix", matrix, z, value, output)
    contractions = torch.linalg.matrix_norm(matrix - matrix.mean(1, keepdim=True), 2)
    plain, sharp = attention_bound(
        contractions, spectral_bound(value), spectral_bound(output.permute(1, 0, 2).flatten(1))
    )
    measured = (left - left.mean(0)).norm() / (z - z.mean(0)).norm()
    slack = 1 + 64 * DOUBLE * tokens
    assert measured <= sharp * slack + 64 * DOUBLE and sharp <= plain * slack


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-6, 6), st.integers(0, 2**20))
def test_spectral_bound_is_never_below_the_norm_and_hardly_above(rows, columns, exponent, seed):
    matrix = 10.0**exponent * gaussian(3, rows, columns, seed=seed)
    truth = torch.linalg.matrix_norm(matrix.double(), 2)
    bound = spectral_bound(matrix)
    slack = 64 * DOUBLE * rows * columns
    assert (bound >= truth * (1 - 8 * DOUBLE)).all() and (bound <= truth * (1 + slack)).all()
