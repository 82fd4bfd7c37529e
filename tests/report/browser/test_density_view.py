"""Spectral densities of weight matrices on the page, and as figures."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from layerlab import inspect
from layerlab.report.figures.densities import LAYERS, density, pages
from layerlab.report.views import command
from layerlab.report.views.inspection.density import pictures
from tests.report.browser.test_browser import show
from tests.report.support.window import PHONE


@cache
def weighed() -> dict[str, Any]:
    return inspect("pre-norm", weights=True, progress=False).to_dict()


def entry(layer: int, matrix: str) -> dict[str, Any]:
    (picture,) = pictures(weighed(), "matrices")
    found = [e for e in picture["entries"] if (e["layer"], e["matrix"]) == (layer, matrix)]
    assert len(found) == 1
    return found[0]


@pytest.mark.full
def test_the_bars_are_a_density_of_all_eigenvalues():
    one = entry(3, "mlp.c_fc")
    assert sum(one["counts"]) == 64
    bars, line = density(one).data
    area = sum(y * width for y, width in zip(bars["y"], bars["width"], strict=True) if y)
    assert area == pytest.approx(1)
    # The tail holds the share of the eigenvalues that it was fitted to, up to its end.
    x, y = np.array(line["x"]), np.array(line["y"])
    held = 1 - (x[-1] / x[0]) ** (1 - one["alpha"])
    steps = np.exp(0.5 * np.diff(np.log(y)) + np.log(y[:-1])) * np.diff(x)
    assert steps.sum() == pytest.approx(one["tail"] / 64 * held, rel=0.01)
    assert x[0] == pytest.approx(one["start"])
    assert math.log10(x[-1]) == pytest.approx(one["high"])


@pytest.mark.full
def test_figures_are_made_of_some_layers_of_each_kind_of_matrix():
    (picture,) = pictures(weighed(), "matrices")
    found = pages("matrices", "pre-norm", picture)
    assert len(found) == 4 * LAYERS + 2
    assert "matrices-pre-norm-wte-embedding" in found
    assert len(density({**entry(0, "mlp.c_fc"), "alpha": None}).data) == 1


@pytest.mark.full
def test_a_matrix_is_chosen_and_its_tail_is_said(opened):
    page = opened(weighed())
    section = show(page, "matrices")
    plot = section.locator(".sides .plot").first
    plot.locator(".barlayer").wait_for()
    matrix, layer = (section.locator("[data-part=pictures] select").nth(n) for n in (0, 1))
    matrix.select_option("mlp.c_fc")
    layer.select_option("3")
    one = entry(3, "mlp.c_fc")
    said = section.locator(".sides figcaption").inner_text()
    assert f"exponent {one['alpha']:.3g}" in said
    assert f"{one['tail']} eigenvalues in the tail" in said
    seen = section.locator(".sides .plot").first.evaluate("n => n.data.map((t) => t.y)")
    drawn = density(one).data
    assert [y or 0 for y in seen[0]] == pytest.approx([y or 0 for y in drawn[0]["y"]], rel=1e-6)
    assert seen[1] == pytest.approx(drawn[1]["y"], rel=1e-6)
    matrix.select_option("wte")  # it lies in one layer alone
    assert section.locator(".sides figcaption").inner_text().startswith("embedding")
    assert "on the weights alone" in page.locator("p.lead").inner_text()
    assert command.inspect(weighed()).endswith(" --weights")


@pytest.mark.full
def test_a_page_of_weights_speaks_of_no_text_and_opens_on_a_matrix_of_several_layers(opened):
    report = weighed()
    page = opened({**report, "findings": []})
    section = show(page, "matrices")
    said = page.locator("main").inner_text()
    for words in ("Drag to turn", "over all tokens", "this text", "The text"):
        assert words not in said
    assert "Nothing crossed a threshold in these weights." in said
    assert section.locator("h3").first.inner_text() == "By layer"
    kind = section.locator("[data-control=kind] option:checked").inner_text()
    assert len(set(rows("matrix", kind))) > 1
    tile = page.locator('#glance a[href="#matrices"] small').inner_text()
    first, last = tile.split("\n")[-1].split(" → ")
    assert first != last


@pytest.mark.full
def test_a_density_is_as_wide_as_its_place_and_no_curve_of_weights_is_over_tokens(opened):
    sequences = [{"index": 0, "tokens": 4, "excerpt": "The"}]
    report = {**weighed(), "findings": [], "text": {**weighed()["text"], "sequences": sequences}}
    section = show(opened(report, viewport=PHONE), "matrices")
    assert section.locator("h3").first.inner_text() == "By layer"
    plot = section.locator(".sides .plot")
    drawn = plot.locator(".main-svg").first.bounding_box()
    assert drawn["width"] == plot.bounding_box()["width"]


def rows(axis: str, value: str) -> list[int]:
    """The layers whose rows have a value on an axis."""
    data = weighed()["frames"]["matrices"]["data"]
    return [n for n, one in zip(data["layer"], data[axis], strict=True) if one == value]
