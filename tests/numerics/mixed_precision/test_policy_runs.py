"""What is chosen: what gains nearly the most for the least, and never most of a model unsaid."""

from dataclasses import replace
from math import inf

import pytest
import torch

from layerlab.numerics.mixed_precision.advice import FAILS, HOLDS, OPEN, TOO_MUCH, Price
from layerlab.numerics.mixed_precision.literature_advice import judge_share, literature_advice
from layerlab.numerics.mixed_precision.policy_runs import PIECES, deviation
from layerlab.numerics.mixed_precision.select_policy import _best, advise
from tests.measures.family import built
from tests.numerics.mixed_precision.test_advice import ADVICE
from tests.numerics.mixed_precision.test_select_policy import (
    BUDGET,
    Table,
    look_up,
    run,
    searched,
)
from tests.support.refused import refuses

PRICES = {"large": 1.0, "small": 0.1, "tiny": 0.01}


@pytest.mark.parametrize(
    ("useful", "budget", "best"),
    [
        ({"large": 0.3, "small": 0.4}, 0.1, "small"),
        ({"large": 0.1, "small": 0.8, "tiny": 0.9}, 0.05, "large"),
        # What is gained beyond the budget counts for nothing.
        ({"large": 0.01, "small": 0.6}, 0.5, "small"),
        ({"large": 0.01, "small": 0.02}, 1.0, "small"),
    ],
)
def test_of_near_gains_the_cheapest_is_chosen(useful, budget, best):
    assert _best(useful, 1.0, budget, PRICES.__getitem__, 0.5) == best


@pytest.mark.full
def test_experts_are_not_kept_where_less_is_enough(monkeypatch):
    layer = "model.layers.*."
    names = ["residual", layer + "mlp.experts", "model.embed_tokens", layer + "self_attn.o_proj"]
    monkeypatch.setattr(
        "layerlab.numerics.mixed_precision.select_policy.candidates", lambda model: names
    )
    monkeypatch.setattr(
        "layerlab.numerics.mixed_precision.select_policy.literature_advice",
        lambda search, budget: (),
    )
    advice = advise(built("mixtral"), run, "bf16", BUDGET)
    # All experts together are more than half of this model, and gain the most.
    assert advice.reached and not advice.cost.most
    assert TOO_MUCH not in str(advice)


@pytest.mark.parametrize(("flops", "numbers"), [(51, 0), (0, 51)])
def test_most_of_a_model_is_not_kept_unsaid(flops, numbers):
    cost = Price(flops=flops, all_flops=100, bytes=0, all_bytes=1, numbers=numbers, all_numbers=100)
    assert TOO_MUCH == (
        "keeps more than half of the model in float32: use float32, or a larger --budget"
    )
    assert TOO_MUCH in str(replace(ADVICE, cost=cost))
    assert TOO_MUCH not in str(replace(ADVICE, cost=replace(cost, flops=50, numbers=50)))


def test_the_standard_error_of_a_share_is_that_of_many_texts():
    drawn = torch.Generator().manual_seed(0)
    whole = torch.randn(400, 20 * PIECES, generator=drawn).square().double()
    missed = 0.4 * whole * (1 + 0.5 * torch.randn(whole.shape, generator=drawn)).square()
    shares = missed.sum(-1) / whole.sum(-1)
    told = [deviation(*pair) for pair in zip(missed, whole, strict=True)]
    # The spread of 400 draws is known to within 1 / sqrt(800) of itself, so this is three of it.
    assert sum(told) / len(told) == pytest.approx(float(shares.std()), rel=0.11)


def test_the_standard_error_is_of_pieces_of_neighbours():
    whole = torch.ones(4 * PIECES, dtype=torch.float64)
    alternating = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(2 * PIECES)
    assert deviation(alternating, whole) == pytest.approx(0)
    # One token tells nothing of others, and without the only error there is no share.
    assert deviation(whole[:1], whole[:1]) == inf
    assert deviation(whole[:2], torch.tensor([1.0, 0.0])) == inf


@pytest.mark.parametrize(
    ("left", "error", "verdict"),
    [
        (0.4, 0.04, HOLDS),
        (0.4, 0.06, OPEN),
        (0.6, 0.06, OPEN),
        (0.6, 0.04, FAILS),
        (inf, inf, FAILS),
    ],
)
def test_near_the_budget_nothing_is_decided(left, error, verdict):
    assert judge_share(left, error, 0.5) == verdict


@pytest.mark.full
def test_advice_of_the_source_carries_its_uncertainty(monkeypatch):
    search = searched()
    higher, control = literature_advice(search, BUDGET)
    assert "±" in higher.reason and f"is left on {search.tokens} tokens" in control.reason
    left = control.left
    undecided = literature_advice(search, left - 1e-6)[1]
    assert undecided.verdict == OPEN and "within two standard errors" in undecided.reason


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.0] * 4, "the logits are all zero, so that no error"),
        ([1.0, 2.0, float("nan"), 4.0], "the logits are not finite even in float64"),
        ([1.0, 2.0, 3.0, 3e19], "bf16 reaches as far as float32, so look for weights"),
    ],
)
def test_logits_without_shares_say_what_is_wrong_with_them(values, text):
    refuses(text, advise, Table(values), look_up, "bf16")


@pytest.mark.parametrize("format", ["BF16", "bfloat16"])
def test_other_spellings_are_verified_in_real_runs_too(format):
    advice = advise(Table([0.1, 0.2, 0.3, 0.4]), look_up, format, 0.01)
    assert advice.policy.format == "bf16" and advice.real is not None
