"""What a terminal shows of an adaptation and of new rows is whole at 80 characters."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.result import AdaptationResult
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.adaptation.pipeline.summary import Tally, _placeless
from layerlab.cli.adapt.embeddings import _table
from layerlab.errors import UserError
from layerlab.recipes.adaptation import make_recipe
from tests.adaptation.lessons import recipe
from tests.report.support.passed import passed


def test_a_text_of_one_document_says_why_it_has_no_standard_error():
    found = AdaptationResult({**passed(), "vocabulary": []}, Path("report.html"), {})
    said = " ".join(found.summary(80).split())
    assert "general text: one document is held out, and one has no standard error" in said
    content = {**passed(), "vocabulary": []}
    content["table"]["rows"][-1]["cells"] = [{"score": 2.5, "error": 0.1, "n": 4}] * 2
    assert "one document is held out" not in AdaptationResult(content, Path("x"), {}).summary(80)


def test_a_text_that_does_not_come_back_says_why_it_has_no_number():
    content = {**passed(), "vocabulary": []}
    lost = {"score": None, "error": None, "n": 1}
    content["table"]["rows"][-1]["cells"] = [lost, {"score": 2.5, "error": 0.1, "n": 4}]
    said = " ".join(AdaptationResult(content, Path("x"), {}).summary(80).split())
    assert "general text: no bits per byte where a tokenizer does not give it back" in said
    assert "one document is held out" not in said


def test_questions_that_all_score_alike_have_no_error():
    content = {**passed(), "vocabulary": []}
    row = next(one for one in content["table"]["rows"] if one["unit"] == "score")
    row["cells"] = [{"score": 1.0, "error": 0.0, "n": 3}, {"score": 0.4, "error": 0.1, "n": 4}]
    said = AdaptationResult(content, Path("x"), {}).summary(120)
    assert "100.0" in said and "± 0.0" not in said and "40.0 ± 10.0" in said


def test_a_model_without_finite_logits_has_no_score(tmp_path):
    read = make_recipe(recipe(tmp_path))
    stages, shelf = plan_stages(read), StageStore(tmp_path / "stages")
    stage = next(one for one in stages if one.kind == "evaluate")
    row = {"benchmark": "boolq", "title": "BoolQ", "score": 0.0, "error": 0.0, "n": 3}
    row |= {"low": 0.0, "high": 0.56, "chance": 0.5, "lost": True}
    shelf.of(stage.key).mkdir(parents=True)
    bits = {"domain": {"bits_per_byte": 2.5, "error": 0.1, "documents": 4}}
    missing = {"what": "FinEval", "why": "it is not here"}
    left = {"bits": bits, "answers": [], "benchmarks": [row], "remarks": []}
    left["left_out"] = [missing, missing]
    shelf.finish(stage, {"result": left}, 1.0)
    content = Tally(read, stages, shelf).content()
    text, told = content["scores"]
    assert (text["title"], text["score"], text["n"]) == ("domain text", 2.5, 4)
    assert content["left_out"] == [missing]
    assert content["table"]["columns"][0] == stage.after
    assert (told["score"], told["low"], told["high"], told["n"]) == (None, None, None, 3)
    assert [one["cells"][0]["score"] for one in content["table"]["rows"]] == [2.5, None]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/tmp/data", "0.5 of the data in LAYERLAB_DATA/law, not in /tmp/data-2 or /old/tmp/data."),
        (".", None),
        ("data", None),
        ("/", None),
    ],
)
def test_only_the_path_of_the_data_folder_is_hidden(place, said, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", place)
    given = "0.5 of the data in /tmp/data/law, not in /tmp/data-2 or /old/tmp/data."
    assert _placeless({"said": [given, 1]}) == {"said": [said or given, 1]}


def test_scores_that_a_terminal_leaves_out_are_counted():
    content = {**passed(), "vocabulary": []}
    assert "more scores" not in AdaptationResult(content, Path("x"), {}).summary(80)
    content["table"]["rows"] = content["table"]["rows"][:1] * 17
    assert "... and 5 more scores, on the page" in AdaptationResult(content, Path("x"), {}).summary(
        80
    )


def test_a_summary_has_what_was_kept_changed_and_left_out():
    content = passed()
    (vocabulary,) = content["vocabulary"]
    held = {**vocabulary["texts"][0], "name": "law, held out", "ratio": 0.75}
    vocabulary["texts"].append(held)
    content["left_out"] = [{"what": f"text {n}", "why": "it is not here"} for n in range(3)]
    content["table"]["rows"][-1]["cells"] = [{"score": 2.5, "error": 0.1, "n": 4}] * 2
    found = AdaptationResult(content, Path("x"), {})
    assert found.frame("left_out").to_dict("records") == content["left_out"]
    said = found.summary(120)
    assert "tokens against the base: law, held out 0.750; proved" in said
    assert "replay, forgetting: +0.1000 bits per byte [+0.0500, +0.1500] over 2 seeds" in said
    assert "2.500 ± 0.100" in said
    assert "Left out: text 2: it is not here" in said and " more, on the page" not in said
    content["left_out"] *= 2
    assert "... and 3 more, on the page" in AdaptationResult(content, Path("x"), {}).summary(120)


def test_ways_to_begin_are_named_below_the_table():
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


def test_the_model_of_an_arm_may_be_one_that_was_only_named():
    found = AdaptationResult({}, Path("x"), {"plain": "llama"}).model()
    assert found.config.model_type == "llama"
    with pytest.raises(UserError, match="there is no arm 'other'; expected plain"):
        AdaptationResult({}, Path("x"), {"plain": "llama"}).model("other")
