"""How bounds are drawn and what is said of them, in a browser."""

import re

import pytest

from tests.report.browser.test_browser import show
from tests.report.support.sample import sample

pytestmark = pytest.mark.full


def drawn_dashes(section):
    """Lengths of the dashes of all dashed lines of the plot."""
    lines = section.locator("[data-part=lines] .scatterlayer path.js-line")
    styles = lines.evaluate_all("nodes => nodes.map((n) => getComputedStyle(n).strokeDasharray)")
    return [tuple(re.findall(r"[\d.]+", s)) for s in styles if s not in {"", "none"}]


def key_dashes(section):
    lines = section.locator("[data-part=key] svg.dash line")
    styles = lines.evaluate_all("nodes => nodes.map((n) => n.getAttribute('stroke-dasharray'))")
    return [tuple(re.findall(r"[\d.]+", s)) for s in styles]


def apart():
    """A report whose five bounds of the attention norm all lie off the line."""
    report = sample(["a", "b"])
    data = report["frames"]["spectrum"]["data"]
    data["upper"] = [v * 1.1 for v in data["norm"]]
    data["lower"] = [v * 0.9 for v in data["norm"]]
    data["token_bound"] = [v * 1.4 for v in data["norm"]]
    return report


def test_five_bounds_have_five_dashes_and_the_key_names_each(opened):
    section = show(opened(apart()), "spectrum")
    key = key_dashes(section)
    assert len(key) == len(set(key)) == 5
    assert set(drawn_dashes(section)) == set(key)
    named = section.locator("[data-part=key] span").filter(has=section.page.locator("svg.dash"))
    names = [text.split()[1] for text in named.all_inner_texts()]
    assert names == ["column_bound", "token_bound", "upper", "lower", "row_lower"]


@pytest.mark.full
def test_of_several_models_a_bound_has_the_colour_of_its_model(opened):
    section = show(opened(apart()), "spectrum")
    colours = section.locator("[data-part=lines] .scatterlayer path.js-line").evaluate_all(
        """nodes => nodes.map((n) => [n.style.strokeDasharray, n.style.stroke])
            .filter(([dash]) => dash && dash !== "none").map(([, stroke]) => stroke)"""
    )
    assert len(colours) == 10
    assert len(set(colours)) == 2


@pytest.mark.full
def test_a_bound_on_the_line_itself_shows_no_dash_in_the_key(opened):
    report = sample(["a"])
    data = report["frames"]["spectrum"]["data"]
    data["upper"] = list(data["norm"])
    section = show(opened(report), "spectrum")
    entry = section.locator("[data-part=key] span").filter(has_text="upper (wielandt50)")
    assert "of the line" in entry.inner_text()
    assert entry.locator("svg.dash").count() == 0


def test_a_bound_ten_times_above_the_readings_is_shown_in_powers(opened):
    report = sample(["a"])
    data = report["frames"]["gain"]["data"]
    data["bound"] = [40 * v for v in data["measured"]]
    section = show(opened(report), "gain")
    assert section.get_by_label("log scale").is_checked()
    assert "off this scale" not in section.locator("[data-part=key]").inner_text()


@pytest.mark.full
def test_a_bound_near_the_readings_is_not(opened):
    report = sample(["a"])
    assert not show(opened(report), "gain").get_by_label("log scale").is_checked()


def test_what_readings_use_of_a_bound_is_a_share_and_not_called_tightness(opened):
    report = sample(["a"])
    data = report["frames"]["gain"]["data"]
    data["bound"] = [2 * v for v in data["measured"]]
    verdicts = show(opened(report), "gain").locator(".verdicts").inner_text()
    assert "readings are 50\N{NO-BREAK SPACE}% of the bound" in verdicts
    assert "tight" not in verdicts


@pytest.mark.full
def test_of_a_lower_bound_the_share_is_that_of_the_readings(opened):
    verdicts = show(opened(sample(["a"])), "spectrum").locator(".verdicts")
    line = verdicts.locator("li").filter(has_text="row_lower")
    assert "the bound is 80\N{NO-BREAK SPACE}% of the readings" in line.inner_text()


def test_readings_that_are_infinite_are_counted_where_the_others_are_drawn(opened):
    report = sample(["a", "b"], layers=2, heads=2, sequences=1)
    data = report["frames"]["querykey"]["data"]
    data["condition"][1] = "Infinity"
    section = show(opened(report), "querykey")
    assert section.locator(".verdicts .loose").count() == 0
    section.locator("[data-control=column]").select_option("condition")
    assert section.locator(".verdicts .loose").inner_text().strip() == (
        "a: 1 of 4 readings of condition are infinite: they are in no mean, range or map"
    )
    section.get_by_text("Values as a table").click()
    table = section.locator("details.values tbody tr")
    table.first.wait_for()  # it is drawn when it is opened
    rows = table.all_inner_texts()
    assert [row.endswith("\t–\t–") for row in rows] == [True, False, False, False]


@pytest.mark.full
def test_readings_that_had_not_converged_are_counted_for_the_models_shown(opened):
    report = sample(["a", "b"], layers=2, sequences=1)
    data = report["frames"]["lipschitz"]["data"]
    data["residual"] = [0.3 if m == "a" else 0.01 for m in data["model"]]
    page = opened(report)
    line = show(page, "lipschitz").locator(".verdicts .loose")
    assert line.inner_text() == (
        "3 of 6 readings had not converged (residual above 0.1): local is a lower bound"
    )
    page.get_by_role("radio", name="b", exact=True).check()
    assert line.count() == 0


@pytest.mark.full
def test_a_model_of_one_layer_stands_in_the_middle_and_the_axis_says_so(opened):
    page = opened(sample(["a", "b"], layers=[1, 5]))
    section = show(page, "spectrum")
    assert "a single layer: 0.5" in section.locator("[data-part=lines] .xtitle").text_content()
    single = page.evaluate(
        """() => document.querySelector("#spectrum .plot").data
            .filter((t) => t.mode === "lines+markers" && t.x.length === 1).map((t) => t.x[0])"""
    )
    assert single == [0.5]
