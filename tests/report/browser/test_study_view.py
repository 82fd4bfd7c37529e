"""The pictures of a study in a browser."""

from pathlib import Path

import pytest

from layerlab.records.parse import read_json
from layerlab.report.pages.study import render
from tests.report.support.window import DESKTOP, PHONE

STUDIES = Path(__file__).resolve().parents[3] / "docs" / "results" / "studies"


@pytest.mark.full
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_the_titles_of_axes_are_whole_within_the_picture(window, viewport):
    study = read_json(STUDIES / "rounding-input" / "study.json")
    page = window(render(study), viewport=viewport)
    page.wait_for_selector("#picture-0 .ytitle", state="attached")
    assert page.locator(".ytitle tspan").all_text_contents() == [
        "largest relative error of a component, in",
        "units of roundoff",
    ]
    outer = page.locator("#picture-0 .main-svg").first.bounding_box()
    for side in "xy":
        inner = page.locator(f".{side}title").bounding_box()
        for start, size in (("x", "width"), ("y", "height")):
            assert inner[start] >= outer[start]
            assert inner[start] + inner[size] <= outer[start] + outer[size]
