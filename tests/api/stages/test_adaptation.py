"""Stages of an adaptation as functions: they take what their commands take."""

import gzip
import json
import os

import layerlab
from layerlab.data.archives import LIMIT
from tests.support.refused import refuses

LINE = "The court of appeal heard the case and set the ruling aside. "


def test_a_second_document_of_the_same_words_stays_on_request(tmp_path):
    text = tmp_path / "law.jsonl"
    text.write_text(json.dumps({"text": 2 * LINE}) + "\n" + json.dumps({"text": 2 * LINE}))
    rules = {"near_duplicate_threshold": 0.0, "repetition": False}
    once = layerlab.clean_text(text, tmp_path / "once", **rules)
    twice = layerlab.clean_text(text, tmp_path / "twice", exact_dedup=False, **rules)
    assert (once.kept, twice.kept) == (1, 2)


def test_what_was_found_of_benchmarks_is_written_and_nothing_else_replaced(tmp_path):
    text, asked, out = (tmp_path / name for name in ("law.txt", "asked.jsonl", "found.json"))
    text.write_text(20 * LINE)
    asked.write_text(json.dumps({"question": "Who set the ruling aside in that old case?"}))
    for _ in range(2):  # an earlier one is replaced
        found = layerlab.find_contamination(text, asked, out=out)
        assert json.loads(out.read_text("utf-8")) == json.loads(json.dumps(found.to_dict()))
    refuses("is no report of contamination", layerlab.find_contamination, text, asked, out=asked)


def test_a_file_unpacks_to_no_more_than_was_said(tmp_path):
    text = tmp_path / "law.txt.gz"
    text.write_bytes(gzip.compress(20 * LINE.encode()))
    said = r"unpacks to more than 100 bytes; .* type max_bytes=400,"
    refuses(said, layerlab.clean_text, text, tmp_path / "out", max_bytes=100)
    refuses("max_bytes is 0; expected", layerlab.clean_text, text, tmp_path / "out", max_bytes=0)
    assert LIMIT not in os.environ
    rules = {"repetition": False, "max_repeated_ratio": 1.0, "max_bytes": 10**6}
    assert layerlab.clean_text(text, tmp_path / "out", **rules).kept == 1
