"""Exchange between tokens in the feed-forward: what is planted is seen, and nothing else."""

import numpy as np
import torch
from torch import nn

from layerlab.studies.pangu23.theory.series_exchange import (
    TOKENS,
    backwards,
    influence,
    others,
    random_series,
    reach,
)
from tests.studies.small import drawing


class Leaking(nn.Module):
    """Hands a hundredth of every token to the one five places later."""

    def forward(self, x, flow):
        return x + 0.01 * torch.nn.functional.pad(x, (0, 0, 5, 0))[:, : x.shape[1]]


def test_a_planted_leak_is_found_with_its_size_and_its_distance():
    found = influence(Leaking(), drawing()).numpy()
    assert reach(found[None]) == 5
    assert np.isclose(others(found), 0.01) and np.isclose(backwards(found)[5], 0.01)
    assert backwards(found)[[1, 2, 3, 4, 6]].any() == 0


def test_a_look_into_the_future_is_told_apart():
    assert reach(np.triu(np.ones((1, 4, 4)))) == -1
    assert reach(np.eye(4)[None]) == 0 and others(np.eye(4)) == 0


def test_a_series_of_scales_sees_its_own_token_and_a_convolution_n_of_them():
    apart = influence(random_series(drawing(), {"form": "affine-in", "n": 3}), drawing()).numpy()
    assert others(apart) == 0 and (np.diagonal(apart) > 0).all()
    near = influence(random_series(drawing(), {"form": "convolution", "n": 3}), drawing()).numpy()
    assert reach(near[None]) == 2 and near.shape == (TOKENS, TOKENS)
