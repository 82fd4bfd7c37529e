"""The bound of a gated feed-forward layer on the range that its gate takes, and of squared ReLU."""

from dataclasses import replace
from math import isnan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab.measures.quantities.diversity import diversity
from layerlab.measures.support.sublayers.activations import ACTIVATIONS
from layerlab.measures.support.sublayers.sublayer_bounds import range_bound, spectral_bound
from tests.measures.family import built
from tests.measures.quantities.test_gain import gaussian, rows, run, traced

DOUBLE = torch.float64
NAMED = {one.name: one for one in ACTIVATIONS}


def weights(shape: tuple[int, int], kind: str, exponent: float, seed: int) -> Tensor:
    """Weights of a kind that a bound could fail on, of any size."""
    drawn = gaussian(*shape, seed=seed).to(DOUBLE)
    if kind == "one direction":
        drawn = drawn[:, :1] @ drawn[:1]
    elif kind == "one channel":
        drawn = drawn * (torch.arange(shape[1]) == 0)
    elif kind == "one sign":
        drawn = drawn.abs()
    return 10.0**exponent * drawn


kinds = st.sampled_from(["gaussian", "one direction", "one channel", "one sign"])
drawn_weights = st.tuples(kinds, st.floats(-2, 2), st.integers(0, 2**20))


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(NAMED)),
    drawn=st.tuples(drawn_weights, drawn_weights, drawn_weights),
    biases=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    tokens=st.integers(2, 9),
    apart=st.floats(-3, 1),
    gated=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_diversity_grows_by_no_more_than_the_bound_for_adversarial_weights(
    name, drawn, biases, tokens, apart, gated, seed
):
    z = gaussian(1, 5, seed=seed).to(DOUBLE) + 10.0**apart * gaussian(tokens, 5, seed=seed + 1)
    shapes = ((5, 7), (7, 4), (5, 7))
    maps = [weights(shape, *one) for shape, one in zip(shapes, drawn, strict=True)]
    norms = [spectral_bound(one) for one in maps]
    activation = NAMED[name]
    inner, gate = z @ maps[0] + biases[0], z @ maps[2] + biases[1]
    if gated:
        out, bound = (activation.function(gate) * inner) @ maps[1], (inner, gate)
    else:
        out, bound, norms = activation.function(inner) @ maps[1], (inner, None), norms[:2]
    limit = range_bound(*bound, activation, norms) * diversity(z)
    rounding = 1e-12 * (1 + out.abs().max() + limit)
    assert diversity(out) <= limit + rounding


def test_the_bound_is_attained_by_a_gate_that_lets_everything_pass_alike():
    z, identity = gaussian(6, 4).to(DOUBLE), torch.eye(4, dtype=DOUBLE)
    gate = torch.full((6, 4), 2.0, dtype=DOUBLE)
    norms = [spectral_bound(one) for one in (identity, identity, 0 * identity)]
    limit = range_bound(z, gate, NAMED["silu"], norms)
    out = torch.nn.functional.silu(gate) * z
    assert float(diversity(out) / diversity(z)) == pytest.approx(float(limit), rel=1e-12)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma", "phi3"])
def test_gated_families_have_a_bound_in_every_layer_that_holds(family):
    session = run()
    found = [row for row in rows(traced(built(family), range(8)), session)]
    forward = [row for row in found if row["sublayer"] == "ffn"]
    assert forward and "bound (ffn)" not in session.notes
    for row in forward:
        assert not isnan(row["bound"]) and row["tightness"] >= 1 and not row["violated"]


def test_the_bound_of_a_second_text_is_that_of_its_own_range(tiny):
    model = tiny("llama")
    alone = [row["bound"] for row in rows(traced(model, range(20, 40)))]
    second = [
        row["bound"] for row in rows(traced(model, range(8), range(20, 40))) if row["sequence"]
    ]
    assert second == pytest.approx(alone, rel=1e-6)


def test_a_corrupted_output_of_a_gated_layer_is_flagged(tiny):
    first, _, second, _ = traced(tiny("llama"), range(8), range(8, 20))
    session = run()
    assert not any(row["violated"] for row in rows([first], session))
    part = second.sublayers["ffn"]
    wrong = {"ffn": replace(part, left=1e4 * part.left)}
    assert all(row["violated"] for row in rows([replace(second, sublayers=wrong)], session))


def test_squared_relu_without_a_largest_slope_is_bounded_by_that_on_the_range(tiny):
    session = run()
    layers = traced(tiny("gpt2", activation_function="relu2", initializer_range=0.5), range(20))
    forward = [row for row in rows(layers, session) if row["sublayer"] == "ffn"]
    assert forward and all(row["tightness"] >= 1 and not row["violated"] for row in forward)
