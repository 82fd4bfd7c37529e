"""The saliency of a prompt, in a browser."""

import pytest

from tests.report.browser.test_browser import show
from tests.report.support.looked import looked
from tests.report.support.sample import HOSTILE

pytestmark = pytest.mark.full


@pytest.mark.full
def test_models_stand_side_by_side_and_tokens_are_coloured_by_what_is_chosen(opened):
    section = show(opened(looked()), "saliency")
    page, sides = section.page, section.locator(".sides figure")
    assert sides.count() == 2
    left, right = (sides.nth(side).bounding_box() for side in (0, 1))
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]

    tokens = sides.nth(0).locator(".strip span")
    assert tokens.count() == 11
    assert tokens.nth(9).inner_text() == HOSTILE[:23].replace(" ", "␣") + "…"
    assert page.evaluate("window.__pwned") is None
    assert "⟨U+202E⟩abc" in tokens.nth(10).inner_text()
    assert tokens.nth(1).get_attribute("class") == "earlier"
    assert tokens.nth(10).get_attribute("class") == "self"
    weights = [
        int(t.evaluate("n => parseInt(n.style.getPropertyValue('--weight'))")) for t in tokens.all()
    ]
    assert max(weights) == 100 and min(weights) > 0

    section.locator("[data-part=pictures] select").select_option("product")
    assert "against" in tokens.nth(3).get_attribute("class")
    assert "against" not in (tokens.nth(4).get_attribute("class") or "")
    caption = sides.nth(0).locator("figcaption").inner_text()
    assert caption.strip().startswith("pre-norm: logit of")


def test_the_map_follows_the_layer_and_shows_what_was_packed(opened):
    section = show(opened(looked(["a"])), "saliency")
    plot = section.locator(".sides .plot[data-layer='-1']")
    plot.wait_for()
    assert section.locator("[data-part=pictures] output").inner_text() == "embedding"
    section.locator("[data-part=pictures] input").fill("2")
    plot = section.locator(".sides .plot[data-layer='1']")
    plot.wait_for()
    trace = plot.evaluate("n => ({z: n.data[0].z, text: n.data[0].hovertext})")
    # The byte of token 5 and bin 3 is 23, the root of its share of the largest value, 3.
    assert trace["z"][3][5] == 23 / 255
    assert trace["text"][3][5].endswith(f"channels 12 to 15<br>{3 * (23 / 255) ** 2:.4g}")
    assert "&lt;/script" in trace["text"][0][9]
    assert section.locator("[data-part=pictures] output").inner_text() == "1"
    assert "Features here: mean cosine" in section.locator(".sides").inner_text()


@pytest.mark.full
def test_one_model_alone_and_on_a_phone(opened):
    page = opened(looked(), viewport={"width": 390, "height": 844})
    section = show(page, "saliency")
    page.locator("#models input[value='1']").check(force=True)
    section.locator(".sides .plot[data-layer]").wait_for()
    assert section.locator(".sides figure").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_word_that_was_cut_and_a_character_that_was_spread_are_said(opened):
    report = looked(["a"])
    picture = report["pictures"]["saliency"]["a"]
    picture["target"] = {**picture["target"], "token": "⟨E6⟩", "word": " 我 爱"}
    picture["tokens"] = ["◌", "◌", "我", "😀", *picture["tokens"][4:]]
    figure = show(opened(report), "saliency").locator(".sides figure")
    said = figure.locator("figcaption").inner_text()
    assert "logit of ⟨E6⟩, the first token of ␣我␣爱 (probability 0.25, rank 2)" in said
    assert "◌ is a part of the character that ends at a later token." in figure.inner_text()
    assert figure.locator(".strip span").nth(2).inner_text() == "我"


@pytest.mark.full
def test_whole_words_need_no_word_of_explanation(opened):
    figure = show(opened(looked(["a"])), "saliency").locator(".sides figure")
    assert "the first token of" not in figure.inner_text()
    assert "is a part of" not in figure.inner_text()
