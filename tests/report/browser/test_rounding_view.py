"""How the error of a number format is drawn, in a browser."""

from itertools import pairwise
from typing import Any

import pytest

from tests.report.browser.test_browser import show
from tests.report.support.sample import sample

pytestmark = pytest.mark.full


def bounded(**limits: float) -> dict[str, Any]:
    """A report of one model whose gain has bounds beside its readings, as multiples of them."""
    report = sample(["a"])
    measure = next(one for one in report["measures"] if one["name"] == "spectrum")
    data = report["frames"]["spectrum"]["data"]
    measure["bounds"] = []
    for name, factor in limits.items():
        data[name] = [factor * value for value in data["norm"]]
        bound = {"column": "norm", "limit": name, "side": "beside", "source": "Own"}
        measure["bounds"].append({**bound, "vacuous": 1e9})
    return report


@pytest.mark.full
def test_beside_dashed_lines_the_reading_is_named_too(opened):
    key = show(opened(bounded(upper=2.0)), "spectrum").locator("[data-part=key] .reading")
    assert key.inner_text().strip().startswith("norm:")


@pytest.mark.full
def test_names_of_lines_that_end_side_by_side_do_not_overlap(opened):
    report = bounded(upper=1.05, lower=1.06, column_bound=1.07, token_bound=1e3)
    texts = show(opened(report), "spectrum").locator("[data-part=lines] .annotation-text")
    boxes = [box for box in (text.bounding_box() for text in texts.all()) if box and box["width"]]
    assert len(boxes) == 4 + 1  # and the line from which on they say nothing
    boxes.sort(key=lambda box: box["y"])
    for above, below in pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"] + 2


@pytest.mark.full
def test_a_bound_that_is_finite_in_one_layer_is_seen_there(opened):
    report = bounded(upper=3.0)
    data = report["frames"]["spectrum"]["data"]
    data["upper"] = [
        value if layer == 0 else "Infinity"
        for value, layer in zip(data["upper"], data["layer"], strict=True)
    ]
    section = show(opened(report), "spectrum")
    trace = section.page.evaluate(
        """() => document.querySelector("#spectrum .plot").data
            .filter((t) => t.line.dash === "dash").map((t) => [t.mode, t.marker.size])"""
    )
    ((mode, sizes),) = trace
    assert "markers" in mode and sizes[0] > 0 and not any(sizes[1:])


def test_where_something_is_cannot_be_plotted_and_stands_in_the_table(opened):
    report = sample(["a"])
    measure = next(one for one in report["measures"] if one["name"] == "stream")
    measure["columns"] = {**measure["columns"], "largest_token": "its position"}
    measure["roles"] = {"largest_token": "index"}
    frame = report["frames"]["stream"]
    frame["columns"] = list(dict.fromkeys([*frame["columns"], "largest_token"]))
    frame["data"]["largest_token"] = [3] * len(frame["data"]["layer"])
    section = show(opened(report), "stream")
    choices = section.locator("[data-control=column] option").all_inner_texts()
    assert "largest" in choices and "largest_token" not in choices
    section.locator("details.values summary").click()
    table = section.locator("[data-part=table]")
    table.locator("tr").first.wait_for()
    assert "of largest_token the most frequent value" in table.locator("caption").inner_text()
