"""Questions that say one thing together are one unit, in whatever task they stand."""

from pathlib import Path

import pytest
from scipy import stats

import layerlab
from tests.evaluation.paired.written_samples import sample, write

MODELS = {"base": (1, 0, 0, 0), "other": (0, 1, 1, 1)}


def write_passages(folder: Path, alone: int) -> list[Path]:
    """Write four passages with five questions each, and questions about none, all right."""
    for name, right in MODELS.items():
        rows = [sample(at, right[at // 5], doc={"passage": f"text {at // 5}"}) for at in range(20)]
        rows += [sample(20 + at, 1, doc={"passage": None}) for at in range(alone)]
        write(folder / name, rows)
    return [folder / name for name in MODELS]


@pytest.mark.parametrize("cluster", [(), ("passage",)])
@pytest.mark.parametrize("alone", [1, 7])
def test_a_question_without_a_passage_makes_no_question_of_a_passage_a_unit(
    tmp_path, alone, cluster
):
    found = layerlab.judge(write_passages(tmp_path, alone), cluster=cluster)
    (row,) = found.rows
    assert (row["units"], row["n"]) == (4 + alone, 20 + alone)
    assert row["p"] == pytest.approx(stats.binomtest(3, 4).pvalue)
    told = f"{alone} of {20 + alone} questions of own have no passage, and each of them stands by"
    assert any(one.startswith(told) for one in found.content["remarks"])


def write_twice(folder: Path, tasks: tuple[str, ...]) -> list[Path]:
    """Write the same 24 questions for each task, of which one model has a few more right."""
    for name, odd in (("base", 0), ("other", 1)):
        rows = [sample(at, int(at % 3 == 0 or bool(odd and at % 4 == 1))) for at in range(24)]
        for task in tasks:
            write(folder / name, [{**one, "doc": [one["doc"]]} for one in rows], task)
    return [folder / "base", folder / "other"]


def test_questions_that_two_tasks_share_count_once(tmp_path):
    (one,) = layerlab.judge(write_twice(tmp_path / "one", ("law",))).rows
    found = layerlab.judge(write_twice(tmp_path / "two", ("law", "law_cot")))
    whole = next(row for row in found.rows if row["task"] == "all questions")
    assert (whole["n"], whole["units"], whole["p"]) == (48, 24, one["p"])
    assert whole["said"].endswith("a question, of which there are 24 that are asked 48 times.")
    assert any(told.startswith("24 questions are asked again") for told in found.content["remarks"])
    plain = layerlab.judge(write_twice(tmp_path / "none", ("a", "b")), cluster=["none"])
    assert next(row for row in plain.rows if row["task"] == "all questions")["units"] == 48


def test_rows_that_tell_no_question_apart_are_no_cluster(tmp_path):
    for name, right in MODELS.items():
        write(tmp_path / name, [{**sample(at, right[at]), "doc": None} for at in range(4)])
    (row,) = layerlab.judge([tmp_path / name for name in MODELS]).rows
    assert (row["n"], row["units"]) == (4, 4)
