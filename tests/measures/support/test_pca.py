"""Principal components against scikit-learn, and by the laws that they must keep."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.measures.support.centring import Pool
from layerlab.measures.support.pca import apartness, components, coordinates
from tests.support.host_reads import counted


def cloud(seed, tokens, width, mean=0.0):
    """Tokens whose directions differ clearly in variance."""
    draw = torch.Generator().manual_seed(seed)
    scales = 2.0 ** -torch.arange(width, dtype=torch.float64)
    mixed, _ = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))
    return torch.randn(tokens, width, generator=draw, dtype=torch.float64) * scales @ mixed + mean


def pooled(h, *cuts):
    pool = Pool()
    for part in torch.tensor_split(h, cuts):
        pool.add(part)
    return pool


@pytest.mark.parametrize(
    ("tokens", "width", "cuts"), [(40, 6, ()), (5, 30, (2,)), (2000, 8, (3, 700, 1500)), (9, 2, ())]
)
def test_scikit_learn_finds_the_same_up_to_sign(tokens, width, cuts):
    from sklearn.decomposition import PCA

    h = cloud(tokens, tokens, width, mean=3.0)
    found = components(pooled(h, *cuts))
    count = min(3, width)
    peer = PCA(n_components=count, svd_solver="full").fit(h.numpy())
    near = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(found.variances[:count], peer.explained_variance_, **near)
    np.testing.assert_allclose(found.shares[:count], peer.explained_variance_ratio_, **near)
    agreed = np.abs((found.directions[:count].numpy() * peer.components_).sum(1))
    np.testing.assert_allclose(agreed, 1, rtol=1e-9)
    points, theirs = coordinates(h, found)[:, :count], peer.transform(h.numpy())
    signs = np.sign((found.directions[:count].numpy() * peer.components_).sum(1))
    np.testing.assert_allclose(points, theirs * signs, rtol=0, atol=1e-8)
    assert not found.directions[count:].any() and not found.variances[count:].any()


def test_a_direction_without_variance_is_none():
    line = torch.arange(6.0)[:, None] * torch.tensor([[0.0, -3.0, 4.0, 0.0]])
    found = components(pooled(line))
    torch.testing.assert_close(found.directions[0], torch.tensor([0, -0.6, 0.8, 0]).double())
    assert found.shares.tolist() == pytest.approx([1, 0, 0])
    assert not found.directions[1:].any()
    still = components(pooled(torch.full((5, 4), 7.3)))
    assert still.shares.isnan().all() and not coordinates(torch.full((2, 4), 7.3), still).any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), tokens=st.integers(4, 30), width=st.integers(1, 9))
def test_the_same_cloud_gives_the_same_picture_wherever_it_lies(seed, tokens, width):
    h = cloud(seed, tokens, width)
    found = components(pooled(h))
    points = coordinates(h, found)
    for entries in found.directions:
        if entries.any():
            assert entries[entries.abs().argmax()] > 0
    moved = h + 5.0
    torch.testing.assert_close(
        coordinates(moved, components(pooled(moved, tokens // 2))), points, rtol=0, atol=1e-6
    )
    # Along each direction the mean is 0 and the variance is what is said.
    torch.testing.assert_close(points.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(points.var(0), found.variances, rtol=1e-7, atol=1e-9)
    assert float(found.shares.sum()) <= 1 + 1e-12


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), words=st.integers(1, 5))
def test_apartness_is_a_share_that_no_rotation_changes(seed, words):
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(20, 3, generator=draw, dtype=torch.float64)
    marks = torch.arange(20) % words
    share = float(apartness(points, marks))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=draw, dtype=torch.float64))
    assert -1e-12 <= share <= 1 + 1e-12
    assert float(apartness(4 * points @ turn + 1, marks)) == pytest.approx(share, abs=1e-9)
    assert float(apartness(points, torch.arange(20))) == pytest.approx(1)


def test_the_host_decomposes_what_lies_on_a_device():
    pool = pooled(cloud(0, 40, 6), 7)
    with counted() as found:
        coordinates(cloud(1, 5, 6), components(pool))
    assert found.reads["cpu"] and not found.reads["numpy"], "SciPy reads no tensor of a GPU"
