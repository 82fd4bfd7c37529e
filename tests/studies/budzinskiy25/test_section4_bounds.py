"""Rounding bounds by experiment: worst roundings that are known, and bounds that are too small."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from layerlab.studies.budzinskiy25.section4_bounds import (
    CORRECT,
    FORMATS,
    ROWS,
    adversaries,
    beyond,
    judge_lowered,
    judge_near,
    judge_never,
    largest_shares,
)
from layerlab.studies.budzinskiy25.support.perturbed_arithmetic import worst
from layerlab.studies.budzinskiy25.support.rounded_modules import norms, softmaxes
from tests.numerics.draw import gaussian
from tests.studies.small import context


def test_the_worst_roundings_of_an_inner_product_are_known():
    a, b = torch.tensor([[[2.0, 3.0, 5.0]]]).double(), torch.ones(1, 3, 1).double()
    # Three products, 2 + 3, and 5 + 5.
    assert worst(lambda run: run.product(a, b), [0]).item() == 10 + 5 + 10
    a[0, 0, 1] = 0.0
    assert worst(lambda run: run.product(a, b), [0]).item() == 7 + 7, "adding 0 is exact"


def test_draws_do_not_mix():
    x = gaussian(3, 1, 5)
    every = worst(lambda run: run.total(x), [0])
    alone = [worst(lambda run, one=one: run.total(one[None]), [0])[0] for one in x]
    assert torch.allclose(every, torch.stack(alone))


def test_no_drawn_rounding_passes_the_worst_ones():
    for module in norms(gaussian(20, 1, 16)):
        assert (beyond(module, (0, 3)) <= 1 + 1e-9).all()
        assert (largest_shares(module) <= 1.1).all()


def test_a_bound_that_is_too_small_is_found():
    true = adversaries()
    assert max(true[row] for row in CORRECT) == pytest.approx(1, abs=1e-6)
    observed, worsts = (
        np.full((12, 3, len(ROWS), len(FORMATS)), 0.2),
        np.full((12, 3, len(ROWS)), 0.5),
    )
    assert judge_never(observed, worsts, true).word == "holds"
    assert judge_never(observed, worsts, {**true, "Lemma 4.6": 1.2}).word == "fails"
    assert judge_never(observed * 6, worsts, true).word == "fails"
    assert judge_lowered({**true, "Lemma 4.17": 0.7}).word == "not decided"
    module = next(norms(gaussian(2, 1, 16)))
    halved = replace(module, limit=module.limit / 2)
    assert torch.allclose(beyond(halved, (0,)), 2 * beyond(module, (0,)))


def test_the_range_of_scores_costs_what_its_term_says():
    scores = torch.tensor([[[0.0, 0.0], [0.0, 30.0]]], dtype=torch.float64)
    with_range, without = softmaxes(scores)
    assert beyond(with_range, (0,)).item() == pytest.approx(1, rel=1e-6)
    # 30 for the difference, and 4: the exponential, a sum and the quotient leave one to spare.
    assert 8 < beyond(without, (0,)).item() <= 34 / 4


def test_the_bound_of_which_most_is_used_is_judged_as_one_of_all():
    observed = np.full((12, 1, len(ROWS), len(FORMATS)), 0.1)
    observed[:, 0, 0, 0] = [*np.linspace(0.48, 0.498, 2), *np.linspace(0.51, 0.56, 10)]
    assert judge_near(observed, context()).word == "not decided"
    assert judge_near(observed + 0.1, context()).word == "holds"
