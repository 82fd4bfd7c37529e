"""What is chosen: what gains nearly the most for the least, and never most of a model unsaid."""

from dataclasses import replace

import pytest

from layerlab.numerics.advice import TOO_MUCH, Cost
from layerlab.numerics.precision import _best, advise
from tests.measures.family import built
from tests.numerics.test_precision import ADVICE, BUDGET, run

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
def test_of_near_gains_the_cheapest_is_chosen(
    useful: dict[str, float], budget: float, best: str
) -> None:
    assert _best(useful, 1.0, budget, PRICES.__getitem__, 0.5) == best


def test_experts_are_not_kept_where_less_is_enough() -> None:
    advice = advise(built("mixtral"), run, "bf16", BUDGET)
    # All experts together are more than half of this model, and gain the most.
    assert advice.reached and not advice.cost.most
    assert TOO_MUCH not in str(advice)


@pytest.mark.parametrize(("flops", "numbers"), [(51, 0), (0, 51)])
def test_most_of_a_model_is_not_kept_unsaid(flops: int, numbers: int) -> None:
    cost = Cost(flops=flops, all_flops=100, bytes=0, all_bytes=1, numbers=numbers, all_numbers=100)
    assert TOO_MUCH == (
        "keeps more than half of the model in float32: use float32, or a larger --budget"
    )
    assert TOO_MUCH in str(replace(ADVICE, cost=cost))
    assert TOO_MUCH not in str(replace(ADVICE, cost=replace(cost, flops=50, numbers=50)))
