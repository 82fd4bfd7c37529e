"""The pictures of a study in a browser."""

from itertools import pairwise
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
    lines = page.locator(".ytitle tspan").all_text_contents()
    assert len(lines) > 1
    title = "largest relative error of a component, in units of roundoff"
    assert " ".join(lines) == title
    outer = page.locator("#picture-0 .main-svg").first.bounding_box()
    for side in "xy":
        inner = page.locator(f".{side}title").bounding_box()
        for start, size in (("x", "width"), ("y", "height")):
            assert inner[start] >= outer[start]
            assert inner[start] + inner[size] <= outer[start] + outer[size]


@pytest.mark.full
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["bounds-table", "norm-placement", "precision-advice"])
def test_titles_and_rows_are_whole_and_apart_in_a_window_made_narrow(window, name, lang):
    page = window(render(read_json(STUDIES / name / "study.json"), lang), viewport=DESKTOP)
    page.wait_for_selector("#picture-0 .xtitle", state="attached")
    page.set_viewport_size(PHONE)
    page.wait_for_function(f"document.querySelector('.main-svg').clientWidth < {PHONE['width']}")
    outer = page.locator("#picture-0 .main-svg").first.bounding_box()
    for text in page.locator("#picture-0 :is(.xtitle, .ytitle, .ytick text)").all():
        inner = text.bounding_box()
        for start, size in (("x", "width"), ("y", "height")):
            assert inner[start] >= outer[start] - 1, text.text_content()
            assert inner[start] + inner[size] <= outer[start] + outer[size] + 1, text.text_content()
    rows = [one.bounding_box() for one in page.locator("#picture-0 .ytick text").all()]
    rows.sort(key=lambda one: one["y"])
    for above, below in pairwise(rows):
        assert above["y"] + above["height"] <= below["y"] + 2
