"""Groups of tasks as results name them: judged whole and as all models have them, or left out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import layerlab
from layerlab import UserError
from layerlab.evaluation.paired.result import PairedEvaluations
from tests.evaluation.paired.written_samples import DATE, sample, write, write_scores
from tests.support.refused import refuses

GROUPS = {"g": ["a", "b"], "top": ["g", "c"], "a": [], "b": [], "c": []}
TASKS = ("a", "b", "c", "d")


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [written(tmp_path / name, at, GROUPS) for at, name in enumerate(("base", "tuned"))]


def written(place: Path, at: int, groups: Mapping[str, Sequence[str]]) -> Path:
    """Write a model of four tasks, one of them in no group, with the results beside."""
    for number, task in enumerate(TASKS):
        write_scores(place, [int((n + number) % 7 > 3 - at) for n in range(20 + number)], task)
    describe(place, groups)
    return place


def describe(place: Path, groups: Mapping[str, Sequence[str]]) -> None:
    counts = {task: {"effective": 20 + number} for number, task in enumerate(TASKS)}
    told = {"group_subtasks": groups, "n-samples": counts}
    (place / f"results_{DATE}.json").write_text(json.dumps(told))


def groups_of(found: PairedEvaluations) -> dict[str, int]:
    return {row["task"]: row["n"] for row in found.rows if row["scope"] == "group"}


def remarks(found: PairedEvaluations) -> str:
    return "\n".join(found.content["remarks"])


def test_groups_are_judged_over_all_their_tasks(places):
    found = layerlab.judge(places)
    assert groups_of(found) == {"g": 41, "top": 63}
    assert "groups left out" not in remarks(found)


@pytest.mark.parametrize("turned", [False, True])
def test_groups_with_other_tasks_in_one_model_are_left_out(places, turned):
    describe(places[1], {**GROUPS, "top": ["g", "c", "d"]})
    found = layerlab.judge(places[::-1] if turned else places)
    assert groups_of(found) == {"g": 41}
    said = "groups left out, as they have other tasks in one model than in another: top"
    assert said in found.content["remarks"]


def test_groups_with_a_task_that_nobody_answered_are_left_out(places):
    for place in places:
        describe(place, {**GROUPS, "g": ["a", "nosuch"]})
    found = layerlab.judge(places)
    assert not groups_of(found)
    said = "as not all models have answers to tasks of them: g (nosuch), top (nosuch)"
    assert f"groups left out, {said}" in found.content["remarks"]


def test_answers_that_are_gone_in_all_folders_are_missed(places):
    for place in places:
        (place / f"samples_b_{DATE}.jsonl").unlink()
    refuses(r"base holds no answers to b, of which the results there", layerlab.judge, places)
    found = layerlab.judge(places, allow=["tasks"])
    assert not groups_of(found)
    assert "tuned has no answers to tasks that its results tell of: b" in found.content["remarks"]
    assert (
        "groups left out, as not all models have answers to tasks of them: g (b), top (b)"
        in (found.content["remarks"])
    )
    files = [place / f"samples_a_{DATE}.jsonl" for place in places]
    assert [row["task"] for row in layerlab.judge(files).rows] == ["a"]


def test_groups_with_scores_that_are_no_shares_are_left_out(places):
    for at, place in enumerate(places):
        write_scores(place, [n + at / (n + 2) for n in range(21)], "b")
    found = layerlab.judge(places)
    assert not groups_of(found)
    said = "groups left out, as the scores of tasks of them are no shares: g (b), top (b)"
    assert said in found.content["remarks"]


def test_groups_with_a_task_that_scores_no_question_are_left_out(places):
    for place in places:
        rows = [sample(n, 0, metric="bleu") for n in range(21)]
        write(place, [{**one, "metrics": ["bleu"], "bleu": ["said", "right"]} for one in rows], "b")
    found = layerlab.judge(places)
    assert not groups_of(found)
    said = "groups left out, as no metric scores each question of tasks of them: g (b), top (b)"
    assert said in found.content["remarks"]


def test_a_direction_of_no_metric_is_refused(places):
    with pytest.raises(UserError, match=r"metric is '=lower', which names nothing; expected NAM"):
        layerlab.judge(places, metric="=lower")
