"""Which accuracies cannot be told from guessing, and what of it is shown."""

from typing import Any

import pytest
from scipy.stats import binomtest
from statsmodels.stats.multitest import multipletests

from layerlab.evaluation.results.above_chance import count_tests, judge_guessing, list_tested
from layerlab.evaluation.results.aggregate import benchmark_rows, group_rows
from layerlab.evaluation.results.result import EvaluationResult
from tests.evaluation.results.test_aggregate import record


def answers(right: int, n: int) -> list[float]:
    return [1.0] * right + [0.0] * (n - right)


def judged(*counts: tuple[str, str, int, int]) -> tuple[list[dict[str, Any]], list[Any]]:
    subjects = [
        record(name, part, answers(right, n), chance=0.5, guesses=[[0.5, n]])
        for name, part, right, n in counts
    ]
    rows = benchmark_rows(subjects)
    judge_guessing(rows, subjects, [])
    return rows, subjects


def test_tests_of_a_table_are_corrected_together():
    counts = [("boolq", "all", 60, 90), ("ax-b", "all", 40, 80), ("piqa", "all", 28, 40)]
    rows, _ = judged(*counts)
    raw = [binomtest(right, n, 0.5, alternative="greater").pvalue for *_, right, n in counts]
    whole = multipletests(raw, alpha=0.05, method="holm")
    assert [row["guessing"]["p"] for row in rows] == pytest.approx(raw)
    assert [row["guessing"]["holm"] for row in rows] == pytest.approx(list(whole[1]))
    assert [row["guessing"]["above"] for row in rows] == list(whole[0]) == [True, False, True]


def test_an_accuracy_that_is_above_chance_by_itself_may_not_be_among_many():
    alone, _ = judged(("boolq", "all", 32, 50))
    assert alone[0]["guessing"]["above"] and 0.025 < alone[0]["guessing"]["p"] < 0.05
    among, _ = judged(("boolq", "all", 32, 50), ("ax-b", "all", 25, 50))
    assert not among[0]["guessing"]["above"]


def test_what_has_no_chance_level_or_is_no_share_is_not_tested():
    rows = benchmark_rows([record("xsum", "all", [0.3, 0.2], chance=None)])
    judge_guessing(rows, [], [])
    assert "guessing" not in rows[0]
    content = {"benchmarks": rows}
    assert list_tested(content, "a", above=True) == list_tested(content, "a", above=False) == []
    half = record("boolq", "all", [0.5, 1.0], chance=0.5, guesses=[[0.5, 2]])
    rows = benchmark_rows([half])
    judge_guessing(rows, [half], [])
    assert "guessing" not in rows[0]


def test_both_accuracies_of_a_task_are_tested_and_no_other_metric():
    measured = [
        {"metric": "acc", "value": 0.5},
        {"metric": "acc_norm", "value": 0.9},
        {"metric": "exact_match", "value": 0.0},
        {"metric": "f1", "value": None},
    ]
    task = {"arm": "a", "task": "own", "n": 40, "guesses": [[0.5, 40]], "measured": measured}
    judge_guessing([], [], [task])
    assert [one.get("guessing", {}).get("above") for one in measured] == [False, True, None, None]
    content = {"benchmarks": [], "tasks": [task]}
    assert list_tested(content, "a", above=False) == ["own (acc)"] and count_tests(content) == 2
    assert list_tested(content, "a", above=True) == ["own (acc_norm)"]
    assert list_tested(content, "b", above=False) == []


def test_a_tie_of_k_options_counts_as_one_in_k():
    """With all of ten questions right and eight of them ties of two, guessing does as well."""
    scores = answers(10, 10)
    ties = {"score": {str(place): 0.5 for place in range(8)}}
    sure = record("boolq", "all", scores, chance=0.5, guesses=[[0.5, 10]], worth="score")
    for one, right in (
        (sure, 10),
        ({**sure, "ties": ties}, 6),
        ({**sure, "ties": {"acc": {}}}, 10),
    ):
        rows = benchmark_rows([one])
        judge_guessing(rows, [one], [])
        expected = binomtest(right, 10, 0.5, alternative="greater").pvalue
        assert rows[0]["guessing"]["p"] == pytest.approx(expected)
    measured = [{"metric": "acc", "value": 1.0, "tied": 8, "shared": 0.6}]
    task = {"arm": "a", "task": "own", "n": 10, "guesses": [[0.5, 10]], "measured": measured}
    judge_guessing([], [], [task])
    assert measured[0]["guessing"]["p"] == pytest.approx(
        binomtest(6, 10, 0.5, alternative="greater").pvalue
    )


def test_part_of_a_right_answer_is_none():
    """Thirds add up to a number in between, and p is that of the number below it."""
    thirds = {"score": {str(place): 1 / 3 for place in range(4)}}
    one = record(
        *("boolq", "all", answers(4, 10)),
        chance=0.5,
        guesses=[[0.5, 10]],
        worth="score",
        ties=thirds,
    )
    rows = benchmark_rows([one])
    judge_guessing(rows, [one], [])
    assert rows[0]["guessing"]["p"] == pytest.approx(1 - 0.5**10)  # P(X >= 1)


def test_the_terminal_names_them():
    rows, subjects = judged(("boolq", "all", 5, 10), ("piqa", "all", 40, 40))
    arm = {"arm": "a", "parameters": 1, "context": 8, "precision": "", "dtype": "float32"}
    content = {
        "arms": [arm],
        "benchmarks": rows,
        "groups": group_rows(rows),
        "sections": [],
        "subjects": subjects,
        "left_out": [],
        "remarks": [],
    }
    said = EvaluationResult(content).summary(120)
    how = "(exact one-sided test at 0.05, Holm over 2 accuracies)"
    assert f"\nAbove chance: PIQA {how}" in said and f"\nNot above chance: BoolQ {how}" in said
    assert "acc_norm" not in said
    content["benchmarks"] = [{**rows[0], "acc_norm": {**rows[0], "acc_norm": None}}, rows[1]]
    explained = "acc: share of right answers; acc_norm: the same with likelihoods divided by"
    assert explained in EvaluationResult(content).summary(120)
    assert said.count("incomplete (") == 2 and "incomplete (2 of 11)" in said
    mean = next(row for row in content["groups"] if row["group"] == "general")
    assert mean["score"] is None and mean["complete"] is False and mean["parts"] == 2
    frame = EvaluationResult(content).frame()
    assert frame.guessing_above.tolist() == [False, True]
