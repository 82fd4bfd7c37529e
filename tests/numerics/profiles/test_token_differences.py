"""Differences by token, against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.numerics.profiles.token_differences import (
    CLIP,
    DistributionDifferences,
    compare_tokens,
)

PROBABILITY = st.floats(-20, 0)


@given(st.lists(st.tuples(PROBABILITY, PROBABILITY), min_size=1, max_size=40))
def test_each_number_is_what_numpy_gives(pairs):
    a, b = np.array(pairs).T
    found = compare_tokens(torch.tensor(a), torch.tensor(b))
    apart = a - b
    assert found.mean == pytest.approx(np.abs(apart).mean())
    assert found.bias == pytest.approx(apart.mean())
    assert found.rms == pytest.approx(np.sqrt((apart**2).mean()))
    assert found.largest == np.abs(apart).max()
    assert found.ratio_mean == pytest.approx(np.exp(apart).mean())
    assert found.ratio_quantiles == pytest.approx(np.quantile(np.exp(apart), [0.01, 0.5, 0.99]))
    assert found.clipped == pytest.approx((np.abs(np.exp(apart) - 1) > CLIP).mean())


def test_divergences_are_those_of_torch():
    torch.manual_seed(0)
    p, q = torch.randn(300, 11), torch.randn(300, 11)
    whole = DistributionDifferences()
    for part in (slice(200), slice(200, 300)):
        whole.add(torch.zeros(0), [p[part], q[part]])
    found = whole.mean
    logs = p.double().log_softmax(-1), q.double().log_softmax(-1)
    divergence = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
    assert found["kl_ab"] == pytest.approx(float(divergence(logs[1], logs[0])))
    assert found["kl_ba"] == pytest.approx(float(divergence(logs[0], logs[1])))
    assert found["argmax_changed"] == float((p.argmax(-1) != q.argmax(-1)).double().mean())


def test_a_distribution_is_as_far_from_itself_as_nothing():
    found = DistributionDifferences()
    found.add(torch.zeros(0), [torch.randn(5, 7)] * 2)
    assert found.mean == {"argmax_changed": 0, "kl_ab": 0, "kl_ba": 0}


def test_what_is_masked_in_both_distributions_counts_for_nothing():
    torch.manual_seed(0)
    p, q = torch.randn(2, 5, 7)
    plain, masked = DistributionDifferences(), DistributionDifferences()
    plain.add(torch.zeros(0), [p, q])
    hidden = torch.full((5, 3), -torch.inf)
    masked.add(torch.zeros(0), [torch.cat([one, hidden], -1) for one in (p, q)])
    assert masked.mean == pytest.approx(plain.mean)
