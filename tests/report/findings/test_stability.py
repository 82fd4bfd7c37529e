"""What is said of gradients and of the stream beside their thresholds."""

import numpy as np
import pytest

from tests.report.findings.test_find import change, find
from tests.report.support.reading import LAYERS, content, frames


def test_of_a_last_gradient_that_is_infinite_no_other_is_a_multiple():
    for first in (1.0, np.inf):
        tables = change(frames(), "lipschitz", {"layer": LAYERS - 1}, gradient=np.inf)
        tables = change(tables, "lipschitz", {"layer": 0}, gradient=first)
        assert find(content(), tables) == []


def test_a_longer_text_counts_for_more_as_it_does_in_the_curve():
    whole = content()
    for sequence, tokens in zip(whole["text"]["sequences"], (300, 100), strict=True):
        sequence["tokens"] = tokens
    last = {"layer": LAYERS - 1}
    for long, short, growth in ((600, 100, 475 / 4), (100, 600, None)):
        tables = change(frames(), "stream", last | {"sequence": 0}, norm=float(long))
        tables = change(tables, "stream", last | {"sequence": 1}, norm=float(short))
        found = [one.value for one in find(whole, tables)]
        assert found == ([] if growth is None else [pytest.approx(growth)])


@pytest.mark.parametrize(
    ("first", "word", "told", "threshold"),
    [
        (1e4, "explodes", "expect the first layers to react too strongly", 1e3),
        (1e-4, "vanishes", "The first layers hardly learn", 1e-3),
    ],
)
def test_a_gradient_that_explodes_is_held_and_advised_otherwise_than_one_that_vanishes(
    first, word, told, threshold
):
    tables = change(frames(), "lipschitz", {}, gradient=1.0)
    tables = change(tables, "lipschitz", {"layer": 0}, gradient=first)
    (found,) = find(content(), tables)
    assert (found.value, found.threshold) == pytest.approx((first, threshold))
    assert word in found.sentence and told in found.advice
