"""Answers that evaluations of our own keep, judged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import layerlab
from layerlab import UserError
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, READ
from tests.evaluation.lm_eval_tasks.own_tasks import write as write_task
from tests.support.refused import refuses

pytest.importorskip("lm_eval")


def judged(*places: Path, **given: Any) -> Any:
    return layerlab.judge(list(places), **given)


@pytest.mark.full
def test_what_an_evaluation_of_ours_keeps_is_read(tmp_path):
    task = write_task(tmp_path / "tasks", "own_choice", CHOICE, 12)
    results = {}
    for name, width in (("small", 32), ("wide", 64)):
        model = candidate(512, hidden_size=width).model
        results[name] = layerlab.evaluate(
            model, tasks=str(task), tokenizer=tokenizer(), out=tmp_path / name, progress=False
        )
    found = judged(tmp_path / "small", tmp_path / "wide")
    (row,) = found.rows
    (ours,), (theirs,) = (results[name].content["tasks"] for name in ("wide", "small"))
    gaps = [ours["scores"][key] - theirs["scores"][key] for key in theirs["scores"]]
    assert row["difference"] == pytest.approx(sum(gaps) / 12)
    assert (row["gained"], row["lost"]) == (gaps.count(1), gaps.count(-1)) and row["n"] == 12
    assert len(found.content["flipped"]) == 12 - gaps.count(0)
    said = "no question has a field 'nosuch', .*expected one of .*number"
    refuses(said, judged, tmp_path / "small", tmp_path / "wide", cluster=["nosuch"])
    named = judged(*(tmp_path / name / "results.json" for name in ("small", "wide")))
    assert named.rows == found.rows
    (samples,) = (tmp_path / "small" / "samples").glob("*.jsonl")
    (leaf,) = (tmp_path / "small" / "leaves").glob("*.json")
    whole, seal = samples.read_text(), leaf.read_bytes()
    lines = whole.splitlines()
    rows = [{**json.loads(one), "acc_norm": 1.0} for one in lines]
    forged = "".join(json.dumps(one) + "\n" for one in rows)
    said = (
        r"samples/own_choice-.*\.jsonl is not what results\.json was made from: it was changed, or"
    )
    for content in ("\n".join([*lines, lines[0]]), "\n".join(lines[1:]), forged):
        samples.write_text(content)
        for metric in (None, "acc_norm"):
            refuses(said, judged, tmp_path / "small", tmp_path / "wide", metric=metric)
    samples.write_text(whole)
    (other,) = (tmp_path / "wide" / "leaves").glob("*.json")
    (answers,) = (tmp_path / "wide" / "samples").glob("*.jsonl")
    samples.write_bytes(answers.read_bytes())
    leaf.write_bytes(other.read_bytes())  # whole, and another model's
    refuses(said, judged, tmp_path / "small", tmp_path / "wide", metric="acc_norm")
    samples.write_text(whole)
    leaf.unlink()
    refuses(said, judged, tmp_path / "small", tmp_path / "wide")
    leaf.write_bytes(seal)
    assert judged(tmp_path / "small", tmp_path / "wide").rows == found.rows
    samples.unlink()
    with pytest.raises(UserError, match="the prompts of own_choice are not beside"):
        judged(tmp_path / "small", tmp_path / "wide")


@pytest.mark.full
def test_groups_of_an_evaluation_of_ours_are_judged(tmp_path):
    tasks = ("own_a", "own_b", "own_c")
    paths = [write_task(tmp_path / "tasks", one, CHOICE, 6) for one in tasks]
    group = tmp_path / "tasks" / "own_both.yaml"
    group.write_text("group: own_both\ntask:\n  - own_a\n  - own_b\n")
    for name, width in (("small", 32), ("wide", 64)):
        layerlab.evaluate(
            candidate(512, hidden_size=width).model,
            tasks=f"{group},{paths[2]}",
            tokenizer=tokenizer(),
            out=tmp_path / name,
            progress=False,
        )
    found = judged(tmp_path / "small", tmp_path / "wide")
    sizes = {row["task"]: row["n"] for row in found.rows if row["scope"] == "group"}
    assert sizes == {"own_both": 12}


@pytest.mark.full
def test_models_of_ours_that_were_asked_in_other_dtypes_are_told(tmp_path):
    task = write_task(tmp_path / "tasks", "own_choice", CHOICE, 6)
    options = {"tasks": str(task), "tokenizer": tokenizer(), "progress": False}
    for name, bits in (("half", 16), ("full", 32), ("again", 32)):
        model = candidate(512).model.to(torch.bfloat16 if bits == 16 else torch.float32)
        layerlab.evaluate(model, out=tmp_path / name, **options)
    found = judged(*(tmp_path / name for name in ("full", "half")))
    said = "other settings of model_dtype ('torch.float32' and 'torch.bfloat16')"
    assert sum(said in one for one in found.content["remarks"]) == 1
    found = judged(*(tmp_path / name for name in ("full", "again")))
    assert not any("settings" in one for one in found.content["remarks"])


@pytest.mark.full
def test_a_task_of_ours_that_scores_no_question_is_named(tmp_path):
    kinds = {"own_choice": CHOICE, "own_read": READ}
    tasks = [str(write_task(tmp_path / "tasks", one, body, 6)) for one, body in kinds.items()]
    for name, width in (("small", 32), ("wide", 64)):
        for folder, asked in (("both", tasks), ("text", tasks[1:])):
            layerlab.evaluate(
                candidate(512, hidden_size=width).model,
                tasks=",".join(asked),
                tokenizer=tokenizer(),
                out=tmp_path / folder / name,
                progress=False,
            )
    found = judged(tmp_path / "both" / "small", tmp_path / "both" / "wide")
    assert "left out, as no metric scores each question: own_read" in found.content["remarks"]
    said = r"no task has a score of each question \(own_read\)"
    refuses(said, judged, tmp_path / "text" / "small", tmp_path / "text" / "wide")
