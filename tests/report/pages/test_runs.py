"""The page of an index: a table whose links lead from the page, safe whatever names are."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from layerlab.records.index import search
from layerlab.records.index.entry import DAMAGED, DIVERGED, FINISHED, INTERRUPTED, RUNNING
from layerlab.report.pages.runs import KINDS, MARK, STATES, render
from tests.report.pages.test_inspection import Tags
from tests.report.support.sample import HOSTILE

ENTRY = {
    "kind": "run",
    "name": "llama-s1",
    "state": "finished",
    "headline": "3.5000 nats per token, 1.7500 bits per byte",
    "folder": "smoke/runs/llama-s1",
    "page": "smoke/runs/llama-s1/report.html",
    "changed": "2026-11-20T12:30:00+00:00",
}


def indexed(folder: Path, *entries: dict[str, Any], remarks: Any = ()) -> dict[str, Any]:
    return {"folder": str(folder), "entries": list(entries), "remarks": list(remarks)}


def links(page: str) -> list[str]:
    return [unescape(one) for one in re.findall(r'<th scope="row"><a href="([^"]*)"', page)]


def test_links_lead_from_the_page_to_the_entry(tmp_path):
    content = indexed(tmp_path / "runs", ENTRY, {**ENTRY, "page": None})
    page = render(content, tmp_path / "pages")
    assert links(page) == [
        "./../runs/smoke/runs/llama-s1/report.html",
        "./../runs/smoke/runs/llama-s1",
    ]
    assert 'data-value="2026-11-20T12:30:00+00:00">20 November 2026, 12:30 UTC<' in page
    assert MARK in page


def test_every_kind_of_entry_and_every_state_has_a_word():
    assert {*KINDS} == {one.name for one in search.KINDS}
    assert {*STATES} == {FINISHED, RUNNING, INTERRUPTED, DIVERGED, DAMAGED}


@pytest.mark.parametrize("name", ["a b#c?d%e", "javascript:alert(1)", '"><b>', "的", "x\udcff"])
def test_a_link_is_an_address_whatever_a_folder_is_named(name, tmp_path):
    (link,) = links(render(indexed(tmp_path, {**ENTRY, "page": name}), tmp_path))
    assert re.fullmatch(r"\./[\w.%~/-]+", link)
    assert unquote(link, errors="surrogateescape") == f"./{name}"


def test_no_name_reaches_the_page_as_markup(tmp_path):
    content = indexed(tmp_path, {**ENTRY, "name": HOSTILE, "headline": HOSTILE}, remarks=[HOSTILE])
    tags = Tags(render(content, tmp_path)).tags
    assert tags == Tags(render(indexed(tmp_path, ENTRY, remarks=["x"]), tmp_path)).tags


@pytest.mark.parametrize(
    ("headline", "expected"),
    [
        (
            "a and llama are not distinguishable; b is better than llama by 0.5 nats",
            "无法区分；b 比",
        ),
        ("of 5 arms: 2 are better, 1 is worse", "5 个方案中：2 个更好，1 个更差"),
        ("2 claims hold, 1 claim fails", "2 条主张成立，1 条主张不成立"),
    ],
)
def test_a_headline_is_said_in_chinese(headline, expected, tmp_path):
    assert expected in render(indexed(tmp_path, {**ENTRY, "headline": headline}), tmp_path, "zh")


def test_an_empty_folder_has_a_page_too(tmp_path):
    assert "Nothing here was written by layerlab." in render(indexed(tmp_path), tmp_path)


def test_in_chinese_kinds_states_and_sentences_are_translated(tmp_path):
    entries = [{**ENTRY, "kind": kind, "state": "interrupted"} for kind in KINDS]
    entries += [{**ENTRY, "state": state} for state in STATES]
    page = render(indexed(tmp_path, *entries, remarks=["a was not looked into: b"]), tmp_path, "zh")
    body = page[page.index("<main") : page.index("</main>")]
    words = re.sub(r"<[^>]*>|llama-s1|UTC", " ", body).replace(tmp_path.name, " ")
    assert not re.findall(r"[a-zA-Z]{3,}", words.replace("token", ""))
    assert "3.5000" in words and "1.7500" in words
