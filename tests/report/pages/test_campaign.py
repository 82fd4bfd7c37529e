"""The page of a campaign: what is left, each idea with its interval, and nothing that runs."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

import layerlab
from layerlab import UserError
from layerlab.report.figures.campaign import campaign_pictures
from layerlab.report.i18n.language import language
from layerlab.report.pages.campaign import render, save_campaign
from layerlab.system.own_page import mark_of
from tests.ledger.written_campaign import campaign_sample, write_campaign
from tests.report.pages.test_inspection import Tags
from tests.report.support.sample import HOSTILE
from tests.report.support.window import DESKTOP, PHONE
from tests.report.test_chinese import CHINESE, KEPT, WORD, strings, texts

SVG = "{http://www.w3.org/2000/svg}"


def test_status_writes_a_page_with_every_idea_and_its_interval(tmp_path):
    place = write_campaign(tmp_path)
    found = layerlab.read_ledger(place, out=tmp_path / "page")
    page = (tmp_path / "page" / "report.html").read_text("utf-8")
    assert mark_of("ledger") in page and found.digest in page
    rows = re.findall(r"<tr><th scope=\"row\">(\w+)</th><td>(\w+)</td>", page)
    words = {"wide": "adopted", "same": "undecided", "worse": "refuted", "deep": "undecided"}
    assert dict(rows) == {**words, "next": "undecided"}
    for idea in ("wide", "same", "worse"):
        verdict = found.find(idea)[-1].verdict
        assert verdict is not None and verdict.difference is not None
        assert f'data-value="{verdict.difference}"' in page and verdict.said.split(" (")[0] in page
        assert f"{verdict.low:+.4f}" in page
    assert "not judged yet" in page and "confirm it with fresh seeds" not in page
    assert {one.name for one in (tmp_path / "page").iterdir()} == {
        *("report.html", "campaign.json", "wealth.svg", "levels.svg")
    }
    # Over its own, and beside the ledger too; over nothing else.
    layerlab.read_ledger(place, out=tmp_path / "page", lang="zh")
    layerlab.read_ledger(place, out=place)
    layerlab.read_ledger(place)
    (tmp_path / "page" / "report.html").write_text("mine")
    with pytest.raises(UserError, match="something other than the page of a camp"):
        layerlab.read_ledger(place, out=tmp_path / "page")
    assert (tmp_path / "page" / "report.html").read_text() == "mine"


def test_a_campaign_without_ideas_has_a_page_without_pictures(tmp_path):
    layerlab.create_ledger(tmp_path / "own", baseline="plain")
    layerlab.read_ledger(tmp_path / "own", out=tmp_path / "page")
    page = (tmp_path / "page" / "report.html").read_text("utf-8")
    assert "0 ideas against plain" in page and "<svg" not in page
    assert "by 6 first seeds and by 11 fresh ones in the next confirmation" in page


def test_pictures_show_what_was_spent_and_every_p():
    content = campaign_sample()
    wealth, levels = map(ElementTree.fromstring, campaign_pictures(content).values())
    places = wealth.find(f"{SVG}polyline").get("points", "").split()
    # Down by a confirmation and up by the adoption it led to; then down by another.
    heights = [float(one.split(",")[1]) for one in places]
    assert heights[1] < heights[2] and heights[4] < heights[3]
    assert [one.findtext(f"{SVG}title") for one in wealth.iter(f"{SVG}circle")] == ["wide"]
    named = [one.text for one in levels.iter(f"{SVG}title")][1:]
    assert set(named) == {"wide", "same", "worse"}  # the others wait for their runs
    assert len([one for one in levels.iter(f"{SVG}line") if one.get("stroke-width") == "2"]) == 5


@pytest.mark.parametrize("where", ["says", "idea"])
def test_what_an_idea_says_is_no_markup(where):
    content = campaign_sample()
    tags = Tags(render(content)).tags
    content["ideas"][0][where] = HOSTILE
    assert Tags(render(content)).tags == tags
    for picture in campaign_pictures(content).values():
        ElementTree.fromstring(picture)


def test_no_sentence_of_the_chinese_page_is_left_in_english():
    content = campaign_sample("更宽的前馈层")
    page, known = texts(render(content, "zh")), KEPT | set(WORD.findall(" ".join(strings(content))))
    labels = [text for text in page if not content["digest"].startswith(text.rstrip("…"))]
    assert not [text for text in labels if not set(WORD.findall(text)) <= known]
    names = {"plain", "seed", *(one["idea"] for one in content["ideas"])}
    trials = [one for idea in content["ideas"] for one in idea["trials"] if one["verdict"]]
    said = [text for one in trials for text in (one["verdict"]["said"], *one["verdict"]["remarks"])]
    for text in (*said, *content["said"]):
        told = language("zh").translate(text)
        assert set(re.findall(r"[a-z]{2,}", told)) <= names, (text, told)
    assert not CHINESE.search("".join(texts(render(content))).replace("更宽的前馈层", ""))


@pytest.mark.full
def test_the_page_opens_in_a_browser_on_a_desk_and_on_a_phone(window, tmp_path):
    content = campaign_sample("a change that is told in a sentence of some length, with its why")
    save_campaign(content, tmp_path)
    for view in (DESKTOP, PHONE):
        page = window((tmp_path / "report.html").read_text("utf-8"), viewport=view)
        assert page.evaluate("document.documentElement.scrollWidth") <= view["width"]
        letters = page.locator("figure.ladder svg text").evaluate_all(
            "nodes => nodes.map((n) => n.getBoundingClientRect().height)"
        )
        assert page.locator("figure.ladder svg").count() == 2 and min(letters) > 9
        dot = page.locator("figure.ladder circle.dot").first
        assert dot.evaluate("node => getComputedStyle(node).fill") != "rgb(0, 0, 0)"
    page.locator("#ideas thead button", has_text="p").first.click()
    page.locator("#trials summary").first.click()
    assert page.get_by_text("wide is adopted: p is at or below").is_visible()
