"""The norms of forms by products alone, beside a decomposition of their factors."""

import pytest
import torch
from torch import Tensor

from layerlab.measures.quantities.weights.querykey import factored_spectrum
from layerlab.training.monitor.form_norms import form_norms, squared_forms


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norms(query: Tensor, key: Tensor) -> Tensor:
    return form_norms(squared_forms(query, key))


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_norms_are_those_of_a_decomposition(kv_heads, scale):
    query, key = random(6, 16, 40, seed=0) * scale, random(kv_heads, 16, 40, seed=1)
    expected = factored_spectrum(query, key)[:, 0]
    assert norms(query, key).tolist() == pytest.approx(expected.tolist(), rel=1e-8)


def test_equal_singular_values_have_their_norm():
    turned = torch.linalg.qr(random(64, 64, seed=2)).Q[None]
    assert norms(3 * turned, turned).tolist() == pytest.approx([3.0], rel=1e-8)


def test_a_form_far_smaller_than_its_factors_has_its_norm():
    query, key = random(1, 8, 40, seed=3), random(1, 8, 40, seed=4)
    query[:, :4] *= 1e-3
    key[:, 4:] *= 1e-3
    expected = factored_spectrum(query, key)[:, 0]
    assert norms(query, key).tolist() == pytest.approx(expected.tolist(), rel=1e-8)


def test_heads_of_zeros_and_without_finite_weights_spare_the_others():
    query, key = random(4, 8, 40, seed=5), random(4, 8, 40, seed=6)
    expected = factored_spectrum(query, key)[:, 0]
    query[0] = 0
    query[1, 2, 3] = torch.nan
    key[2, 0, 0] = torch.inf
    found = norms(query, key)
    assert found[0] == 0 and found[1:3].isnan().all()
    assert float(found[3]) == pytest.approx(float(expected[3]), rel=1e-8)
