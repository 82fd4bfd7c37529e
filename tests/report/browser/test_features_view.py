"""The features of frequent tokens in a browser: two projections, or a body that turns."""

from typing import Any

import numpy as np
import pytest

from tests.report.browser.test_browser import show
from tests.report.support.clouded import WORDS, clouded
from tests.report.support.window import PHONE

pytestmark = pytest.mark.full

DRAWN = ".sides .plot[data-layer='{}'][data-view='{}']"


def test_two_projections_of_models_side_by_side_follow_the_layer(opened):
    report = clouded()
    section = show(opened(report), "features")
    page = section.page
    section.locator("[data-part=pictures] select").select_option("sides")
    section.locator(DRAWN.format(0, "sides")).nth(1).wait_for()
    sides = section.locator(".sides figure")
    left, right = (sides.nth(side).bounding_box() for side in (0, 1))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    assert section.locator("[data-part=pictures] select").input_value() == "sides"

    section.locator("[data-part=pictures] input").fill("3")
    plot = section.locator(DRAWN.format(2, "sides")).first
    plot.wait_for()
    points = report["pictures"]["features"]["pre-norm"]["points"][3]
    seen = plot.evaluate("n => n.data.map((t) => ({x: t.x, y: t.y, text: t.hovertext[0]}))")
    largest = max(abs(v) for word in points for point in word for v in point)
    for word, drawn in enumerate(seen[::2]):
        for place, (x, y, z) in enumerate(points[word]):
            assert abs(drawn["x"][place] - x) < 2e-3 * largest
            assert abs(drawn["y"][place] - y) < 2e-3 * largest
            assert abs(seen[2 * word + 1]["y"][place] - z) < 2e-3 * largest
    assert plot.locator(".scatterlayer .point").count() == 2 * 12 * len(WORDS)
    # One unit is as long across as it is up, in both projections.
    units = plot.evaluate(
        "n => ['xaxis', 'yaxis', 'xaxis2', 'yaxis2'].map((a) => "
        "n._fullLayout[a]._length / (n._fullLayout[a].range[1] - n._fullLayout[a].range[0]))"
    )
    assert max(units) - min(units) < 0.01 * max(units)

    # Hostile tokens are text, in the key and beside a point.
    assert page.evaluate("window.__pwned") is None
    key = sides.nth(0).locator(".key").inner_text()
    assert "</script><img" in key and "⟨U+202E⟩abc" in key and "<b>x</b>" in key
    assert "&lt;/script" in seen[2]["text"] and "sequence 0, position 1" in seen[2]["text"]
    assert "direction 1: 40\N{NO-BREAK SPACE}%" in plot.inner_text()
    assert "of the spread of these points" in sides.nth(0).inner_text()


def places(plot: Any) -> np.ndarray:
    """Where the points of all tokens are drawn, whatever axes are drawn beside them."""
    drawn = plot.evaluate(
        "n => n.data.filter((t) => t.mode === 'markers').map((t) => [[...t.x], [...t.y]])"
    )
    return np.concatenate([np.array(one).T for one in drawn])


@pytest.mark.full
def test_the_body_is_turned_by_hand_and_by_keys_and_stays_as_it_was_turned(opened):
    report = clouded(["a"])
    section = show(opened(report), "features")
    plot, page = section.locator(DRAWN.format(0, "body")), section.page
    plot.wait_for()
    layer = report["pictures"]["features"]["a"]["points"]
    points = np.array([point for word in layer[1] for point in word])
    before, box = places(plot), plot.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 200
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y + 40, steps=4)
    page.mouse.up()
    plot.focus()
    page.keyboard.press("ArrowLeft")
    turned = places(plot)
    assert np.abs(before - turned).max() > 0.1 * np.abs(points).max()
    # What is seen are the points along two directions at right angles, each of length 1.
    for seen in (before, turned):
        directions = np.linalg.lstsq(points, seen, rcond=None)[0]
        assert seen == pytest.approx(points @ directions, abs=3e-3 * np.abs(points).max())
        assert directions.T @ directions == pytest.approx(np.eye(2), abs=1e-2)

    section.locator("[data-part=pictures] input").fill("2")
    plot = section.locator(DRAWN.format(1, "body"))
    plot.wait_for()
    later = np.array([point for word in layer[2] for point in word])
    assert places(plot) == pytest.approx(later @ directions, abs=1e-2 * np.abs(later).max())
    section.locator("[data-part=pictures] select").select_option("sides")
    section.locator(DRAWN.format(1, "sides")).wait_for()
    assert section.locator(".turning").count() == 0


@pytest.mark.full
def test_one_model_alone_and_on_a_phone(opened):
    page = opened(clouded(), viewport=PHONE)
    section = show(page, "features")
    page.locator("#models input[value='1']").check(force=True)
    section.locator(DRAWN.format(0, "body")).wait_for()
    assert section.locator(".sides figure").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
