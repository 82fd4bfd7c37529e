"""The page of an adaptation: every part is on it, in a browser too, and hostile text stays text."""

import json
import re

import pandas as pd
import pytest

from layerlab.report.pages.adaptation import render, save_adaptation
from layerlab.report.pages.adaptation_tables import sections
from tests.report.support.passed import passed
from tests.report.support.sample import HOSTILE
from tests.report.support.window import PHONE
from tests.support.refused import refuses


def test_every_part_is_on_the_page():
    page = render(passed())
    for said in (
        "What was tried.",
        "Inferred: All of it.",
        "25.0 ±\N{NO-BREAK SPACE}2.0",
        "+0.1 bits per byte on general text, which is what it forgot",
        "over 2 seeds",
        "The proof holds: 8 entries added",
        "1 too short",
        "FinEval: it is not here",
        "tuning goes on from the first seed",
        "What?",
        "pretrain.tokens = 1000",
        "pretrain-replay-1",
    ):
        assert said in page, said


def test_what_is_missing_is_left_out_and_what_is_damaged_is_named():
    page = render({"name": "empty"}).partition("<script")[0]
    assert "empty" in page and "Contamination" not in page and "Samples" not in page
    refuses("no content of an adaptation: 'stages' is damaged", render, {"stages": 3})


def test_a_stage_that_is_not_finished_is_told():
    content = passed()
    content["stages"][0]["finished"] = False
    assert "1 of 4 stages is not finished." in render(content)


def test_every_run_has_a_look_of_its_own_without_any_colour():
    (data,) = re.findall(r'id="data">(.*?)</script>', render(passed()), re.DOTALL)
    for picture in json.loads(data)["pictures"]:
        looks = [(one["line"]["dash"], one["marker"]["symbol"]) for one in picture["data"]]
        assert len(looks) == 4 == len(set(looks))


def test_files_are_written_beside_the_page(tmp_path):
    assert save_adaptation(passed(), tmp_path) == tmp_path / "report.html"
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["arms"][0] == "replay"
    assert pd.read_csv(tmp_path / "tables" / "changes.csv")["value"].tolist() == [0.1, 0.1]
    drawn = (tmp_path / "pictures" / "general.svg").read_text("utf-8")
    assert drawn.startswith("<svg") and "no replay" in drawn


def test_scores_have_a_row_for_each_model_and_what_is_to_be_known_below():
    scores, moved, still = sections(passed(), 0)[0]["tables"]
    assert scores["head"] == [
        *("", "LawBench (domain, %)", "C-Eval (general, %)", "general text (bits per byte)"),
    ]
    assert scores["rows"] == [
        ["base", "25.0 ± 2.0", "0.0 [0.0, 4.9]", "2.500"],
        ["tune (replay)", None, None, "2.600"],
        ["a guess", None, "25.0", None],
        ["questions (documents)", "100", "75", "1"],
        ["too long to be asked", None, "2", None],
    ]
    assert "One document of general text is held out: one has no standard error." in scores["hint"]
    assert [row[0] for row in moved["rows"]] == ["LawBench: tune (replay, no replay)"]
    assert [row[0] for row in still["rows"]] == ["C-Eval: tune (replay, no replay)"]
    page = render(passed())
    assert "<summary>1 without any change</summary>" in page and ">(empty)</span>" in page


@pytest.mark.full
def test_a_table_wider_than_the_page_shows_that_it_goes_on(window):
    """Four scores of six models fit at 1200 pixels; more do not, and it shows."""
    content = passed()
    (row, *_) = content["table"]["rows"]
    columns = [f"pretrain (arm {number})" for number in range(6)]
    cell = {"score": 0.25, "error": 0.02, "low": 0.211, "high": 0.289, "n": 100}
    for count, wider in ((4, False), (16, True)):
        rows = [{**row, "title": f"Bench {n}", "cells": [cell] * 6} for n in range(count)]
        content["table"] = {"columns": columns, "rows": rows}
        page = window(render(content), viewport={"width": 1200, "height": 900})
        box = page.locator("#table-scores-title + .scroll")
        assert box.evaluate("node => node.scrollWidth > node.clientWidth") is wider
        assert "gradient" in box.evaluate("node => getComputedStyle(node).backgroundImage")


@pytest.mark.full
def test_curves_are_drawn_in_a_browser_a_line_for_each_run(window):
    page = window(render(passed()))
    page.wait_for_selector("#picture-1 .main-svg", state="attached")
    assert page.locator("#picture-0 .scatterlayer .trace").count() == 4
    first = page.locator("#picture-0").evaluate("node => [...node.data[0].x]")
    assert first == [0, 500, 1000]
    assert page.locator("h2").count() >= 5


@pytest.mark.full
def test_on_a_phone_nothing_is_wider_than_the_page(window):
    page = window(render(passed()), viewport=PHONE, has_touch=True, is_mobile=True)
    page.wait_for_selector("#picture-1 .main-svg", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.full
def test_hostile_text_stays_text(window):
    name = f"{HOSTILE}<b>x</b>"
    content = passed((name, "other"))
    content["samples"][0] |= {"prompt": name, "answer": name}
    content["left_out"][0] |= {"what": name, "why": name}
    content["texts"][0]["name"] = content["name"] = content["about"] = name
    content["recipe"]["about"] = name
    page = window(render(content))
    page.wait_for_selector("#picture-1 .main-svg", state="attached")
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator(".plot svg a, .plot svg img").count() == 0
    assert page.locator("script").count() == 3
