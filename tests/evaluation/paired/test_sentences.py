"""Verdicts in a sentence each: what is said, and what is left out where nothing tells it."""

from typing import Any

import pytest

from layerlab.evaluation.paired.sentences import (
    GROUP,
    SUITE,
    TASKS,
    Omissions,
    describe_pairs,
    list_names,
    say_row,
)
from layerlab.experiments.statistics.differences import Level

FAMILY = Level(comparisons=3)
# A model that is a little better, over one task of a hundred questions.
ROW: dict[str, Any] = {
    **{"arm": "tuned", "against": "base", "scope": "one task", "task": "law", "tasks": 1},
    **{"n": 100, "units": 100, "documents": [], "share": True, "difference": 0.02},
    **{"low": -0.01, "high": 0.05, "p": 0.2, "holm": 0.6, "detectable": (0.03, 0.04)},
    **{"test": "exact McNemar test", "gained": 3, "lost": 1, "margin": None, "within": None},
    **{"within_p": None, "verdict": "not distinguishable"},
}
WHOLE = (
    "tuned is not distinguishable from base by these questions: +2.00 percentage points (95 % "
    "interval -1.00 to +5.00, p = 0.6 after Holm's correction for 3 tests, exact McNemar test); a "
    "difference of 4.00 would be found with a probability of 80 %; over the task law; 3 questions "
    "were gained and 1 lost; unit of replication: a question, of which there are 100."
)


def test_a_verdict_has_its_evidence_its_place_and_its_unit():
    assert say_row(ROW, FAMILY) == WHOLE


@pytest.mark.parametrize(
    ("change", "left", "said"),
    [
        ({"scope": SUITE, "tasks": 4}, "the task law", "all questions of 4 tasks together"),
        (
            {"scope": GROUP, "tasks": 4},
            "the task law",
            "all questions of the 4 tasks of law",
        ),
        (
            {"gained": 3, "lost": 0},
            "3 questions were gained and 1",
            "3 questions were gained and 0",
        ),
        ({"gained": 0, "lost": 1}, "3 questions were gained", "0 questions were gained"),
        ({"gained": 0, "lost": 0}, "; 3 questions were gained and 1 lost", ""),
        ({"gained": None, "lost": None}, "; 3 questions were gained and 1 lost", ""),
        ({"low": None, "high": None}, "95 % interval -1.00 to +5.00, ", ""),
        (
            {"detectable": None},
            "; a difference of 4.00 would be found with a probability of 80 %",
            "",
        ),
        (
            {"detectable": (0.9, 1.1)},
            "a difference of 4.00 would be found",
            "so few find no difference at all",
        ),
        (
            {"documents": ["passage", "question"], "units": 9},
            "a question, of which there are 100",
            "the questions of one passage or question, of which there are 9 with 100 questions",
        ),
        (
            {"documents": ["question"], "units": 50},
            "of which there are 100",
            "of which there are 50 that are asked 100 times",
        ),
        (
            {"low": 0.001, "p": 0.04},
            "-1.00 to +5.00, p = 0.6 after Holm's correction for 3 tests, exact McNemar test)",
            "+0.10 to +5.00, p = 0.6 after Holm's correction for 3 tests, exact McNemar test); the "
            "interval alone leaves 0 out, but not after the correction for 3 tests",
        ),
        (
            {"low": 0.001, "p": 0.06},
            "-1.00 to +5.00, p = 0.6 after Holm's correction for 3 tests, exact McNemar test)",
            "+0.10 to +5.00, p = 0.6 after Holm's correction for 3 tests, exact McNemar test); the "
            "interval leaves 0 out, but is an approximation, and the test is exact",
        ),
    ],
)
def test_a_verdict_says_what_is_told_and_no_more(change, left, said):
    assert left in WHOLE
    assert say_row({**ROW, **change}, FAMILY) == WHOLE.replace(left, said)


def test_the_mean_of_tasks_has_tasks_for_units():
    told = say_row(
        {**ROW, "scope": TASKS, "tasks": 4, "units": 4, "gained": None, "lost": None}, FAMILY
    )
    assert told.endswith(
        "; in the mean of 4 tasks; unit of replication: a task, of which there are 4 with 100 "
        "questions."
    )


def test_one_test_has_no_correction_and_a_better_model_no_power():
    told = say_row({**ROW, "verdict": "better", "holm": 0.01}, Level(confidence=0.9))
    assert told.startswith(
        "tuned is better than base by 2.00 percentage points (90 % interval -1.00 to +5.00, p = "
        "0.01, exact McNemar test); over the task law; "
    )


@pytest.mark.parametrize(
    ("within", "said"), [("holds", "holds"), ("fails", "fails"), ("not decided", "is not decided")]
)
def test_a_margin_is_told_in_the_units_of_the_scores(within, said):
    row = {**ROW, "margin": 0.05, "within": within, "within_p": 0.125}
    told = f"that they are within 5.00 percentage points of each other {said} (p = 0.12 of that)"
    assert f"; {told}; " in say_row(row, FAMILY)
    plain = {**row, "share": False, "difference": -2345.0, "low": None, "detectable": None}
    told = say_row({**plain, "margin": 0.05}, FAMILY)
    assert "base by these questions: -2345 units of the metric (p = 0.6" in told
    assert f"within 0.05 units of the metric of each other {said} (p = " in told


def test_names_are_listed_once_and_no_more_than_six():
    assert list_names([*"abcaf"]) == "a, b, c, f"
    assert list_names([*"abcdef"]) == "a, b, c, d, e, f"
    assert list_names([*"abcdefgh"]) == "a, b, c, d, e, f and 2 more"


def test_without_anything_to_know_there_is_one_remark():
    one = "each name is one model: a verdict is about these models and questions like these, not "
    (told,) = describe_pairs([], [], Omissions(), alone=False)
    assert told.startswith(one)
    left = Omissions(unscored=["own"])
    assert describe_pairs([], [], left, alone=True)[1:] == [
        "each question was taken by itself, also where several are about one document",
        "left out, as no metric scores each question: own",
    ]
