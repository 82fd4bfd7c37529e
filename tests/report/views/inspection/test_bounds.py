import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.report.views.inspection.bounds import COARSE_SLACK, FINE_SLACK, excess, violations
from layerlab.report.views.inspection.frames import reach


@pytest.mark.parametrize(("side", "sign"), [("upper", 1), ("lower", -1)])
@pytest.mark.parametrize(("dtype", "slack"), [("float32", FINE_SLACK), ("bfloat16", COARSE_SLACK)])
@given(
    limits=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=8),
    beyond=st.floats(2.5 * COARSE_SLACK, 0.9),
)
@settings(max_examples=40, deadline=None)
def test_a_bound_is_violated_beyond_rounding_and_only_then(
    dtype, slack, side, sign, limits, beyond
):
    bound = {"column": "value", "limit": "limit", "side": side}
    limit = pd.Series(limits)
    rows = pd.DataFrame({"limit": limit, "value": limit * (1 + sign * beyond)})
    assert violations(rows, bound, dtype).all()
    # Half the slack lies within it whatever the rounding of the product.
    at = pd.DataFrame({"limit": limit, "value": limit * (1 + sign * slack / 2)})
    assert not violations(at, bound, dtype).any()
    assert (reach(rows, bound) > 1).all()


def test_a_missing_bound_is_not_violated_and_not_counted():
    rows = pd.DataFrame({"value": [1.0, 2.0], "limit": [math.nan, math.inf]})
    bound = {"column": "value", "limit": "limit", "side": "upper"}
    assert not violations(rows, bound, "float32").any()
    assert excess(rows, bound).isna().all() and reach(rows, bound).isna().all()


def test_a_measure_that_knows_its_rounding_has_the_last_word():
    rows = pd.DataFrame({"value": [2.0, 2.0], "limit": [1.0, 1.0], "violated": [0.0, 1.0]})
    bound = {"column": "value", "limit": "limit", "side": "upper"}
    assert violations(rows, bound, "float32").tolist() == [False, True]
