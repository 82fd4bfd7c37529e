"""Gram matrices in parts: those of one product, symmetric, of any size, batch and layout."""

import pytest
import torch

from layerlab.measures.support.centring import LARGE, PARTS, form_gram


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("rows", [0, 1, LARGE - 1, LARGE, LARGE + 5, LARGE + PARTS])
def test_is_the_product_in_one_piece(rows):
    matrix = drawn(rows, 40)
    found, whole = form_gram(matrix), matrix @ matrix.mT
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    assert torch.equal(found.isfinite(), whole.isfinite())
    if rows < LARGE:  # what was stored of small models stays as it is
        assert torch.equal(found, whole)


def test_of_each_matrix_of_a_batch_into_what_is_given():
    batch, out = drawn(2, LARGE + 1, 24), drawn(3, LARGE + 1, LARGE + 1)
    found = form_gram(batch.mT.contiguous().mT, out=out[1:])
    torch.testing.assert_close(out[1:], batch @ batch.mT, rtol=0, atol=1e-12)
    assert found.data_ptr() == out[1].data_ptr()


def test_mirrors_what_is_not_finite():
    matrix = drawn(LARGE, 8)
    matrix[LARGE - 1, 3] = torch.nan
    found = form_gram(matrix)
    assert found[-1].isnan().all() and found[:, -1].isnan().all()
    assert found[:-1, :-1].isfinite().all()


def test_is_outside_autograd():
    assert not form_gram(drawn(LARGE, 2).requires_grad_()).requires_grad
