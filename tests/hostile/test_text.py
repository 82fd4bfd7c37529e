"""Words that steer a terminal, halves of characters, and what is no text at all."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from layerlab import UserError
from layerlab.evaluation.benchmarks.files import BenchmarkFile
from layerlab.evaluation.benchmarks.readers import of_lines, of_list
from layerlab.tokenization.train import train_bpe
from tests.hostile.attack import SLOW, typed
from tests.support.refused import refuses

RED = "\x1b[31mred\x1b[0m\x07\u202e"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", f"{json.dumps(RED)} = 3", ("train", "a.toml")),
        ("a.toml", f"[train]\n{json.dumps(RED)} = 3", ("compare", "a.toml")),
        ("a.toml", f"name = {json.dumps(RED)}\n[train]\nmax_steps = 1", ("compare", "a.toml")),
        ("a.toml", f"extends = {json.dumps(RED)}", ("train", "a.toml")),
        ("a.toml", f"[model]\nvariant = {json.dumps(RED)}", ("train", "a.toml")),
        ("a.toml", "Updates = 3", ("train", "a.toml")),
        ("a.toml", '"a[0]" = 3', ("train", "a.toml")),
        ("a.toml", '[train]\n"str" = 3', ("train", "a.toml")),
        ("a.toml", f"{json.dumps(RED)} = 3", ("adapt", "a.toml")),
        ("a.toml", f"{json.dumps(RED)} = 3", ("evaluate", "llama", "--policy", "a.toml")),
        ("a.jsonl", json.dumps({RED: 3}), ("adapt", "clean", "a.jsonl", "--out", "new")),
        ("a.jsonl", json.dumps({"text": [RED]}), ("adapt", "clean", "a.jsonl", "--out", "new")),
        (f"{RED}.txt", "", ("inspect", "--text", f"{RED}.txt")),
        (f"{RED}.toml", "=", ("train", f"{RED}.toml")),
        ("a.txt", "", ("inspect", RED)),
        ("a.txt", "", ("variants", RED)),
        ("a.txt", "", ("study", RED)),
        ("a.txt", "", ("evaluate", "llama", "--suite", RED)),
        ("a.txt", "", ("inspect", "--measures", RED)),
        ("a.txt", "", ("inspect", f"--{RED}", "3")),
    ],
)
def test_no_word_steers_the_terminal(name, text, words, place):
    (place / name).write_text(text)
    assert "\u202e" not in typed(*words).refused().err


HALF = json.dumps({"question": "\ud800", "answer": "A"})


@pytest.mark.parametrize("read", [of_lines, of_list])
def test_half_of_a_character_is_no_text_of_a_benchmark(read):
    content = HALF if read is of_lines else f"[{HALF}]"
    with pytest.raises(UserError, match=r"x\.json.* holds half of a surrogate pair \('\\ud800'\)"):
        list(read(BenchmarkFile("x.json", content.encode())))
    pair = json.dumps({"question": "\U0001f600"})  # written as two halves
    (row,) = of_lines(BenchmarkFile("x.json", pair.encode()))
    assert row.text("question") == "\U0001f600"


@pytest.mark.parametrize("depth", [99, 100, 970, 5_000])
def test_rows_are_read_as_deep_as_all_pythons_go(depth):
    line = '{"question": ' + "[" * depth + "]" * depth + "}"
    rows = of_lines(BenchmarkFile("x.json", line.encode()))
    if depth == 99:
        assert len(list(rows)) == 1
    else:
        refuses("nested too deeply", list, rows)


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_question_that_is_no_text_is_refused(value, place):
    line = json.dumps({"question": value})
    (row,) = of_lines(BenchmarkFile("x.jsonl", line.encode()))
    refuses(r"x\.jsonl, line 1: 'question' is .*; expected a text", row.text, "question")
    (place / "q.jsonl").write_text(line)
    (place / "t.txt").write_text("A text.")
    done = typed("adapt", "contamination", "t.txt", "--benchmark", "q.jsonl")
    done.refused("q.jsonl, row 1: question is")


def test_a_parquet_with_bytes_that_are_no_text_is_one_line(place):
    raw = pyarrow.array([b"fine", b"\xff\xfe"], pyarrow.binary())
    table = pyarrow.table({"text": pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())})
    pyarrow.parquet.write_table(table, place / "a.parquet")
    typed("adapt", "clean", "a.parquet", "--out", "new").refused("a text is not UTF-8")


def test_an_argument_that_is_no_text_is_said_as_what_it_is(place):
    command = [sys.executable, "-m", "layerlab", "inspect", os.fsdecode(b"f\xff")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "layerlab: b'f\\xff' on the command line is not UTF-8; rename what it names\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--json", "--json"), "--json is given twice; leave one out"),
        (("inspect", "--out", "a", "--out", "b"), "--out is given twice"),
        (("train", "smoke", "--lang", "en", "--lang=zh"), "--lang is given twice"),
        (("adapt", "clean", "x.txt", "--out", "a", "--out", "b"), "--out is given twice"),
        (("bench", "latency", "--threads", "1", "--threads", "2"), "--threads is given twice"),
    ],
)
def test_an_option_counts_once(words, said):
    typed(*words).refused(said)


@pytest.mark.full
def test_an_option_that_may_be_repeated_is(place):
    words = ("--set", "train.batch_size=2", "--set", "train.max_steps=3")
    assert typed("train", "smoke", "--plan", *words).survived().code == 0


@pytest.mark.full
@pytest.mark.parametrize("letters", ["ACGT", "的一", "01", "-=", " \t"])
def test_a_text_without_a_break_trains_a_tokenizer(letters):
    text = "".join(random.Random(0).choices(letters, k=300_000))
    before = time.process_time()
    words = train_bpe([text, "An ant."], vocab=512)
    assert words.decode(words(text)["input_ids"]) == text
    assert time.process_time() - before < SLOW
