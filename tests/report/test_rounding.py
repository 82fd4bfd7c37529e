"""What is said of a number format: no verdict that was not tried, and no infinite multiple."""

import re

import numpy as np
import pytest

from tests.report.findings.test_find import change, find, sick
from tests.report.reading import content, frames


def test_of_a_format_of_few_digits_the_finding_is_no_verdict_on_its_inference():
    assert "no verdict" not in sick("answers").advice
    tables = frames()
    tables["logits"] = tables["logits"].replace({"format": {"bf16": "fp8_e4m3"}})
    found = find(content(), change(tables, "logits", {"format": "fp8_e4m3"}, changed=0.3))
    advice = next(one for one in found if one.id.startswith("answers")).advice
    assert "residual stream too" in advice and "--formats mxfp8_e4m3" in advice


@pytest.mark.parametrize("small", [0.0, np.inf, np.nan])
def test_nothing_is_an_infinite_multiple(small: float):
    """Errors of 0 (an all-zero model) or none at all give no factor to speak of."""
    tables = change(frames(), "logits", {"mode": "as-run"}, error=small, kl=small)
    tables = change(tables, "rounding", {"layer": 2}, mean=small, predicted=small)
    tables = change(tables, "attribution", {"by": "component"}, share=small)
    tables = change(tables, "logits", {"mode": "as-run"}, changed=0.3)
    for finding in find(content(), tables):
        assert not re.search(r"\b(inf|nan)\b", finding.sentence), finding.sentence
