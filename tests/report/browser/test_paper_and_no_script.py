"""Pages on paper, and in a browser that runs no script."""

from typing import Any

import pytest

from layerlab.report.pages import comparison, inspection, paired
from tests.evaluation.paired.written_samples import judged_sample
from tests.report.browser.test_comparison_browser import NAMES
from tests.report.browser.test_comparison_browser import show as show_part
from tests.report.support.looked import looked
from tests.report.support.race import race
from tests.report.support.sample import sample
from tests.report.support.window import DESKTOP

pytestmark = pytest.mark.full
# What a printer is given: the listener is the last of all.
PRINTED = """find => addEventListener("beforeprint", () => {
  const all = (query, read) => [...document.querySelectorAll(query)].map(read);
  window.printed = {
    paper: getComputedStyle(document.body).backgroundColor,
    ticks: all(".plot .xtick text", (one) => one.style.fill),
    maps: document.querySelectorAll("#saliency .heatmaplayer image").length,
  };
}, { once: true })"""
LIGHT, DARK = "rgb(251, 250, 247)", "rgb(20, 22, 26)"
MUTED = "rgb(91, 97, 107)"
# Between margins of a centimetre.
A4 = {"width": 718, "height": 1047}
WIDTHS = """() => [...document.querySelectorAll("table")]
  .map((one) => Math.round(one.getBoundingClientRect().width))"""


def printed(page: Any) -> dict[str, Any]:
    """What stands on a page at the moment at which it is printed."""
    page.evaluate(PRINTED)
    page.pdf()
    found: dict[str, Any] = page.evaluate("window.printed")
    return found


def on_paper(page: Any, query: str, style: str) -> set[str]:
    """The values that a style has on paper, at all that a query finds."""
    page.emulate_media(media="print")
    found = page.locator(query).evaluate_all(
        f"nodes => nodes.map((node) => getComputedStyle(node).{style})"
    )
    page.emulate_media(media="screen")
    return set(found)


@pytest.mark.full
def test_a_dark_page_is_printed_light_with_its_plots_and_is_dark_again(window):
    page = window(comparison.render(race(NAMES)), color_scheme="dark")
    show_part(page, "curves")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    found = printed(page)
    assert found["paper"] == LIGHT and set(found["ticks"]) == {MUTED}
    page.wait_for_function(f"getComputedStyle(document.body).backgroundColor === '{DARK}'")


@pytest.mark.full
def test_a_map_that_was_not_looked_at_is_printed_as_well(window):
    page = window(inspection.render(looked(["a"], layers=1)), viewport={"width": 800, "height": 90})
    page.wait_for_function("window.Plotly")
    page.wait_for_timeout(300)
    assert page.locator("#saliency[data-drawn]").count() == 0
    page.evaluate(PRINTED.replace("beforeprint", "kept"))
    page.evaluate(
        """async () => {
          dispatchEvent(new Event("beforeprint"));
          for (let i = 0; i < 9; i += 1) await null;
          dispatchEvent(new Event("kept"));
        }"""
    )
    assert page.evaluate("window.printed.maps") == 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["inspect", "compare", "judge"])
def test_all_of_a_page_is_as_narrow_as_paper_and_as_wide_as_the_window_again(window, kind):
    made = {
        "inspect": lambda: inspection.render(sample(["a", "b"], layers=2, heads=2), "zh"),
        "compare": lambda: comparison.render(race(NAMES)),
        "judge": lambda: paired.render(judged_sample()),
    }
    page = window(made[kind](), viewport=DESKTOP)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for section in page.locator("section.measure, section[data-drawing]").all():
        section.scroll_into_view_if_needed()
        section.locator(":scope[data-drawn]").or_(section).first.wait_for()
    wide = page.evaluate(WIDTHS)
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= A4["width"]
    shrunk = page.locator("table[style*=zoom]")
    assert shrunk.count() > 0
    page.emulate_media(media="screen")
    page.set_viewport_size(DESKTOP)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shrunk.count() == 0
    assert page.evaluate(WIDTHS) == wide


@pytest.mark.full
def test_paper_keeps_what_was_chosen_and_whole_texts_and_no_button(window):
    page = window(comparison.render(race(NAMES)))
    show_part(page, "curves")
    assert on_paper(page, "#curves label:has(select)", "display") != {"none"}
    assert on_paper(page, "#curves select", "appearance") == {"none"}
    assert on_paper(page, "#curves :is(.tick, .modebar)", "display") == {"none"}
    assert on_paper(page, "#runs th", "position") == {"static"}
    assert on_paper(page, "#runs td:last-child", "whiteSpace") == {"normal"}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["inspect", "compare"])
def test_without_a_script_a_page_says_so_first_and_leaves_no_blank(window, kind):
    text = inspection.render(sample(layers=2, heads=2))
    if kind == "compare":
        text = comparison.render(race(NAMES))
    page = window(text, java_script_enabled=False)
    box = page.locator("noscript .warned").bounding_box()
    assert box is not None and box["y"] < 200
    for query in (".plot", ".controls", ".switch", "#glance", ".open", ".measure .values"):
        assert not [one for one in page.locator(query).all() if one.is_visible()], query
