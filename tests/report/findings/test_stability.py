"""What is said of gradients that are not finite."""

import numpy as np

from tests.report.findings.test_find import change, find
from tests.report.reading import LAYERS, content, frames


def test_of_a_last_gradient_that_is_infinite_no_other_is_a_multiple():
    for first in (1.0, np.inf):
        tables = change(frames(), "lipschitz", {"layer": LAYERS - 1}, gradient=np.inf)
        tables = change(tables, "lipschitz", {"layer": 0}, gradient=first)
        assert find(content(), tables) == []
