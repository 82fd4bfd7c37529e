"""Several models on a page in a real browser: whose what is, and where each stands."""

import pytest

from layerlab.report.views.inspection import frames as inspection
from tests.report.browser.test_browser import show
from tests.report.support.sample import sample
from tests.report.support.window import PHONE, attention_map


@pytest.mark.full
def test_a_picture_opens_for_its_model_and_a_layer_stands_at_its_depth(opened):
    names = [f"/data/{'long/' * 20}{run}/checkpoint-5" for run in ("one", "two")]
    report = sample(names, layers=[8, 3], sequences=1)
    data = report["frames"]["spectrum"]["data"]
    kept = [m != names[0] or n < 4 for m, n in zip(data["model"], data["layer"], strict=True)]
    for name, values in data.items():
        data[name] = [value for value, keep in zip(values, kept, strict=True) if keep]
    page = opened(report)
    dialog = attention_map(page)
    assert dialog.locator("h2").inner_text().endswith("/one/checkpoint-5: layer 1, head 2")
    page.keyboard.press("Escape")
    page.locator("#models [value='1']").check(force=True)
    shown = page.locator(".finding:visible")
    assert shown.count() == 1 and "/two/checkpoint-5" in shown.inner_text()
    page.locator("#models [value=all]").check(force=True)
    show(page, "spectrum")
    places = page.locator("#spectrum [data-part=lines]").evaluate(
        "node => node.data.filter((t) => t.hovertext && t.mode === 'lines+markers').map((t) => t.x)"
    )
    assert places[0] == pytest.approx([1 / 8, 2 / 8, 3 / 8, 4 / 8])


@pytest.mark.full
def test_checkpoints_are_drawn_against_their_training_step(opened):
    steps = [3000, 1000, 2000, None]
    report = sample([f"checkpoint-{s}" for s in steps], layers=2, sequences=1, steps=steps)
    section = show(opened(report), "dimension")
    assert section.get_by_role("heading", name="Over training").is_visible()
    lines = section.locator("[data-part=steps] .scatterlayer .trace")
    assert lines.count() == 4
    assert lines.first.locator(".point").count() == 3
    rows = inspection.frame(report, "dimension").set_index(["model", "layer"])
    value = rows["effective_dimension"]["checkpoint-1000"]
    drawn = section.locator("[data-part=steps] .plot").evaluate(
        "node => node.data.map((trace) => [trace.name, trace.y[0]])"
    )
    assert dict(drawn) == pytest.approx(
        {
            "mean over layers": (value[0] + value[1]) / 2,
            **{"first layer": value[0], "middle layer": value[1], "last layer": value[1]},
        },
        rel=1e-3,
    )


@pytest.mark.full
def test_the_embedding_is_named_level_and_whole_on_a_phone(opened):
    section = show(opened(sample(["a", "b"], layers=8, heads=1), viewport=PHONE), "stream")
    named = section.locator(".xtick text", has_text="embedding").first
    assert "rotate(90" not in named.get_attribute("transform")
    assert named.bounding_box()["width"] > named.bounding_box()["height"]
