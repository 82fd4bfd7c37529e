"""Counts of the series activation against sums by hand."""

import pytest

from layerlab.model.design import design
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables.series_cost import SIZE, count_costs, excess

SHAPE = design("siaf-1", preset=SIZE).shape


@pytest.mark.parametrize("n", [2, 3, 4])
def test_scales_and_shifts_are_two_numbers_per_term_and_channel(n):
    more = count_costs(n, "affine-in").parameters - count_costs(1, "affine-in").parameters
    assert more == 2 * n * SHAPE.inner * SHAPE.layers
    assert count_costs(n, "affine-in").forward == count_costs(1, "affine-in").forward


def test_a_matrix_per_term_is_another_gate():
    more = count_costs(2, "multi-projection").forward - count_costs(1, "multi-projection").forward
    assert more == 2 * SHAPE.width * SHAPE.inner * SHAPE.layers


def test_per_cent_above():
    assert excess(7.56, 7.56) == 0 and round(excess(7.76, 7.56), 1) == 2.6


def test_the_verdicts():
    found = study("series-cost", fast=True, progress=False)
    assert [one["word"] for one in found.verdicts] == ["holds", "fails", "fails"]
    assert found.number < 0.1 and round(found.verdicts[2]["number"], 2) == 1.65
