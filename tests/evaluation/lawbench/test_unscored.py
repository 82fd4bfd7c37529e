"""Rows that LawBench's own code leaves out are counted, and its corrections have one score."""

import pytest

from layerlab.evaluation.benchmarks.catalog import LAWBENCH
from layerlab.evaluation.results.data_issues import remarks


def test_rows_that_are_left_out_are_counted_with_the_reason(home):
    assert remarks([LAWBENCH], complete=False) == [
        "LawBench 2-2: 1 row is left out: its label is not among the sixteen",
        "LawBench 3-4: 1 row is left out: a life sentence has no months",
        "LawBench 3-5: 1 row is left out: a death sentence has no months",
    ]


def test_a_task_of_corrections_is_scored_by_all_edits_together():
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from layerlab.evaluation.harness.fewshot import Shots
    from layerlab.evaluation.harness.leaf import score_task
    from layerlab.evaluation.harness.task_result import TaskResult
    from layerlab.evaluation.lawbench.aggregate import corpus_mean
    from layerlab.evaluation.metrics.estimates import mean

    def answer(**counts: object) -> TaskResult:
        return TaskResult(
            scores={"0:a": 1.0, "1:b": 0.0},
            abstained=None,
            metrics={},
            chance=None,
            shots=Shots(),
            limited=None,
            samples=[{"doc_id": place, **counts} for place in range(2)],
        )

    plain, corrected = answer(), answer(score=[1, 3, 1], alone=0.5)
    assert score_task(plain) == mean([1.0, 0.0])
    assert score_task(corrected) == corpus_mean([[1, 3, 1], [1, 3, 1]])
    assert score_task(corrected).value != score_task(plain).value
