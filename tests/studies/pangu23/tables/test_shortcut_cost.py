"""Counts of the augmented shortcut against sums by hand."""

import pytest

from layerlab.model.design import design
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables.series_cost import SIZE
from layerlab.studies.pangu23.tables.shortcut_cost import (
    PRINTED,
    added_parameters,
    judge_by_weights,
    rows,
)

SHAPE = design("as-32", preset=SIZE).shape


@pytest.mark.parametrize("r", PRINTED)
def test_a_bottleneck_is_two_narrow_matrices_per_layer(r):
    assert added_parameters(r) == 2 * SHAPE.width**2 // r * SHAPE.layers


def test_latencies_that_follow_from_the_weights_are_accepted():
    found = [{**row, "printed_latency": row["of_blocks"]} for row in rows()]
    assert judge_by_weights(found).word == "holds" and judge_by_weights(found).number == 1
    found[2]["printed_latency"] *= 3
    assert judge_by_weights(found).word == "fails" and judge_by_weights(
        found
    ).number == pytest.approx(3)


def test_the_verdicts():
    found = study("shortcut-cost", fast=True, progress=False)
    assert [one["word"] for one in found.verdicts] == ["holds", "fails", "fails", "holds"]
    assert found.number == 16 and round(found.verdicts[1]["number"], 1) == 5.1
