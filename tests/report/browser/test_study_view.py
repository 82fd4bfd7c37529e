"""The pictures of a study in a browser."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from layerlab.records.parse import read_json
from layerlab.report.pages.study import render
from tests.report.support.window import DESKTOP, PHONE, Open

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
    # The policy of the page lets no function wait in it.
    while page.evaluate("document.querySelector('.main-svg').clientWidth") >= PHONE["width"]:
        page.wait_for_timeout(20)
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


def opened(window: Open, name: str, number: int, viewport: Any) -> Any:
    """The page of a study with one of its pictures alone."""
    study = read_json(STUDIES / name / "study.json")
    page = window(render({**study, "pictures": [study["pictures"][number]]}), viewport=viewport)
    page.wait_for_selector("#picture-0 .xtick text", state="attached")
    return page


def ticks(page: Any, side: str) -> list[str]:
    return page.locator(f"#picture-0 .{side}tick text").all_text_contents()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "number", "side"),
    [("norm-placement", 3, "y"), ("saliency-repeat", 1, "x"), ("qk-control", 0, "x")],
)
def test_ticks_stand_apart_on_a_phone_and_are_as_asked_for_on_a_desktop(window, name, number, side):
    page = opened(window, name, number, PHONE)
    boxes = [one.bounding_box() for one in page.locator(f"#picture-0 .{side}tick text").all()]
    boxes.sort(key=lambda one: one[side])
    size = {"x": "width", "y": "height"}[side]
    assert len(boxes) >= 2
    for before, after in pairwise(boxes):
        assert before[side] + before[size] <= after[side] + 1
    few = ticks(page, side)
    many = ticks(opened(window, name, number, DESKTOP), side)
    assert len(few) < len(many)


@pytest.mark.full
def test_a_curve_of_one_point_stands_on_a_scale_from_zero(window):
    assert ticks(opened(window, "spikes", 1, PHONE), "x") == ["0", "1M", "2M"]


@pytest.mark.full
def test_a_wide_table_scrolls_in_its_box_and_not_the_page(window):
    page = opened(window, "bounds-table", 0, PHONE)
    page.locator("details").evaluate_all("nodes => nodes.forEach((one) => { one.open = true; })")
    boxes = page.locator("#tables .scroll")
    wider = boxes.evaluate_all("nodes => nodes.map((one) => one.scrollWidth - one.clientWidth)")
    assert max(wider) > 100
    boxes.nth(wider.index(max(wider))).evaluate("one => one.scrollTo(100, 0)")
    moved = boxes.evaluate_all("nodes => nodes.map((one) => one.scrollLeft)")
    assert max(moved) == 100
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
