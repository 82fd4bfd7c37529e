"""What keeps an evaluation from its end, in one line each."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import layerlab
from layerlab import UserError
from layerlab.evaluation.results.result import EvaluationResult
from layerlab.report.pages.evaluation import render
from tests.evaluation.candidate import candidate
from tests.evaluation.written import boolq

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness import run as sitting
from tests.evaluation.shelf import run, shelf
from tests.support.refused import refusal, refuses

__all__ = ["shelf"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (16, "batch_size=16; type batch_size=8"),
        (1, "batch_size=1; type dtype='bfloat16'"),
        ("auto", "batch_size=1; type dtype="),
    ],
)
def test_too_little_memory_is_one_line(shelf, monkeypatch, batch, said):
    def full(self: Any, *args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(sitting.HarnessModel, "_model_call", full)
    assert refusal(run, shelf, "boolq", batch_size=batch, limit=1).startswith(
        f"BoolQ does not fit into memory beside LlamaForCausalLM with {said}"
    )


def test_a_model_that_does_not_fit_while_it_is_loaded_is_one_line(shelf, tmp_path, monkeypatch):
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    candidate().model.save_pretrained(tmp_path / "model")
    candidate().tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    said = refusal(layerlab.evaluate, tmp_path / "model", suite="boolq", data=shelf, progress=False)
    assert said.startswith("out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.); type")
    assert "dtype='bfloat16'" in said and "device='auto'" in said


def test_other_faults_of_a_model_stay_what_they_are(shelf, monkeypatch):
    def broken(self: Any, *args: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(sitting.HarnessModel, "_model_call", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(shelf, "boolq", limit=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"suite": "fiance"}, "there is no suite or benchmark 'fiance'; did you mean 'finance'? "),
        ({"suite": " ,"}, "no suite is named in ' ,'; type for example suite='law'"),
        ({"suite": "law"}, "nothing can be asked: LawBench is not here: expected"),
        ({"suite": "boolq", "shots": -1}, "shots is -1; expected a whole number at least 0"),
        ({"suite": "boolq", "limit": 0}, "limit is 0; expected a whole number at least 1"),
        (
            {"suite": "boolq", "batch_size": 0},
            "batch_size is 0; expected auto, or a whole number at",
        ),
        ({"suite": "boolq", "scoring": "x"}, "scoring is 'x'; expected 'choice_ll' or 'mean_nll'"),
        ({"suite": "boolq", "format": "int5x"}, "format: "),
        ({"suite": "boolq", "model": "prenorm"}, "'prenorm' is neither a folder, nor a built-in"),
    ],
)
def test_one_clear_line(shelf, options, said):
    assert refusal(run, shelf, **options).startswith(said)


def test_no_such_data_folder(tmp_path):
    assert refusal(run, tmp_path / "none") == (
        f"there is no folder {str(tmp_path / 'none')!r}; give data= the one that benchmarks lie in"
    )


def test_no_model_is_asked_where_a_later_one_is_misspelt(shelf, tmp_path):
    with pytest.raises(UserError, match="'prenorm' is neither a folder, nor a built-in"):
        run(shelf, model=["pre-norm", "prenorm"], limit=1, out=tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_a_file_in_the_place_of_results(shelf, tmp_path):
    (tmp_path / "out").write_text("mine")
    assert (
        refusal(run, shelf, out=tmp_path / "out")
        == f"{tmp_path / 'out'} is a file; give out= a folder for the results"
    )
    assert (tmp_path / "out").read_text() == "mine"


def test_a_model_without_a_tokenizer(shelf):
    with pytest.raises(UserError, match="has no tokenizer, which questions have to be read with"):
        layerlab.evaluate(candidate(512).model, "boolq", data=shelf, progress=False)


def test_the_list_is_named_only_where_something_is_not_here(shelf, tmp_path):
    refuses("layerlab evaluate --list to see what is here", run, shelf, "piqa")
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "piqa.zip").write_bytes(b"PK\x03\x04 half")
    assert refusal(run, tmp_path, "piqa").endswith("copy it anew, whole and without a password")


def test_an_archive_that_is_not_whole(shelf, tmp_path):
    boolq(tmp_path, True)
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "piqa.zip").write_bytes(b"PK\x03\x04 half")
    found = run(tmp_path, "boolq,piqa")
    (left,) = found.content["left_out"]
    assert left["reason"].endswith("copy it anew, whole and without a password")


@pytest.mark.few(1)
@pytest.mark.parametrize("scoring", ["choice_ll", "mean_nll", "gen"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_without_a_finite_logit_has_no_score(shelf, scoring, value):
    model = candidate(4096).model
    model.lm_head.weight.data[:] = value
    found = run(shelf, "financeiq", model=model, scoring=scoring, limit=1)
    (row,) = found.content["benchmarks"]
    assert (row["unsound"], row["lost"], row["abstained"], row["score"]) == (10, True, 1.0, 0.0)
    assert found.content["remarks"][0] == (
        "LlamaForCausalLM: FinanceIQ: NaN or infinite logits at 10 of 10 questions; they count as "
        "wrong, and the score says nothing of the model: look for NaN in its weights, or type "
        "--dtype float32"
    )
    said = found.summary(160, subjects=True)
    assert "not finite" in said and "0.00  [" not in said
    assert "<b>not finite</b>" in render(found.content)


@pytest.mark.full
def test_a_model_of_finite_logits_has_no_such_remark(shelf):
    found = run(shelf, "financeiq,boolq", scoring="gen", limit=1)
    assert not any("NaN" in one for one in found.content["remarks"])
    assert not any(row["lost"] for row in found.content["benchmarks"])


@pytest.mark.full
def test_no_answer_means_the_same_for_choices_and_for_what_is_written(shelf):
    for scoring in ("choice_ll", "gen"):
        found = run(shelf, "financeiq", model=candidate(8).model, scoring=scoring, limit=1)
        (row,) = found.content["benchmarks"]
        assert (row["shots"]["unfit"], row["abstained"]) == (10, 1.0)
    found = run(shelf, "financeiq,boolq", limit=1)
    assert [row["abstained"] for row in found.content["benchmarks"]] == [0.0, 0.0]


def test_results_without_a_question_in_common(shelf):
    whole = run(shelf, "boolq,ax-b", limit=1)
    rest = [one for one in whole.content["subjects"] if one["benchmark"] != "boolq"]
    earlier = EvaluationResult({**whole.content, "subjects": rest})
    with pytest.raises(
        UserError, match="in common; evaluate both with the same suite=, tasks=, scoring=,"
    ):
        run(shelf, "boolq", against=earlier)
