"""Theorems on layers: attained bounds read 1, and a constant that is too small is found."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from layerlab.measures.support.rounding_theory import Theory
from layerlab.numerics.theory.modules import TheoryAttention, TheoryFFN
from layerlab.studies.pangu23.theory.theorem_case import (
    SINGLE,
    Extra,
    contraction,
    part,
    single,
    stack_statements,
)
from layerlab.studies.pangu23.theory.theorems import judge_corrected, judge_usual, split, tightness
from tests.numerics.draw import gaussian

WIDTH, TOKENS = 5, 8
EYE = torch.eye(WIDTH, dtype=torch.float64)


def layer(heads=1, own=True, gate=None, shared=1):
    """Heads that agree, each of which hands on the token itself, or the mean of all before it.

    So many at a time have one key and one value.
    """
    seen = torch.eye(TOKENS, dtype=torch.bool) if own else None
    attention = TheoryAttention(
        query=torch.zeros(heads, WIDTH, WIDTH, dtype=torch.float64),
        key=torch.zeros(heads // shared, WIDTH, WIDTH, dtype=torch.float64),
        value=EYE.repeat(heads // shared, 1, 1),
        output=EYE.repeat(heads, 1, 1),
        scale=1.0,
        allowed=seen,
    )
    forward = TheoryFFN(inward=EYE, outward=EYE, activation="relu", gate=gate)
    z = gaussian(TOKENS, WIDTH)
    return part(Theory(entered=z, attention=attention, feedforward=forward))


def extra(theta=0.0):
    return Extra(theta=theta * EYE, term=EYE, noise=gaussian(TOKENS, WIDTH, seed=1))


def told(made, z, theta=0.0):
    found = single(made, z, z.abs(), z, extra(theta))
    return dict(zip(SINGLE, found.tolist(), strict=True))


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_bounds_are_attained_by_heads_that_agree_and_units_that_are_active(heads, shared):
    found = told(layer(heads, shared=shared), gaussian(TOKENS, WIDTH))
    lemma = [f"Lemma 1, {one}" for one in ("a matrix", "attention", "an activation", "a sum")]
    for name in (*lemma, "Theorem 2"):
        assert found[name] == pytest.approx(1), name
    assert found["Theorem 3, plain feed-forward"] == pytest.approx(1)
    assert found["Theorem 7, a matrix per term"] == pytest.approx(1)
    # Theorem 1 has the norm of the output matrix: sqrt(heads) here.
    assert found["Theorem 1, as printed"] == pytest.approx(heads**-0.5)
    assert found["Theorem 4"] == pytest.approx(1)


def test_lambda_is_that_of_the_mean_of_all_before():
    made = layer(own=False)
    root = contraction(made.matrices(gaussian(TOKENS, WIDTH)))
    assert root.item() ** 2 == pytest.approx(0.71, abs=0.005)
    assert told(made, gaussian(TOKENS, WIDTH))["root lambda"] == pytest.approx(root.item())


def test_a_gate_is_not_spoken_of_and_gains_without_bound():
    found = told(layer(gate=EYE), gaussian(TOKENS, WIDTH))
    assert np.isnan(found["Theorem 3, plain feed-forward"])
    near, far = (
        found[name]
        for name in ("Theorem 3, gated feed-forward", "Theorem 3, gated, features x 1000")
    )
    assert far == pytest.approx(1000 * near)


def test_depth_multiplies_the_factors():
    z, made = gaussian(TOKENS, WIDTH), layer()
    found = stack_statements([made] * 3, z, extra())
    assert found[0].item() == pytest.approx(1)
    half = replace(made, output=2 * made.output)
    assert stack_statements([half] * 3, z, extra())[0].item() == pytest.approx(1 / 8)


def study_of(made, draws=4):
    values = [single(made, z, z.abs(), z, extra(0.5)) for z in gaussian(draws, TOKENS, WIDTH)]
    deep = [stack_statements([made], z, extra(0.5)) for z in gaussian(draws, TOKENS, WIDTH)]
    part = {"single": torch.stack(values)[:, None].numpy(), "stacked": torch.stack(deep).numpy()}
    gated = {name: np.full((draws, 1), 0.5) for name in SINGLE if "gated" in name}
    return {"it, trained": {**split(part), **gated}}


def test_a_constant_that_is_too_small_is_found():
    made = layer()
    assert judge_corrected(study_of(made)).word == "holds"
    wrong = replace(made, inward=made.inward / 2)
    found = judge_corrected(study_of(wrong))
    assert found.word == "fails" and found.number == pytest.approx(2)
    (row,) = (
        row
        for row in tightness("it", study_of(wrong)["it, trained"])
        if row["statement"] == "Theorem 3, plain feed-forward"
    )
    assert row["share"] == 0 and not row["vacuous"]


def test_usual_is_more_than_half():
    name = SINGLE[-1]
    for value, word in ((0.5, "holds"), (2.0, "fails")):
        ratios = {name: np.full((12, 2), value)}
        assert judge_usual({"a, trained": ratios, "a, random": ratios}, 0).word == word
