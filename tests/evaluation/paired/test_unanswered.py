"""Questions that a model was not asked, or has no number for, are no answers of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

import layerlab
from layerlab.evaluation.results.result import load_result
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, LAST, WRITTEN
from tests.evaluation.lm_eval_tasks.own_tasks import write as write_task
from tests.evaluation.paired.written_samples import sample, write
from tests.support.refused import refuses

pytest.importorskip("lm_eval")
# Some questions are longer than a context of 64 tokens.
LONG = "{{ 'and so on ' * (40 if number|length > 16 else 1) }}Which number comes after {{number}}?"


def evaluate(
    place: Path,
    text: str,
    context: int = 512,
    *,
    broken: bool = False,
    lost: str = "",
    shots: int | None = None,
) -> Path:
    """Evaluate a model, whose head is no numbers if it is broken, nor what it reads of a text."""
    task = write_task(place.parent / "tasks", "own", text, 12)
    model = candidate(context).model
    if broken:
        with torch.no_grad():
            model.lm_head.weight[:] = float("nan")
    if lost:
        with torch.no_grad():
            model.get_input_embeddings().weight[tokenizer()(lost).input_ids] = float("nan")
    options: dict[str, Any] = {"tokenizer": tokenizer(), "progress": False, "shots": shots}
    layerlab.evaluate(model, tasks=str(task), out=place, **options)
    return place


@pytest.mark.full
def test_what_does_not_fit_into_a_context_does_not_count(tmp_path):
    text = CHOICE.replace("Which number comes after {{number}}?", LONG)
    wide = evaluate(tmp_path / "wide", text)
    narrow = evaluate(tmp_path / "narrow", text, 64)
    unfit = load_result(narrow).content["tasks"][0]["shots"]["unfit"]
    found = layerlab.judge([wide, narrow])
    (row,) = found.rows
    assert 0 < unfit < 12 and row["n"] == 12 - unfit
    assert row["verdict"] == "identical" and found.content["flipped"] == []
    assert (
        "questions that do not fit into the context of narrow, were not asked of it, and do not "
        f"count: {unfit} of own"
    ) in found.content["remarks"]
    assert not any("context of wide" in one for one in found.content["remarks"])


@pytest.mark.full
def test_a_question_that_fits_without_its_examples_counts(tmp_path):
    text = CHOICE.replace("Which", "{{ 'and so on ' * 4 }}Which")
    places = [evaluate(tmp_path / name, text, 64, shots=1) for name in ("one", "other")]
    (task,) = load_result(places[0]).content["tasks"]
    assert task["shots"]["shortened"] == 12 and not task["shots"]["unfit"]
    assert layerlab.judge(places).rows[0]["n"] == 12


@pytest.mark.full
def test_a_task_of_which_nothing_fits_is_refused(tmp_path):
    text = CHOICE.replace("Which", "{{ 'and so on ' * 40 }}Which")
    places = [evaluate(tmp_path / "wide", text), evaluate(tmp_path / "narrow", text, 64)]
    said = "no question of own was asked of both: 12 do not fit into the context of narrow"
    refuses(said, layerlab.judge, places)


@pytest.mark.full
@pytest.mark.parametrize("text", [CHOICE, LAST, WRITTEN])
def test_a_model_whose_logits_are_no_numbers_is_refused(tmp_path, text):
    places = [evaluate(tmp_path / "sound", text), evaluate(tmp_path / "lost", text, broken=True)]
    said = "lost has no answer to own: its logits are NaN or infinite at all 12 questions"
    refuses(said, layerlab.judge, places)


@pytest.mark.full
@pytest.mark.parametrize("text", [CHOICE, LAST, WRITTEN])
def test_questions_at_which_logits_are_no_numbers_are_counted(tmp_path, text):
    text = text.replace("{{number}}?", "{{number}}?{{ 'Z' if number|length > 16 else '' }}")
    places = [evaluate(tmp_path / "sound", text), evaluate(tmp_path / "lost", text, lost="Z")]
    unsound = load_result(places[1]).content["tasks"][0]["unsound"]
    assert 4 <= unsound < 12
    assert (
        "questions at which logits of lost are NaN or infinite, and which count as they were "
        f"scored: {unsound} of own"
    ) in layerlab.judge(places).content["remarks"]


@pytest.mark.full
def test_shorter_answers_for_want_of_context_are_said(tmp_path):
    text = WRITTEN.replace("max_gen_toks: 6", "max_gen_toks: 40")
    places = [evaluate(tmp_path / "wide", text), evaluate(tmp_path / "narrow", text, 64)]
    assert (
        "answers of narrow could have no more than 32 tokens, for want of context, and those of "
        "another more: own"
    ) in layerlab.judge(places).content["remarks"]


@pytest.mark.parametrize("kind", ["nan", "-inf"])
def test_questions_of_lm_eval_without_a_number_are_counted(tmp_path, kind):
    for name in ("base", "tuned"):
        rows = [sample(at, at % 2) for at in range(8)]
        for row in rows[1:4] if name == "tuned" else ():
            row["filtered_resps"] = [[kind, "False"], [kind if kind == "-inf" else "-1", "False"]]
            row["acc"] = 0
        write(tmp_path / name, rows)
    found = layerlab.judge([tmp_path / "base", tmp_path / "tuned"])
    assert (
        "questions at which logits of tuned are NaN or infinite, and which count as they were "
        "scored: 3 of own"
    ) in found.content["remarks"]
    assert [one["said"] for one in found.content["flipped"]] == ["NaN", "NaN"]
