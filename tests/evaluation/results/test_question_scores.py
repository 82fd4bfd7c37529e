"""One score over several benchmarks: each as its authors average it, question by question."""

import math

import pytest

from layerlab.errors import UserError

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness.prepare import check_whole, load_whole
from layerlab.evaluation.results.question_scores import score_whole
from tests.evaluation.lm_eval_tasks.own_tasks import LAST, READ, folder, run, write
from tests.evaluation.shelf import shelf, whole
from tests.support.refused import refuses

__all__ = ["folder", "shelf", "whole"]


@pytest.mark.full
def test_the_score_is_the_mean_of_the_official_averages(whole):
    content = {
        **whole.content,
        "subjects": [{**one, "ties": {}} for one in whole.content["subjects"]],
    }
    found = score_whole(content, "x", 1.0)
    official = [one for one in whole.content["benchmarks"] if not one.get("without")]
    assert {one["benchmark"] for one in official} == {"boolq", "ax-b", "financeiq", "fineval"}
    assert found.score == pytest.approx(sum(one["score"] for one in official) / 4)
    assert sum(len(part.questions) for part in found.parts) == sum(one["n"] for one in official)


@pytest.mark.full
def test_a_tie_of_two_options_counts_a_half(whole):
    subjects = [one for one in whole.content["subjects"] if one["benchmark"] == "boolq"]
    (one,) = subjects
    ties = {"score": dict.fromkeys(one["scores"], 0.5)}
    content = {**whole.content, "subjects": [{**one, "ties": ties}]}
    assert score_whole(content, "x", 1.0).score == 0.5


@pytest.mark.full
def test_a_model_of_nan_has_no_score(whole):
    lost = [{**one, "lost": True} for one in whole.content["subjects"]]
    with pytest.raises(UserError, match=r"has no score: logits of .* are NaN or infinite"):
        score_whole({**whole.content, "subjects": lost}, "x", 1.0)


@pytest.mark.full
def test_tasks_of_lm_eval_are_asked_in_what_more_is_better_of(folder: object, tmp_path) -> None:  # type: ignore[no-untyped-def]
    last, read = write(tmp_path, "own_last", LAST), write(tmp_path, "own_read", READ)
    content = run(last).content
    found = score_whole(content, "x", 1.0)
    assert len(found.parts) == 1 and len(found.parts[0].questions) == 12
    assert found.score == pytest.approx(content["tasks"][0]["score"])
    with pytest.raises(UserError, match="has no score of each question of which more is better"):
        score_whole(run(read).content, "x", 1.0)
    refuses("no question has a score by itself, in all that own_read", load_whole, str(read))
    assert [leaf.questions(None) for leaf in load_whole(str(last))] == [12]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("piqua", "did you mean 'piqa'"),
        ("piqa,cevall", "did you mean 'ceval'"),
        ("arc_esy", "did you mean arc_easy"),
        ("none/there.yaml", "cannot read none/there.yaml"),
        (",", "no task is named in"),
    ],
)
def test_what_there_is_not_is_told_with_what_is_near(name, said):
    refuses(said, check_whole, name)


def test_a_suite_of_which_a_part_is_not_here_is_refused(shelf, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(shelf))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert check_whole("boolq, financeiq") == ("boolq, financeiq", None)
    refuses("PIQA is not here: expected", check_whole, "reasoning")
    assert math.isclose(sum(leaf.questions(None) for leaf in load_whole("boolq")), 10)
