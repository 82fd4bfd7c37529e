"""Finished tasks are kept whole or not at all, and answers to another batch by batch."""

import copy
import re
from functools import partial
from pathlib import Path

import pytest

import layerlab.evaluation
from layerlab.evaluation.harness.cache import (
    BUILDERS,
    LEAVES,
    ROUNDERS,
    SAMPLES,
    SCORERS,
    AnswerLog,
    LoggedAnswers,
    ResultCache,
    builder,
    describe_tokenizer,
    key,
    rounder,
    scorer,
)
from tests.evaluation.candidate import tokenizer
from tests.evaluation.shelf import run, shelf
from tests.support.refused import refusal

__all__ = ["shelf"]


def test_what_is_kept_comes_back(tmp_path):
    keeper = ResultCache(tmp_path / "out")
    assert keeper.load("a") is None
    keeper.save("a", {"score": 0.5}, [{"doc": "问"}, {"doc": "x\ny"}])
    assert keeper.load("a") == {"score": 0.5}
    assert (tmp_path / "out" / SAMPLES / "a.jsonl").read_text("utf-8").count("\n") == 2


def test_without_a_folder_nothing_is_kept():
    ResultCache(None).save("a", {}, [])
    assert ResultCache(None).load("a") is None


def test_a_task_without_its_samples_is_asked_again(tmp_path):
    keeper = ResultCache(tmp_path)
    keeper.save("a", {}, [])
    (tmp_path / SAMPLES / "a.jsonl").unlink()
    assert keeper.load("a") is None


def test_a_record_that_cannot_be_read(tmp_path):
    ResultCache(tmp_path).save("a", {}, [])
    path = tmp_path / LEAVES / "a.json"
    path.write_text("{half", encoding="utf-8")
    caught = refusal(ResultCache(tmp_path).load, "a")
    assert caught.startswith(f"cannot read {path}: ")
    assert caught.endswith("; delete it and type it again")


def test_a_change_of_what_scores_is_another_scorer(tmp_path):
    """Each pattern names files, each file counts, and nothing else does."""
    package = Path(layerlab.evaluation.__file__).parent
    for pattern in SCORERS:
        assert list(package.glob(pattern)), pattern
    copy = tmp_path / "evaluation"
    for path in (one for pattern in SCORERS for one in package.glob(pattern)):
        (copy / path.relative_to(package)).parent.mkdir(parents=True, exist_ok=True)
        (copy / path.relative_to(package)).write_bytes(path.read_bytes())
    assert scorer(copy) == scorer()
    (copy / "view.py").write_text("another look", "utf-8")
    assert scorer.__wrapped__(copy) == scorer()
    for name in ("tasks/scoring.py", "metrics/rouge.py", "lawbench/label.toml", "harness/lm.py"):
        before = scorer.__wrapped__(copy)
        (copy / name).write_bytes((copy / name).read_bytes() + b" ")
        assert scorer.__wrapped__(copy) != before, name


def test_what_builds_and_what_rounds_is_known_by_its_code(tmp_path):
    package = Path(layerlab.evaluation.__file__).parent
    for given, patterns, name in (
        (builder, BUILDERS, "blocks/operations/convolution.py"),
        (rounder, ROUNDERS, "numerics/formats/rounding.cpp"),
    ):
        copy = tmp_path / given.__name__ / "evaluation"
        copy.mkdir(parents=True)
        for pattern in patterns:
            found = list(package.glob(pattern))
            assert found, pattern
            for path in found:
                place = copy / path.relative_to(package)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(path.read_bytes())
        assert given(copy) == given()
        (copy.parent / name).write_text("another")
        assert given.__wrapped__(copy) != given()


def test_what_marks_answers_is_among_what_scores():
    """All that they import; what a task asks is known elsewhere."""
    package = Path(layerlab.evaluation.__file__).parent
    scored = {one.resolve() for pattern in SCORERS for one in package.glob(pattern)}
    marks = [*(package / "metrics").glob("*.py"), *(package / "tasks").glob("*.py")]
    lines = "\n".join(one.read_text("utf-8") for one in marks)
    found = set(re.findall(r"^from layerlab\.([\w.]+) import", lines, re.MULTILINE))
    places = {one: package.parent / f"{one.replace('.', '/')}.py" for one in found}
    left = {one for one, file in places.items() if file.is_file() and file not in scored}
    known = {"errors", "system.files", *(one for one in found if ".benchmarks." in one)}
    assert left - known == set()


def test_another_segmenter_is_another_scorer(monkeypatch):
    before = scorer.__wrapped__()
    monkeypatch.setattr("layerlab.evaluation.harness.cache.version", lambda name: "0.1.2")
    assert scorer.__wrapped__() != before
    assert scorer.__wrapped__().endswith("jieba 0.1.2")


def test_another_part_is_another_key():
    assert key(model="a", task="b") != key(model="b", task="a") != key(model="ab", task="")


@pytest.mark.parametrize("name", [f"{LEAVES}/a.json", f"{SAMPLES}/a.jsonl"])
def test_what_is_not_what_was_kept_is_refused(name, tmp_path):
    """A score cannot be raised, nor an answer exchanged, beside the program."""
    ResultCache(tmp_path).save("a", {"score": 0.25}, [{"answer": 1}])
    path = tmp_path / name
    path.write_text(path.read_text("utf-8").replace("25", "75").replace("1}", "2}"), "utf-8")
    caught = refusal(ResultCache(tmp_path).load, "a")
    said = "it is not what was written, or is of an earlier version; delete it and type it again"
    assert caught == f"cannot read {tmp_path / LEAVES / 'a.json'}: {said}"


@pytest.mark.parametrize("setting", ["split_special_tokens", "clean_up_tokenization_spaces"])
def test_what_a_tokenizer_does_beside_its_rules_counts(setting):
    words = copy.deepcopy(tokenizer())
    before = describe_tokenizer(words)
    setattr(words, setting, not getattr(words, setting))
    assert describe_tokenizer(words) != before


@pytest.mark.full
def test_what_a_kill_left_of_answers_goes(shelf, tmp_path):
    run(shelf, "boolq", limit=1, out=tmp_path)
    for kept in [*(tmp_path / "leaves").iterdir(), *(tmp_path / "samples").iterdir()]:
        (kept.parent / f".{kept.name}.0a1b2c3d.partial").write_bytes(b"half")
    run(shelf, "boolq", limit=1, out=tmp_path)
    assert not list(tmp_path.rglob("*.partial"))


def turned(given: list[str]) -> LoggedAnswers:
    return [one[::-1] for one in given], {"near": [[len(given)]]}


def ask(log: AnswerLog, batches: list[list[str]]) -> list[str]:
    """What is asked of the model, which turns a text."""
    asked = list[str]()

    def model(batch: list[str]) -> LoggedAnswers:
        asked.extend(batch)
        return turned(batch)

    for batch in batches:
        assert log.answer(batch, partial(model, batch)) == turned(batch)
    return asked


def test_answers_that_are_there_are_not_asked_again(tmp_path):
    batches = [["ab", "c"], ["d"], ["d"], ["ef"]]
    keeper = ResultCache(tmp_path)
    log = keeper.open_log("a", None, 0)
    assert ask(log, batches[:1]) == ["ab", "c"] and log.seconds == 0
    # The same batch again is another one, which may be of other samples.
    log = keeper.open_log("a", None, 0)
    assert ask(log, batches[:3]) == ["d", "d"] and log.seconds > 0
    assert ask(keeper.open_log("a", None, 0), batches) == ["ef"]
    keeper.save("a", {}, [])
    assert [one.name for one in (tmp_path / LEAVES).iterdir()] == ["a.json"]


@pytest.mark.parametrize("cut", [1, 3, 90])
def test_a_line_that_was_cut_off_is_asked_again_and_spoils_no_other(tmp_path, cut):
    keeper = ResultCache(tmp_path)
    assert ask(keeper.open_log("a", None, 0), [["a"], ["b"]]) == ["a", "b"]
    path = tmp_path / LEAVES / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert ask(keeper.open_log("a", None, 0), [["a"], ["b"], ["c"]]) == ["b", "c"]
    assert ask(keeper.open_log("a", None, 0), [["a"], ["b"], ["c"]]) == []


def test_answers_of_another_model_are_dropped(tmp_path):
    keeper = ResultCache(tmp_path)
    trial = {"dtype": "float32", "where": {"device": "cpu"}, "values": [1.0, 2.0]}
    assert ask(keeper.open_log("a", trial, 0), [["a"]]) == ["a"]
    other = trial | {"values": [1.0, 3.0]}
    log = keeper.open_log("a", other, 0)
    assert log.other and ask(log, [["a"]]) == ["a"]
    log = keeper.open_log("a", other, 0)
    assert not log.other and ask(log, [["a"]]) == []
