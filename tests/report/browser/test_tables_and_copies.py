"""Tables that sort and are saved, commands that are copied, heads that open: in a browser."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab.report.pages import adaptation, comparison, evaluation, vocabulary
from layerlab.report.pages.inspection import render
from tests.report.browser.test_browser import show
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.report.support.race import race
from tests.report.support.sample import sample
from tests.report.support.window import PHONE, attention_map
from tests.report.test_chinese import proved

CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


def saved(page: Any, button: Any) -> list[list[str]]:
    """The rows of the file that a button saves."""
    with page.expect_download() as told:
        button.click()
    assert told.value.suggested_filename.endswith(".csv")
    return list(csv.reader(io.StringIO(Path(told.value.path()).read_text("utf-8"))))


@pytest.mark.full
def test_tables_of_a_comparison_sort_by_what_they_hold_not_by_how_it_is_written(window):
    content = race(("llama", "history-1", "history-2"), updates=40)
    memory = [9e8, 1.2e9, 4e6]
    for row, value in zip(content["rows"], memory, strict=True):
        row["peak_memory_bytes"] = value
    page = window(comparison.render(content))
    table = page.locator("table[data-csv=cost]")
    head = table.get_by_role("columnheader", name="Peak memory")
    for way, down in (("ascending", False), ("descending", True)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == way
        cells = table.locator("tbody td:nth-child(4)").evaluate_all(
            "cells => cells.map((cell) => Number(cell.dataset.value))"
        )
        assert cells == sorted(memory, reverse=down)
    # The baseline has no difference: it stays last, whichever way.
    numbers = page.locator("table[data-csv=numbers]")
    for _ in range(2):
        numbers.get_by_role("columnheader", name="p (Holm)").get_by_role("button").click()
        assert "llama" in numbers.locator("tbody tr").last.inner_text()


@pytest.mark.full
def test_a_table_is_saved_with_all_the_digits_of_its_numbers(window):
    content = race(("llama", "history-1", "history-2"), updates=40)
    content["rows"][1]["arm"] = content["arms"][1] = 'a "b", c'
    content["runs"] = [
        {**run, "arm": content["arms"][1]} if run["arm"] == "history-1" else run
        for run in content["runs"]
    ]
    page = window(comparison.render(content))
    head, *rows = saved(page, page.get_by_role("button", name="Download numbers as CSV"))
    assert head[:3] == ["Arm", "Seeds", "Nats"] and len(rows) == len(content["rows"])
    by_arm = {row[0]: row for row in rows}
    assert float(by_arm['a "b", c'][2]) == content["rows"][1]["nats"]
    assert by_arm["llama"][head.index("p (Holm)")] == ""


@pytest.mark.full
def test_values_of_a_measure_are_saved_as_they_are_shown(opened):
    page = opened(sample(["a", "b"], layers=2, heads=2))
    section = show(page, "stream")
    section.get_by_text("Values as a table").click()
    section.get_by_role("columnheader", name="norm").get_by_role("button").click()
    head, *rows = saved(page, section.get_by_role("button", name="as CSV"))
    assert head[:3] == ["model", "layer", "norm"]
    assert {row[0] for row in rows} == {"a", "b"} and {row[1] for row in rows} == {"-1", "0", "1"}
    norms = [float(row[2]) for row in rows]
    assert norms == sorted(norms) and len(rows) == 6


@pytest.mark.parametrize(
    "kind",
    [
        "inspect",
        *(
            pytest.param(one, marks=pytest.mark.full)
            for one in ("compare", "evaluate", "adapt", "vocabulary")
        ),
    ],
)
def test_how_to_repeat_it_is_a_command_to_copy(window, kind):
    asked = {"models": ["llama"], "text": "built-in sample", "samples": 2, "context": 64}
    report = sample(["a"], layers=2, heads=2)
    report["options"] = {**asked, "measures": {"dimension": {"epsilon": 0.8}}}
    draw, command = {
        "inspect": (
            lambda: render(report),
            "layerlab inspect llama --samples 2 --context 64 --measures 'dimension(epsilon=0.8)'",
        ),
        "compare": (lambda: comparison.render(race()), "layerlab compare recipe.toml"),
        "evaluate": (
            lambda: evaluation.render(scored()),
            "layerlab evaluate before after --suite boolq --limit 40 --compare",
        ),
        "adapt": (lambda: adaptation.render(passed()), "layerlab adapt recipe.toml"),
        "vocabulary": (
            lambda: vocabulary.render(proved()),
            "layerlab adapt vocabulary --tokenizer words --size +20 --corpus x --out changed",
        ),
    }[kind]
    page = window(draw(), **CLIPBOARD)
    page.locator("#repeat .copy").last.click()
    page.get_by_text("Copied").first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command


@pytest.mark.full
def test_a_prompt_is_not_copied(window):
    content = {
        **race(("llama", "history-1"), updates=40),
        "command": "$ layerlab compare twin.toml",
    }
    page = window(comparison.render(content), **CLIPBOARD)
    page.locator("#repeat .copy").last.click()
    page.get_by_text("Copied").first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "layerlab compare twin.toml"


@pytest.mark.full
def test_what_came_from_python_has_no_command():
    report = sample(["a"], layers=2, heads=2)
    report["options"] = {"models": ["memory"], "text": "built-in sample"}
    page = render(report)
    assert "no command repeats this inspection" in page and "layerlab inspect memory" not in page


def click_cell(page: Any, section: Any, layer: int, row: int | str) -> None:
    """Click the middle of a cell of the first heat map, once the map knows where the mouse is."""
    drawing = section.locator(".map").first
    place = drawing.evaluate(
        """(node, [x, y]) => {
            const { xaxis, yaxis } = node._fullLayout;
            const box = node.getBoundingClientRect();
            return [box.x + xaxis._offset + xaxis.d2p(x), box.y + yaxis._offset + yaxis.d2p(y)];
        }""",
        [layer, row],
    )
    page.mouse.move(*place)
    # Plotly takes note of the mouse at most every so often, and a click of what it last noted.
    page.wait_for_function(
        """([node, x, y]) => (node._hoverdata || []).some((one) => one.x === x && one.y === y)""",
        arg=[drawing.element_handle(), layer, row],
    )
    page.mouse.click(*place)


@pytest.mark.full
def test_any_cell_of_a_heat_map_opens_its_head(opened):
    report = sample(["pre-norm"], layers=3, heads=4)
    page = opened(report)
    section = show(page, "querykey")
    section.locator(".map .heatmaplayer image").wait_for(state="attached")
    section.locator(".map").scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    click_cell(page, section, 2, 0)
    dialog = page.get_by_role("dialog")
    assert dialog.locator("h2").inner_text() == "pre-norm: layer 2, head 0"
    assert "no map of its attention" in dialog.inner_text()
    data = report["frames"]["querykey"]["data"]
    places = list(zip(data["layer"], data["head"], strict=True))
    row = dialog.locator("tbody tr").filter(has_text="condition").inner_text().split("\t")
    own = data["condition"][places.index((2, 0))]
    assert float(row[2].replace(",", "")) == pytest.approx(own, rel=1e-3)
    rank = 1 + sum(value > own for value in data["condition"])
    assert row[-1] == f"{rank} of {len(places)}"
    page.keyboard.press("Escape")

    click_cell(page, section, 1, 2)
    dialog.locator(".heatmaplayer image").wait_for(state="attached")
    assert dialog.locator("h2").inner_text() == "pre-norm: layer 1, head 2"


@pytest.mark.full
def test_a_cell_of_the_map_of_matrices_opens_the_curve_of_its_matrix(opened, tiny):
    report = layerlab.inspect(tiny("llama"), measures=["matrices"], progress=False)
    rows = report.frame("matrices")
    page = opened(report.to_dict())
    section = show(page, "matrices")
    section.locator('[data-control="column"]').select_option("norm")
    section.locator(".map").scroll_into_view_if_needed()
    cells = section.locator(".map").evaluate("n => ({...n.data[0], hovertext: null})")
    inner = rows[~rows["matrix"].isin(["embed_tokens", "lm_head"])]
    expected = inner.pivot(index="matrix", columns="layer", values="norm")
    assert [set(cells["y"]), cells["x"]] == [set(expected.index), list(expected.columns)]
    for name, line in zip(cells["y"], cells["z"], strict=True):
        assert line == pytest.approx(list(expected.loc[name]), rel=1e-3)
    page.wait_for_timeout(200)
    click_cell(page, section, 1, "self_attn.v_proj")
    chosen = section.locator('[data-control="kind"] option:checked')
    assert chosen.inner_text() == "self_attn.v_proj"
    curve = section.locator('[data-part="lines"]').evaluate("node => node.data[0].y")
    assert curve == pytest.approx(list(expected.loc["self_attn.v_proj"]), rel=1e-3)


@pytest.mark.full
def test_matrices_that_are_called_nearly_alike_have_rows_of_their_own_and_one_alone_no_map(
    opened, tiny
):
    whole = layerlab.inspect(tiny("llama"), measures=["matrices"], progress=False).to_dict()
    data = whole["frames"]["matrices"]["data"]
    for names, expected in ((["_up", "_down"], [2]), (["_up", "_up"], [])):
        called = dict(zip(("mlp.up_proj", "mlp.down_proj"), names, strict=True))
        kept = [at for at, name in enumerate(data["matrix"]) if name in called]
        columns = {key: [values[at] for at in kept] for key, values in data.items()}
        columns["matrix"] = ["a" * 50 + called[name] for name in columns["matrix"]]
        whole["frames"]["matrices"]["data"] = columns
        section = show(opened(whole), "matrices")
        section.locator('[data-control="column"]').select_option("norm")
        assert (
            section.locator(".map").evaluate_all("all => all.map((n) => new Set(n.data[0].y).size)")
            == expected
        )


@pytest.mark.full
def test_a_matrix_whose_readings_are_all_infinite_has_a_row_without_colours(opened, tiny):
    whole = layerlab.inspect(tiny("llama"), measures=["matrices"], progress=False).to_dict()
    data = whole["frames"]["matrices"]["data"]
    named = list(zip(data["matrix"], data["layer"], strict=True))
    for lost in (["mlp.up_proj"], [matrix for matrix, _ in named]):
        data["norm"] = ["Infinity" if m in lost else 2.0 + layer for m, layer in named]
        section = show(opened(whole), "matrices")
        section.locator('[data-control="column"]').select_option("norm")
        maps = section.locator(".map").evaluate_all(
            "all => all.map(({ data: [{ y, z }] }) => "
            "Object.fromEntries(y.map((name, i) => [name, z[i]])))"
        )
        if len(lost) > 1:
            assert maps == []
        else:
            assert maps[0]["mlp.up_proj"] == [None, None] and maps[0]["mlp.down_proj"] == [2, 3]


@pytest.mark.full
def test_the_table_of_the_attention_dialog_follows_the_slider(opened):
    report = sample(["pre-norm"], layers=3, heads=4)
    page = opened(report)
    dialog = attention_map(page)
    weights = report["details"]["head"]["weights"]
    for row in (len(weights) - 1, 3):
        dialog.get_by_role("slider").fill(str(row))
        shown = dialog.locator("[data-part=keys] tbody tr").all_inner_texts()
        found = [float(one.split("\t")[2]) for one in shown]
        most = sorted((weight / 255 for weight in weights[row] if weight), reverse=True)[:8]
        assert found == pytest.approx(most, rel=1e-2)


def edge(box: Any, side: str) -> bytes:
    """What is seen at an edge of a box that scrolls, beside its text."""
    place = box.bounding_box()
    width, start = 10, place["x"] if side == "left" else place["x"] + place["width"] - 10
    clip = {"x": start, "y": place["y"] + 60, "width": width, "height": 20}
    return box.page.screenshot(clip=clip)


@pytest.mark.full
def test_a_table_that_goes_on_has_a_shade_at_that_edge(opened):
    page = opened(sample(["a"], heads=1, sequences=1), viewport=PHONE)
    section = page.locator("section#spectrum")
    section.get_by_text("Values as a table").click()
    box = section.locator(".scroll")
    box.locator("tr").first.wait_for()
    assert box.evaluate("node => node.scrollWidth > node.clientWidth + 100")
    box.evaluate("node => { node.scrollIntoView(); node.firstChild.style.visibility = 'hidden'; }")
    page.mouse.move(0, 0)
    first = edge(box, "left"), edge(box, "right")
    box.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    last = edge(box, "left"), edge(box, "right")
    assert first[0] == last[1] != first[1]
    assert last[0] not in first[:1]


def test_on_a_phone_the_verdict_on_a_benchmark_is_seen_without_scrolling(window):
    page = window(evaluation.render(scored()), viewport=PHONE)
    table = page.locator("table[data-csv=benchmarks]")
    title = table.locator("thead th").filter(has_text="verdict").bounding_box()
    assert title["x"] + title["width"] <= PHONE["width"]


@pytest.mark.full
def test_on_a_phone_a_caption_is_read_whole_and_a_long_name_leaves_room_for_numbers(window):
    page = window(render(sample(["a", "a-long-name-" * 5])), viewport=PHONE)
    section = show(page, "stream")
    section.get_by_text("Values as a table").click()
    box = section.locator(".scroll.tall").bounding_box()
    caption = section.locator("caption").bounding_box()
    assert caption["width"] <= box["width"]
    name = section.locator("tbody th").last.bounding_box()
    assert name["width"] <= 0.7 * box["width"]
