"""Answers of two models, paired: by which metric, and what is better of it."""

import json

import layerlab
from tests.evaluation.paired.written_samples import DATE, write_both
from tests.support.refused import refuses


def test_a_metric_that_is_named_and_scores_no_question_is_one_line(tmp_path):
    places = write_both(tmp_path, *[[[1, 2], [3, 4]]] * 2)
    said = "own has no 'acc' of each question, which metric="
    refuses(said, layerlab.judge, places, metric="acc")


def test_a_score_below_0_is_no_log_likelihood_for_that(tmp_path):
    scores = ([at - 9 + n * (1 + at) / 50 for n in range(20)] for at in range(2))
    places = write_both(tmp_path, *scores, metric="off")
    for place in places:
        told = {"higher_is_better": {"own": {"off": False}}}
        (place / f"results_{DATE}.json").write_text(json.dumps(told))
    (row,) = layerlab.judge(places).rows
    assert (row["verdict"], row["higher"], row["difference"] > 0) == ("worse", False, True)
