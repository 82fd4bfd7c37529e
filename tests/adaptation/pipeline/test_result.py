"""What a terminal shows of an adaptation and of new rows is whole at 80 characters."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from layerlab.adaptation.pipeline.result import AdaptationResult
from layerlab.adaptation.pipeline.summary import _placeless
from layerlab.cli.adapt_embeddings import _table
from tests.report.passed import passed


def test_a_text_of_one_document_says_why_it_has_no_standard_error() -> None:
    found = AdaptationResult({**passed(), "vocabulary": []}, Path("report.html"), {})
    said = " ".join(found.summary(80).split())
    assert "general text: one document is held out, and one has no standard error" in said
    content = {**passed(), "vocabulary": []}
    content["table"]["rows"][-1]["cells"] = [{"score": 2.5, "error": 0.1, "n": 4}] * 2
    assert "one document is held out" not in AdaptationResult(content, Path("x"), {}).summary(80)


def test_a_text_that_does_not_come_back_says_why_it_has_no_number() -> None:
    content = {**passed(), "vocabulary": []}
    lost = {"score": None, "error": None, "n": 1}
    content["table"]["rows"][-1]["cells"] = [lost, {"score": 2.5, "error": 0.1, "n": 4}]
    said = " ".join(AdaptationResult(content, Path("x"), {}).summary(80).split())
    assert "general text: no bits per byte where a tokenizer does not give it back" in said
    assert "one document is held out" not in said


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/tmp/data", "0.5 of the data in LAYERLAB_DATA/law, not in /tmp/data-2 or /old/tmp/data."),
        (".", None),
        ("data", None),
        ("/", None),
    ],
)
def test_only_the_path_of_the_data_folder_is_hidden(
    place: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLAB_DATA", place)
    given = "0.5 of the data in /tmp/data/law, not in /tmp/data-2 or /old/tmp/data."
    assert _placeless({"said": [given, 1]}) == {"said": [said or given, 1]}


def test_scores_that_a_terminal_leaves_out_are_counted() -> None:
    content = {**passed(), "vocabulary": []}
    assert "more scores" not in AdaptationResult(content, Path("x"), {}).summary(80)
    content["table"]["rows"] = content["table"]["rows"][:1] * 17
    assert "... and 5 more scores, on the page" in AdaptationResult(content, Path("x"), {}).summary(
        80
    )


def test_ways_to_begin_are_named_below_the_table() -> None:
    names = ("law.jsonl, held out", "python-docs", "general.txt")
    bits = {name: SimpleNamespace(bits_per_byte=2.5) for name in names}
    ways = [
        SimpleNamespace(input=way, head="mean-resizing", bits=bits)
        for way in ("mean", "mean-resizing", "first", "random")
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_table(SimpleNamespace(before=bits, ways=ways), 80))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "2: input mean-resizing, head mean-resizing" in [line.strip() for line in lines]
    assert {line.split()[0] for line in lines if line.strip()} >= {"start", "before", "1", "4"}
