"""What is said of attention beside its place: the head of a sharp layer, and whose norm it is."""

import math

import pytest

from tests.report.findings.test_find import SPOT, change, find
from tests.report.support.reading import content, frames


def test_of_a_sharp_layer_its_sharpest_head_is_named():
    tables = change(frames(), "attention", {"layer": 3}, entropy=0.06, sink_mass=0.1)
    tables = change(tables, "attention", SPOT, entropy=0.04)
    # The sharpest head of all is in a layer whose others are not.
    tables = change(tables, "attention", {"layer": 2, "head": 1, "sequence": 0}, entropy=0.01)
    (found,) = find(content(), tables)
    assert (found.severity, found.layer, found.head) == ("warning", 3, 2)
    assert found.value == pytest.approx((0.06 * 7 + 0.04) / 8)
    assert found.sentence.endswith("lowest in head 2")
    assert found.detail == "attention/healthy/1/3/2"


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (5.0 / 0.81, "nearly is the norm: most tokens attend to one"),
        (5.0 / 0.79, "a few share it"),
        (math.nan, "many tokens attend to the same few"),
    ],
)
def test_a_large_norm_is_laid_to_one_token_where_its_column_allows_hardly_more(bound, told):
    readings = {"norm": 5.0, "lower": 5.0, "upper": 5.0, "uniform_ratio": 4.0}
    tables = change(frames(), "spectrum", SPOT, **readings, column_bound=bound)
    (found,) = find(content(), tables)
    assert told in found.advice and "nan" not in found.advice
