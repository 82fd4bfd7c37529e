"""How fast a distance shrinks, planted; a stack without weights to mix; the verdicts."""

import numpy as np
import pytest
import torch

from layerlab.studies.spectral25.rank_collapse import (
    bare,
    collapse_of,
    judge_doubly,
    judge_halved,
    judge_rotary,
    judge_skips,
    order,
)
from tests.studies.small import drawing

CUBIC = np.array([[0.5 ** (3**layer) for layer in range(3)] + [0.0]] * 6)
HALVES = np.array([[0.5**layer for layer in range(25)]] * 6)


def test_the_order_of_cubes_is_three_and_of_halves_one():
    assert order(CUBIC) == pytest.approx(3)
    assert order(HALVES) == pytest.approx(1)
    # What lies below the floor is not read: the cubes end at 2e-3.
    assert order(np.concatenate([CUBIC, np.full((6, 5), 1e-16)], 1)) == pytest.approx(3)
    assert np.isnan(order(np.array([[0.1, 1e-20, 0.0]]))).all()


@pytest.mark.full
def test_planted_rates_get_their_verdicts():
    assert judge_doubly(CUBIC, 0).word == "holds" and judge_doubly(HALVES, 0).word == "fails"
    verdict = judge_halved(HALVES, 0)
    assert verdict.word == "fails" and verdict.number == pytest.approx(0.5)
    assert judge_rotary(HALVES, CUBIC, 0).word == "fails"
    assert judge_rotary(CUBIC, CUBIC, 0).word == "holds"


@pytest.mark.full
@pytest.mark.parametrize(("kept", "word"), [(0.4, "holds"), (1e-3, "fails"), (0.01, "not decided")])
def test_skips_hold_only_where_much_is_kept(kept, word):
    alone = np.full((6, 2), 1e-3)
    stacks = {("attention-only", causal): alone for causal in (False, True)}
    stacks |= {("attention-skip", causal): alone / 1e-3 * kept for causal in (False, True)}
    assert judge_skips(stacks, 0).word == word


def test_the_mask_is_the_only_difference_between_two_stacks():
    causal, free = bare(drawing(2), causal=True), bare(drawing(2), causal=False)
    assert torch.equal(causal["residual"][:, 0], free["residual"][:, 0])
    found = collapse_of(drawing(1), "attention-skip", "learned")
    assert found["causal"].shape == found["open"].shape == (1, 8)
    assert not torch.allclose(found["causal"], found["open"], rtol=0.01)
