"""The page of a comparison in a browser: its switches work, and it asks nobody for anything."""

from typing import Any

import pytest

from layerlab.report.pages.comparison import render
from tests.report.support.race import race, single
from tests.report.support.sample import HOSTILE
from tests.report.support.window import PHONE

NAMES = ("llama", "history-1", "history-2")


def show(page: Any, name: str) -> Any:
    """A section, in view and drawn."""
    section = page.locator(f"section#{name}")
    section.scroll_into_view_if_needed()
    page.wait_for_selector(f"section#{name}[data-drawn] .main-svg", state="attached")
    return section


def places(section: Any) -> list[list[float]]:
    """The x of every line with marks."""
    return section.locator("[data-part=plot]").evaluate(
        "node => node.data.filter((t) => t.mode.includes('markers')).map((t) => [...t.x])"
    )


def title(section: Any, axis: str) -> str:
    return section.locator(f"[data-part=plot] .{axis}title").text_content()


@pytest.mark.full
def test_the_axis_the_quantity_and_the_band_are_switched(window):
    content = race(NAMES)
    section = show(window(render(content)), "curves")
    own = content["curves"][0]["evaluation"]
    assert places(section)[0] == own["update"]
    for value, name in (("tokens", "training tokens"), ("flops", "training FLOPs")):
        section.locator("[data-control=x]").select_option(value)
        assert title(section, "x") == name
        assert places(section)[0] == pytest.approx(own[value], rel=1e-4)
    section.locator("[data-control=x]").select_option("seconds")
    assert title(section, "x") == "training time, seconds"
    assert len(places(section)) == len(NAMES)
    assert title(section, "y") == "nats per token, held out"
    section.locator("[data-control=y]").select_option("loss")
    assert title(section, "y") == "training loss, nats per token"
    assert len(places(section)[0]) == len(content["curves"][0]["train"]["loss"])
    fills = section.locator(".plot .js-fill")
    assert fills.count() == len(NAMES)
    section.locator("[data-control=band]").select_option("none")
    assert fills.count() == 0


@pytest.mark.full
def test_seeds_rates_and_arms_are_shown_on_demand(window):
    page = window(render(race(NAMES, rates=(0.001, 0.003))))
    section = show(page, "curves")
    lines = section.locator(".plot .scatterlayer .js-line")
    bands = 2 * len(NAMES)
    assert lines.count() == len(NAMES) + bands
    section.get_by_label("each seed").check()
    assert lines.count() == 4 * len(NAMES) + bands
    section.get_by_label("each seed").uncheck()
    section.get_by_label("other learning rates").check()
    assert lines.count() == 2 * len(NAMES) + bands
    section.get_by_label("other learning rates").uncheck()
    page.locator("#arms label").filter(has_text="history-1").click()
    assert lines.count() == (len(NAMES) - 1) * 3
    assert "history-1" not in section.locator("[data-part=key]").inner_text()
    (told,) = show(page, "paired").locator("figcaption").all_inner_texts()
    assert told.endswith(" nats per token at the end")
    assert show(page, "rates").locator(".plot .scatterlayer").count() == 1


@pytest.mark.full
def test_a_run_that_diverged_ends_in_a_cross_and_is_in_no_band(window):
    content = race(NAMES)
    run = content["runs"][-1]
    run["diverged"] = "the loss is NaN"
    for columns in (content["curves"][-1]["train"], content["curves"][-1]["evaluation"]):
        for name in columns:
            columns[name] = columns[name][: len(columns[name]) // 2]
    section = show(window(render(content)), "curves")
    found = section.locator("[data-part=plot]").evaluate(
        "node => node.data.map((t) => [t.marker?.symbol, t.x.length, t.hovertext?.[0] ?? ''])"
    )
    ((_, length, text),) = [one for one in found if one[0] == "x-thin"]
    assert length == 5 and "seed 3, diverged" in text
    means = [one for one in found if "2 seeds" in one[2]]
    assert [one[1] for one in means] == [10]
    assert "it is in no mean" in section.locator("[data-part=hint]").inner_text()


@pytest.mark.full
def test_a_difference_of_about_zero_shows_the_ends_of_its_interval(window):
    content = race(NAMES[:2])
    for number, point in enumerate(content["paired"][0]["points"]):
        wide = 0.3 if number < 9 else 0.05
        point |= {"difference": 0.001, "low": -wide, "high": wide + 0.002}
    section = show(window(render(content)), "paired")
    low, high = section.locator(".js-plotly-plot").evaluate("node => node.layout.yaxis.range")
    assert -0.1 < low < -0.05 and 0.052 < high < 0.1


@pytest.mark.full
def test_the_monitor_is_a_map_an_arm_and_a_slider_moves_through_the_updates(window):
    page = window(render(race(NAMES)))
    section = show(page, "monitor")
    section.locator(".heatmaplayer image").first.wait_for(state="attached")
    assert section.locator(".heatmaplayer image").count() == len(NAMES)
    profile = section.locator("[data-part=profile]")
    late = profile.evaluate("node => [...node.data[0].y]")
    section.get_by_role("slider").focus()
    page.keyboard.press("Home")
    assert section.locator("[data-part=moment]").inner_text() == "update 40"
    early = profile.evaluate("node => [...node.data[0].y]")
    assert all(a < b for a, b in zip(early, late, strict=True))
    section.get_by_label("Quantity").select_option(label="gradient")
    assert profile.locator(".ytitle").text_content() == "gradient"
    section.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "document.querySelector('[data-part=moment]').textContent !== 'update 40'"
    )


@pytest.mark.full
def test_infinite_readings_of_the_monitor_are_counted_below_its_maps(window):
    content = race(NAMES[:2])
    judged = next(run["run"] for run in content["runs"] if run["arm"] == NAMES[1])
    own = [one for one in content["monitor"] if one["run"] == judged and one["measure"] == "score"]
    own[0]["value"] = "Infinity"
    section = show(window(render(content)), "monitor")
    told = section.locator("[data-part=infinite] li")
    readings = sum(
        one["arm"] == NAMES[1] and one["measure"] == "score" for one in content["monitor"]
    )
    assert told.inner_text().strip() == (
        f"{NAMES[1]}: 1 of {readings:,} readings of score are infinite: they are in no mean, "
        "range or map"
    )
    section.get_by_label("Quantity").select_option(label="gradient")
    assert told.count() == 0


@pytest.mark.full
def test_small_differences_widen_no_page(window):
    """Six decimals, in the forest and in the table, at the width of a small laptop."""
    rows = [
        {**row, "difference": -0.000354, "low": -0.000419, "high": -0.00029, "arm": row["arm"]}
        for row in race()["rows"]
    ]
    page = window(render({**race(), "rows": rows}), viewport={"width": 1200, "height": 900})
    assert page.get_by_text("-0.000419").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    for box in page.locator(".contest .gap, #numbers .scroll").all():
        assert box.evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.full
def test_on_a_phone_nothing_is_wider_than_the_page(window):
    arms = (*NAMES, 60 * "x")
    page = window(render(race(arms)), viewport=PHONE, has_touch=True, is_mobile=True)
    for name in ("curves", "paired", "monitor"):
        show(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    boxes = page.locator(".contest").evaluate_all(
        "nodes => nodes.map((n) => n.getBoundingClientRect().right)"
    )
    assert max(boxes) <= PHONE["width"]


@pytest.mark.full
def test_curves_of_logs_are_drawn_against_steps(window):
    section = show(window(render(race(NAMES) | {"metric": "loss"})), "curves")
    assert section.locator("[data-control=x] option").all_text_contents() == ["steps"]
    assert title(section, "x") == "steps"


@pytest.mark.full
def test_hostile_names_stay_text_where_plots_show_them(window):
    name = f'{HOSTILE}<b>x</b><a href="javascript:1">y</a>%{{y}}'
    page = window(render(race(("llama", name))))
    section = show(page, "curves")
    section.locator(".plot .scatterlayer .points .point").last.hover(force=True)
    hover = section.locator(".plot .hoverlayer .hovertext")
    hover.wait_for(state="attached")
    show(page, "paired")
    assert page.locator(".plot svg a, .plot svg img, .maps svg a").count() == 0
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3


@pytest.mark.full
def test_a_single_run_draws_its_curve_and_an_empty_one_says_so(window):
    section = show(window(render(single(), single=True)), "curves")
    assert len(places(section)) == 1
    empty = window(render({"name": "empty"}, single=True))
    empty.wait_for_selector("section#curves[data-drawn]")
    assert "No run has such a curve yet." in empty.locator("#curves").inner_text()
