"""The page of an evaluation in a browser."""

from typing import Any

import pytest

from layerlab.report.pages.evaluation import render
from tests.report.pages.test_evaluation import scored
from tests.report.support.window import PHONE

DESK = {"width": 1400, "height": 900}
LINES = """boxes => boxes.map((box) => [...box.children].map((line) => {
  const place = line.getBoundingClientRect();
  return [line.textContent, place.top, place.bottom];
}))"""


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_score_stands_above_its_interval_and_its_verdict(window, size):
    content: dict[str, Any] = scored()
    for row in content["benchmarks"]:
        row |= {"guessing": {"tests": 1, "above": False}, "score": 0.0, "error": None}
    page = window(render(content), viewport=size)
    found = [lines for lines in page.locator(".contest .gap").evaluate_all(LINES) if lines]
    assert found
    for lines in found:
        assert lines[0][0].startswith("0.00 of 40")
        tops = [line[1] for line in lines]
        assert tops == sorted(set(tops)) and len(lines) == 3
        assert lines[-1][0] == "not above chance"
