"""lambda of attention whose value is known, and of matrices that must stay below 1."""

import numpy as np
import pytest
import torch

from layerlab.studies.pangu23.theory.attention_lambda import (
    MODEL,
    balance,
    blocks,
    heads,
    judge_doubly,
    judge_real,
    largest,
    uniform,
)
from layerlab.studies.support.passages import excerpts, get_model
from tests.studies.small import drawing


@pytest.mark.parametrize("tokens, value", [(5, 0.54), (16, 0.98), (32, 1.26), (64, 1.53)])
def test_uniform_causal_attention_has_its_known_values(tokens, value):
    assert abs(largest(uniform(tokens)).item() - value) <= 0.005
    assert torch.allclose(uniform(tokens).sum(-1), torch.ones(tokens, dtype=torch.float64))


def test_one_token_for_all_is_collapse_and_two_are_half_of_the_tokens():
    first = torch.zeros(8, 8, dtype=torch.float64)
    first[:, 0] = 1
    assert largest(first) == 0
    assert largest(blocks(8)).item() == pytest.approx(4)


def test_balanced_matrices_are_doubly_stochastic():
    drawn = torch.randn(3, 9, 9, generator=torch.Generator().manual_seed(0)).double()
    found = balance(drawn.exp())
    for side in (-1, -2):
        assert torch.allclose(found.sum(side), torch.ones(3, 9, dtype=torch.float64))
    assert (largest(found) < 1).all()


def test_a_passage_has_a_number_for_every_head_of_every_layer():
    assert heads(get_model(MODEL), excerpts(drawing(2), MODEL, 8)).shape == (2, 8 * 4)


def test_words_follow_the_share_of_heads():
    for value, word in ((0.5, "holds"), (2.0, "fails")):
        assert judge_real({8: np.full((12, 4), value)}, 0, "heads").word == word
        assert judge_doubly({8: np.full((5, 1), value)}).word == word
