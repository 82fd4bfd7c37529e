"""What a reader meets first: findings, and headings that say what the contents say."""

from collections.abc import Callable
from typing import Any

import pytest

from layerlab.report.pages import adaptation, comparison, evaluation, inspection, vocabulary
from layerlab.report.pages.inspection import render
from tests.report.pages.test_evaluation import scored
from tests.report.support.passed import passed
from tests.report.support.race import race
from tests.report.support.sample import sample
from tests.report.support.window import PHONE
from tests.report.test_chinese import proved, raced

DESK = {"width": 1400, "height": 900}
FIRST = ".finding, .contest"
PAGES: dict[str, Callable[[str], str]] = {
    "inspect": lambda lang: inspection.render(sample(layers=2, heads=2), lang),
    "compare": lambda lang: comparison.render(raced(), lang),
    "evaluate": lambda lang: evaluation.render(scored(), lang),
    "adapt": lambda lang: adaptation.render(passed(), lang),
    "vocabulary": lambda lang: vocabulary.render(proved(), lang),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [pytest.param(DESK, id="desk"), pytest.param(PHONE, id="phone")])
@pytest.mark.parametrize("kind", ["inspect", "compare"])
def test_the_first_finding_is_seen_without_scrolling(window, kind, size):
    page = window(
        render(sample(layers=2, heads=2)) if kind == "inspect" else comparison.render(race()),
        viewport=size,
    )
    box = page.locator(FIRST).first.bounding_box()
    assert box is not None and box["y"] + box["height"] <= size["height"]


@pytest.mark.few(2)
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", PAGES)
def test_the_contents_say_what_the_headings_say(window, kind, lang):
    pairs = (
        window(PAGES[kind](lang))
        .locator(".contents a")
        .evaluate_all(
            """links => links.map((link) => [link.textContent.trim(),
            document.querySelector(`${link.hash} :is(h1, h2)`).textContent.trim()])"""
        )
    )
    assert pairs and [said for said, heading in pairs if said != heading] == []


@pytest.mark.full
def test_the_models_are_folded_and_a_hash_is_whole_on_a_click(window):
    report: dict[str, Any] = sample(["a"], layers=2, heads=2)
    whole = "sha256:files:" + "0123456789abcdef" * 4
    report["models"][0]["weights_hash"] = whole
    page = window(render(report))
    models = page.locator("#model")
    assert not models.locator("table").is_visible()
    models.get_by_text("Size, weights, card").click()
    hashed = models.locator(".hash")
    hashed.wait_for()  # what is folded is shown a moment after the click
    assert "…" in hashed.inner_text() and whole not in hashed.inner_text()
    hashed.locator("summary").click()
    assert whole in hashed.inner_text()


@pytest.mark.full
def test_a_finding_has_a_link_that_shows_it_even_where_it_is_not_among_the_first(window):
    report: dict[str, Any] = sample(["a"], layers=2, heads=2)
    one = report["findings"][0]
    report["findings"] = [{**one, "id": f"f{i}"} for i in range(23)]
    page = window(render(report), "f20")
    page.locator("#f20").wait_for()
    link = page.locator("#f20").get_by_role("link", name="Link to this result")
    link.click()
    assert page.evaluate("location.hash") == "#f20"
    assert page.locator(".finding .anchor").count() == 23


@pytest.mark.full
def test_readings_and_bounds_stand_apart_in_lists_of_quantities(window):
    page = window(render(sample(["a"], layers=2, heads=2)))
    groups = page.locator("#spectrum [data-control=column] optgroup").evaluate_all(
        "groups => groups.map((g) => [g.label, [...g.children].map((o) => o.value)])"
    )
    assert [name for name, _ in groups] == ["Readings", "Bounds"]
    assert "norm" in groups[0][1] and "column_bound" in groups[1][1]
    assert page.locator("#stream optgroup").count() == 0


@pytest.mark.full
def test_a_page_that_cannot_draw_says_so_and_its_tables_still_work(window):
    text = render(sample(["a"], layers=2, heads=2))
    start = text.index('id="drawing">') + len('id="drawing">')
    page = window(text[:start] + "AAAA" + text[text.index("</script>", start) :])
    assert "need a browser of 2023" in page.get_by_role("alert").inner_text()
    section = page.locator("#stream")
    assert not section.locator(".plot").is_visible()
    section.get_by_text("Values as a table").click()
    section.locator("table.sortable").wait_for()
    assert section.locator("table.sortable tbody tr").count() == 3
