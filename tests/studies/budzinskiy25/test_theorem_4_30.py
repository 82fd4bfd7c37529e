"""The bound for depth: the two ways to write a block agree, and planted bounds are judged."""

import numpy as np
import pytest
import torch

from layerlab.studies.budzinskiy25.support import reference_transformer
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact
from layerlab.studies.budzinskiy25.theorem_4_30 import (
    COLUMNS,
    LAYERS,
    OBSERVED,
    ORDINARY,
    PRINTED,
    RECURSION,
    judge_never,
    judge_size,
    judge_speaking,
    one,
    theory_of_block,
)
from tests.studies.small import drawing


def test_the_block_of_the_theory_is_that_of_the_experiment():
    drawn = drawing(2, 5)
    x, weights = ORDINARY.start(drawn), ORDINARY.weights(drawn)
    expected = reference_transformer.block(Exact(), x.clone(), weights, "rms")
    for number in range(2):
        assert torch.allclose(theory_of_block(weights, number).value(x[number]), expected[number])


@pytest.mark.full
def test_errors_fall_with_digits_and_bounds_with_them():
    coarse, fine = (one(drawing(2, 5), digits)["bounds"] for digits in (11, 24))
    for column in (OBSERVED, RECURSION, PRINTED):
        assert (coarse[:, 0, column] > 100 * fine[:, 0, column]).all()
    assert (fine[:, 1:, RECURSION] > fine[:, :-1, RECURSION]).all()


def planted(above):
    found = np.full((12, LAYERS, len(COLUMNS)), 1e-5)
    found[..., RECURSION] *= above
    found[..., PRINTED] *= above
    return {"t = 24": found}


def test_planted_bounds_are_judged():
    assert judge_never(planted(2)).word == "holds" and judge_never(planted(0.5)).word == "fails"
    assert judge_size(planted(10), RECURSION, "", 0).word == "holds"
    assert judge_size(planted(1e9), PRINTED, "", 0).word == "fails"
    assert judge_size(planted(1e9), PRINTED, "", 0).number == pytest.approx(1e9)
    for error, word in ((10.0, "fails"), (0.1, "holds")):
        model = {"errors": np.full((12, 8), error), "factors": np.full((12, 8), np.inf)}
        assert judge_speaking(model, "it", 0).word == word
