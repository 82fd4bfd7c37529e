"""The page of an evaluation: every score with its interval, every table, hostile text as text."""

import re
from typing import Any

from layerlab.report.pages.evaluation import render
from tests.report.support.sample import HOSTILE
from tests.report.support.window import PHONE


def scored(arms: tuple[str, ...] = ("before", "after")) -> dict[str, Any]:
    """Two models that were asked BoolQ, beside a published table and an earlier run."""
    number = {
        "score": 0.25,
        "error": 0.05,
        "low": 0.142,
        "high": 0.402,
        "n": 40,
        "formula": "mean of 1 subject",
    }
    named = [{"arm": arm, "benchmark": "boolq", **number} for arm in arms]
    facts = {"family": "llama", "parameters": 1000, "context": 64, "dtype": "float32"}
    return {
        "layerlab": "0",
        "engine": "lm-eval 0",
        "suite": "boolq",
        "request": {"suite": "boolq", "tasks": None},
        "options": {"limit": 40, "shots": None},
        "arms": [{"arm": arm, "precision": "", **facts} for arm in arms],
        "benchmarks": [
            {**one, "title": "BoolQ", "chance": 0.5, "abstained": 0.1, "shots": {"told": "5 of 5"}}
            for one in named
        ],
        "groups": [{**one, "group": "knowledge"} for one in named],
        "sections": [{**one, "by": "level", "section": "memory"} for one in named],
        "subjects": [
            {
                **one,
                "subject": "是非",
                "english": "yes or no",
                "called": "是非 yes or no",
                "abstained": None,
            }
            for one in named
        ],
        "precision": [{"arm": arms[0], "perplexity": 9.5, "nats_per_token": 2.25, "tokens": 100}],
        "compared": [
            {
                **{"arm": arms[1], "against": "earlier", "title": "BoolQ"},
                **{"difference": -0.125, "error": 0.02, "n": 40},
            }
        ],
        "published": [
            {
                **{"table": 5, "source": "pangu23", "title": "General", "model": "Qwen-7B"},
                **{"from": "published", "cells": {"BoolQ": 76.1, "PIQA": None}},
            }
        ],
        "left_out": [{"benchmark": "law", "title": "LawBench", "reason": "it is not here"}],
        "remarks": ["asked differently"],
    }


def test_every_part_is_on_the_page():
    page = render(scored())
    for said in (
        *(
            "25.00 ±\N{NO-BREAK SPACE}5.00",
            "BoolQ: after",
            "BoolQ: mean of 1 subject.",
            "knowledge: before",
        ),
        *("level memory: after", "是非 yes or no", "9.5", "-12.5", "76.10", "Table 5 of pangu23"),
        *("LawBench: it is not here", "asked differently", "limit = 40", "lm-eval 0", "5 of 5"),
    ):
        assert said in page, said


def test_a_point_lies_at_its_score_between_the_ends_of_its_interval():
    page = render(scored())
    assert 'class="point" style="inset-inline-start:25.0%"' in page
    assert 'class="interval" style="inset-inline-start:14.2%;inline-size:26.0' in page
    assert 'class="zero" style="inset-inline-start:50.0%"' in page


def test_a_score_is_above_chance_or_not_beside_its_line():
    content = scored()
    for row, above in zip(content["benchmarks"], (True, False), strict=True):
        row["guessing"] = {"p": 0.03, "holm": 0.03, "tests": 2, "above": above}
    found = re.findall(r"<span>((?:not )?above chance)</span>", render(content))
    assert found == ["above chance", "not above chance"]


def test_what_is_computed_as_loaded_names_the_format_of_the_weights():
    content = scored()
    content["arms"][1]["precision"] = "bf16"
    table = render(content).partition("hash of the weights")[2].partition("</table>")[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    assert cells.count("float32") == 3 and cells.count("bf16") == 1


def test_a_single_question_has_no_interval_and_what_is_below_zero_stays_on_the_scale():
    content = scored()
    for one in content["benchmarks"]:
        one.update(score=-0.3, error=None, low=None, high=None, chance=None)
    page = render(content)
    assert "<b>-30.00</b>" in page and 'class="point" style="inset-inline-start:0.0%"' in page
    assert 'class="interval"' not in page and 'class="zero"' not in page


def test_a_share_of_none_has_an_interval_and_no_error():
    content = scored()
    for one in content["benchmarks"]:
        one.update(score=0.0, error=0.0, low=0.0, high=0.6576, n=2)
    page = render(content)
    assert "<b>0.00</b>" in page and "0.0 to 65.8" in page and "0.00 ±" not in page
    assert 'class="interval" style="inset-inline-start:0.0%;inline-size:65.76%"' in page


def test_the_subjects_of_a_benchmark_are_folded():
    content = scored()
    row = {**content["subjects"][0], "arm": "one"}
    content["subjects"] = [{**row, "called": f"subject {place}"} for place in range(52)]
    for place, one in enumerate(content["subjects"]):
        one["subject"] = str(place)
    page = render(content)
    assert page.count('<details class="folded">') == 1 and "<summary>BoolQ: 52 subjects" in page
    assert page.index('<details class="folded">') < page.index("subject 51: one")
    assert "1 subject<" in render(scored()) and "subjects</summary>" not in render(scored())


def test_what_is_left_out_is_named_once():
    content = scored()
    content["left_out"].append({"benchmark": "csl", "title": "CSL", "reason": "CSL is not here"})
    page = render(content)
    assert "<li>CSL is not here</li>" in page and "<li>LawBench: it is not here</li>" in page


def test_hostile_text_stays_text_and_a_phone_never_scrolls_sideways(window):
    name = f"{HOSTILE}<b>x</b>"
    content = scored((name, "w" * 90))
    content["suite"] = content["remarks"][0] = content["left_out"][0]["reason"] = name
    content["published"][0]["model"] = name
    page = window(render(content), viewport=PHONE, has_touch=True)
    assert page.evaluate("window.__pwned") is None
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
