"""The page in a real browser: it draws, sorts, switches, opens, and asks nobody for anything."""

from typing import Any

import pytest
from playwright.sync_api import expect

from layerlab.report.results.report import Report
from tests.report.support.reading import content, frames
from tests.report.support.sample import HOSTILE, attention_detail, sample
from tests.report.support.window import PHONE, attention_map

pytestmark = pytest.mark.full


def show(page: Any, measure: str) -> Any:
    """The section of a measure, in view and drawn."""
    section = page.locator(f"section#{measure}")
    section.scroll_into_view_if_needed()
    page.wait_for_selector(f"section#{measure}[data-drawn]")
    return section


def column(page: Any, measure: str, title: str) -> list[str]:
    """The cells of a table's column, from above."""
    return page.evaluate(
        """([measure, title]) => {
            const table = document.querySelector(`#${measure} table.sortable`);
            const at = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent === title);
            return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);
        }""",
        [measure, title],
    )


def header(section: Any, title: str) -> Any:
    return section.locator("table.sortable th").filter(
        has=section.page.get_by_text(title, exact=True)
    )


def test_every_measure_draws_a_line_with_its_points_once_it_comes_into_view(opened):
    report = sample(layers=3, sequences=2)
    page = opened(report)
    assert page.locator("section#gain[data-drawn]").count() == 0
    for measure in report["measures"]:
        section = show(page, measure["name"])
        section.locator(".plot .scatterlayer .point").first.wait_for(state="attached")
        points = section.locator(".plot .scatterlayer .points .point").count()
        layers = set(report["frames"][measure["name"]]["data"]["layer"])
        assert points == len(report["models"]) * len(layers), measure["name"]
        maps = section.locator(".map .heatmaplayer image").count()
        assert maps == (len(report["models"]) if "head" in measure["per"] else 0)
    assert page.locator("#glance polyline").count() == 3 * len(report["measures"])


def test_a_measure_without_layers_has_bars_at_a_glance(opened):
    whole = Report(content(), frames()).to_dict()
    page = opened(whole)
    assert page.locator("#glance a").count() == len(whole["measures"])
    tile = page.locator('#glance a[href="#attribution"]')
    assert tile.locator("rect").count() == len(whole["frames"]["attribution"]["data"]["part"])
    shares = whole["frames"]["attribution"]["data"]["share"]
    said = tile.locator("small").inner_text().split()
    assert [float(said[-3]), float(said[-1])] == pytest.approx([min(shares), max(shares)], rel=1e-3)


def test_a_bound_is_dashed_and_a_violation_is_flagged_with_its_layer(opened):
    report = sample(["a"])
    data = report["frames"]["spectrum"]["data"]
    for index, layer in enumerate(data["layer"]):
        if layer == 4:
            data["column_bound"][index] = data["norm"][index] / 2
    section = show(opened(report), "spectrum")
    dashed = section.locator(".plot .scatterlayer path.js-line[style*='stroke-dasharray']")
    styles = dashed.evaluate_all("nodes => nodes.map((n) => n.style.strokeDasharray)")
    assert any(style not in {"", "none"} for style in styles)
    verdict = section.locator(".verdicts .violated")
    assert verdict.count() == 1
    assert "layer 4" in verdict.inner_text()
    assert "by up to 100\N{NO-BREAK SPACE}%" in verdict.inner_text()
    assert "token_bound" in " ".join(section.locator(".verdicts .holds").all_inner_texts())
    section.get_by_label("bounds").uncheck()
    assert "token_bound" not in section.locator("[data-part=key]").inner_text()


def test_a_table_sorts_by_click_and_by_keyboard_with_missing_values_last(opened):
    report = sample(["a"])
    data = report["frames"]["stream"]["data"]
    for index, layer in enumerate(data["layer"]):
        if layer == 2:
            data["norm"][index] = None
    page = opened(report)
    section = show(page, "stream")
    section.get_by_text("Values as a table").click()
    title = header(section, "norm")
    assert title.get_attribute("aria-sort") == "none"
    title.get_by_role("button").click()
    assert header(section, "norm").get_attribute("aria-sort") == "ascending"
    upward = column(page, "stream", "norm")
    assert upward[-1] == "–"
    assert [float(v) for v in upward[:-1]] == sorted(float(v) for v in upward[:-1])
    page.keyboard.press("Enter")
    assert header(section, "norm").get_attribute("aria-sort") == "descending"
    downward = column(page, "stream", "norm")
    assert downward == [*reversed(upward[:-1]), "–"]


def test_the_model_switch_filters_plots_maps_tables_and_findings(opened):
    report = sample(["a", "b", "c"], layers=3, sequences=2)
    page = opened(report)
    section = show(page, "querykey")
    section.get_by_text("Values as a table").click()
    assert section.locator(".map").count() == 3
    assert page.locator(".finding:visible").count() == 4
    page.get_by_role("radio", name="All").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="b").is_checked()
    assert section.locator(".map").count() == 1
    layers = set(report["frames"]["querykey"]["data"]["layer"])
    assert section.locator(".plot .scatterlayer .point").count() == len(layers)
    assert set(column(page, "querykey", "model")) == {"b"}
    assert page.locator(".finding:visible").count() == 0
    assert "0 findings about b" in page.locator("#findings-count").inner_text()


@pytest.mark.full
def test_quantity_and_place_are_chosen_from_lists(opened):
    page = opened(sample(["a"]))
    section = show(page, "diversity")
    before = section.locator(".plot path.js-line").first.get_attribute("d")
    section.get_by_label("Place").select_option(label="ffn")
    after = section.locator(".plot path.js-line").first.get_attribute("d")
    assert before != after
    section.get_by_label("Quantity").select_option("cosine")
    assert section.locator(".plot .ytitle").text_content() == "cosine"
    assert "pairwise cosine" in section.locator("[data-part=meaning]").inner_text()


def test_a_finding_opens_the_curve_of_its_quantity_with_its_threshold(opened):
    report = sample(["a"])
    report["findings"][0] |= {"column": "logit_max", "threshold": 100.0}
    report["findings"][1] |= {"measure": "diversity", "column": "cosine", "kind": "ffn"}
    page = opened(report)
    page.get_by_role("link", name="logit_max").click()
    section = show(page, "attention")
    title = section.locator(".plot .ytitle")
    title.wait_for(state="attached")
    assert title.text_content() == "logit_max"
    assert section.locator(".plot .annotation-text").text_content() == "threshold100"
    assert section.locator(".plot .shapelayer path").count() == 1
    section.get_by_label("Quantity").select_option("entropy")
    assert section.locator(".plot .annotation-text").count() == 0
    page.get_by_role("link", name="Token diversity: cosine").click()
    assert show(page, "diversity").get_by_label("Place").input_value() == "2"


def axis_marks(section: Any) -> list[str]:
    section.locator(".plot .ytick text").first.wait_for(state="attached")
    return section.locator(".plot .ytick text").all_text_contents()


@pytest.mark.parametrize(
    ("factor", "marks"),
    [
        pytest.param(1.15, {"1", "1.2", "1.4", "1.6"}, id="narrow"),
        pytest.param(2.5, {"1", "2", "5", "10", "20", "50"}, id="decades", marks=pytest.mark.full),
        pytest.param(10.0, {"1", "10", "100", "1,000"}, id="wide", marks=pytest.mark.full),
    ],
)
def test_a_scale_in_powers_has_numbers_in_full(opened, factor, marks):
    report = sample(["a"], layers=4)
    data = report["frames"]["stream"]["data"]
    data["norm"] = [factor ** (layer + 1) for layer in data["layer"]]
    section = show(opened(report), "stream")
    section.get_by_label("log scale").check()
    assert marks <= {*axis_marks(section)}
    assert all(float(mark.replace(",", "")) > 0 for mark in axis_marks(section))


def test_every_tile_names_its_quantity(opened):
    page = opened(sample(["a"]))
    said = page.locator(".glance a[href='#stream'] small").inner_text()
    assert said.startswith("norm\n") and "→" in said


def test_a_page_is_read_by_its_keys_and_findings_open_what_they_are_about(opened):
    report = sample(layers=3, sequences=2)
    page = opened(report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

    button = page.get_by_role("button", name="Show its attention map")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.locator(".heatmaplayer image").wait_for(state="attached")
    assert dialog.locator("h2").inner_text() == "pre-norm: layer 1, head 2"
    assert dialog.locator(".strip span").count() == 40
    assert "␣King" in dialog.locator(".strip").inner_text()
    dialog.get_by_role("slider").focus()
    page.keyboard.press("ArrowLeft")
    assert dialog.locator(".strip span").count() == 39
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()  # the browser says later that it is closed

    page.get_by_role("button", name="Show its largest channels").click()
    rows = dialog.locator("tbody tr")
    expect(rows).to_have_count(len(report["details"]["channels"]["channels"]))
    assert "channel 7" in rows.nth(1).inner_text()
    page.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


@pytest.mark.full
def test_an_attention_map_of_parts_has_a_gap_wherever_positions_are_left_out(opened):
    report = sample(["a"])
    shown = [*range(4), *range(251, 255), 449]
    detail = attention_detail("a", [f"w{position}" for position in shown])
    report["details"]["head"] = detail | {"queries": shown}
    page = opened(report)
    dialog = attention_map(page)
    hint = dialog.locator(".hint").first.inner_text()
    assert "the positions 0–3, 251–254, 449 are shown" in hint
    strip = dialog.locator(".strip")
    assert strip.inner_text() == "w0w1w2w3⋯w251w252w253w254⋯w449"
    title = strip.locator(".gap").first.get_attribute("title")
    assert title == "positions 4 to 250 are not shown"
    ticks = dialog.locator(".ytick text").all_text_contents()
    assert ticks[:6] == ["0 w0", "1 w1", "2 w2", "3 w3", "⋯", "251 w251"]
    cells = dialog.locator(".plot").evaluate("node => node.data[0].z")
    assert len(cells) == len(cells[0]) == len(shown) + 2
    assert cells[4] == [None] * 11
    assert [row[4] for row in cells] == [None] * 11
    assert cells[5][3] is not None


def test_hostile_names_tokens_and_sentences_stay_text_everywhere(opened):
    name = f'{HOSTILE}<b>x</b><a href="javascript:1">y</a>%{{y}}'
    report = sample([name])
    words = [HOSTILE, "<img/src=x onerror=window.__pwned=1>", "<b>bold</b>", "&lt;i&gt;"] * 4
    report["details"]["head"] = attention_detail(name, words)
    report["findings"][0]["sentence"] = HOSTILE
    page = opened(report)
    section = show(page, "spectrum")
    section.get_by_text("Values as a table").click()
    point = section.locator(".plot .scatterlayer .points .point").first
    point.hover(force=True)
    hover = section.locator(".plot .hoverlayer .hovertext")
    hover.wait_for(state="attached")
    assert "</script><img src=x" in hover.text_content()
    assert section.locator(".plot svg a, .plot svg img").count() == 0
    page.get_by_role("button", name="Show its attention map").click()
    page.get_by_role("dialog").locator(".heatmaplayer image").wait_for(state="attached")
    ticks = page.get_by_role("dialog").locator(".xtick text").all_text_contents()
    assert "2 <b>bold<" in ticks
    assert "3 &lt;i&gt" in ticks
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.full), "dark"])
def test_the_page_follows_the_system_and_the_toggle_overrides_it(opened, scheme):
    page = opened(sample(["a"]), color_scheme=scheme)

    def darkness() -> bool:
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(n) for n in paper[4:-1].split(",")) < 3 * 128

    assert darkness() == (scheme == "dark")
    show(page, "stream")
    for _ in range(3):
        before = darkness()
        page.get_by_role("button", name=f"Show {'light' if before else 'dark'} colours").click()
        assert darkness() != before
    remembered = page.evaluate("localStorage.layerlabTheme")
    assert remembered == ("light" if scheme == "dark" else "dark")
    ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--muted')")
    show(page, "stream")  # what is out of view is drawn again once it is seen
    colour = "rgb({}, {}, {})".format(*bytes.fromhex(ink.strip()[1:]))
    expect(page.locator("#stream .xtick text").first).to_have_css("fill", colour)


@pytest.mark.full
def test_a_phone_never_scrolls_sideways(opened):
    names = ["a-model-with-quite-a-long-name-" * 3, "b", "c"]
    report = sample(names, layers=24, heads=12, sequences=1)
    page = opened(report, viewport=PHONE, has_touch=True, is_mobile=True)
    for measure in report["measures"]:
        section = show(page, measure["name"])
        section.get_by_text("Values as a table").click()
        section.get_by_text("Definition:").click()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    page.get_by_role("button", name="Show its attention map").click()
    page.get_by_role("dialog").locator(".heatmaplayer image").wait_for(state="attached")
    box = page.get_by_role("dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    inner = page.get_by_role("dialog").evaluate("node => node.scrollWidth - node.clientWidth")
    assert inner <= 0


def empty_columns() -> dict[str, Any]:
    report = sample(["a"], sequences=1)
    data = report["frames"]["attention"]["data"]
    data["entropy"] = [None] * len(data["entropy"])
    report["frames"]["gain"]["data"] = {k: [] for k in report["frames"]["gain"]["data"]}
    return report


@pytest.mark.full
@pytest.mark.parametrize(
    "report",
    [
        pytest.param(sample(["a"], sequences=1, findings=False), id="without a finding"),
        pytest.param(sample(["a"], layers=1, heads=1, sequences=1), id="one layer and one head"),
        pytest.param(sample(["a", "b"], layers=[3, 9], sequences=1), id="unlike depths"),
        pytest.param(
            sample([f"model-{i}" for i in range(12)], layers=2, heads=2, sequences=1),
            id="twelve models",
        ),
    ],
)
def test_unusual_reports_draw_as_well(opened, report):
    everything_drawn(opened(report), report)


def everything_drawn(page: Any, report: dict[str, Any]) -> None:
    for measure in report["measures"]:
        section = show(page, measure["name"])
        drawn = section.locator(".plot .scatterlayer .points .point").count()
        assert drawn or section.locator(".absent p:visible").count()


def test_columns_without_a_reading_say_so_in_place_of_the_plot(opened):
    report = empty_columns()
    page = opened(report)
    everything_drawn(page, report)
    section = show(page, "attention")
    assert "No reading of entropy" in section.locator("[data-part=absent]").inner_text()
    section.get_by_label("Quantity").select_option("sink_mass")
    assert not section.locator("[data-part=absent] p:visible").count()
    assert section.locator(".plot .point").count()


@pytest.mark.full
def test_what_is_not_applicable_stands_in_place_of_the_plot(opened):
    report = sample(["a", "b"])
    frame = report["frames"]["gain"]
    keep = [i for i, model in enumerate(frame["data"]["model"]) if model == "a"]
    frame["data"] = {k: [v[i] for i in keep] for k, v in frame["data"].items()}
    report["measures"][-1]["not_applicable"] = [{"model": "b", "reason": "it has sinks"}]
    page = opened(report)
    section = show(page, "gain")
    said = section.locator(".absent p")
    assert "not applicable, because it has sinks" in said.inner_text()
    # Drawn or not, sections above may have moved it out of view, where it is not drawn anew.
    page.get_by_role("radio", name="a", exact=True).check()
    show(page, "gain")
    said.wait_for(state="hidden")
    page.get_by_role("radio", name="b", exact=True).check()
    show(page, "gain")
    said.wait_for(state="visible")
    assert section.locator(".plot .point").count() == 0


def test_many_findings_are_shown_ten_at_first(opened):
    report = sample(["a"])
    one = report["findings"][0]
    report["findings"] = [{**one, "id": f"f{i}"} for i in range(23)]
    page = opened(report)
    assert page.locator(".finding:visible").count() == 10
    page.get_by_role("button", name="Show all 23 findings").click()
    assert page.locator(".finding:visible").count() == 23
