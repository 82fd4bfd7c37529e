"""Two models that were put to LawBench are compared, its corrections sentence by sentence."""

import pytest

import layerlab
from layerlab.evaluation.results.question_scores import score_whole
from tests.evaluation.candidate import candidate, tokenizer

SAID = (
    "layerlab_lawbench_2_1: compared by the mean of the F of each sentence; its score is one F of "
    "all edits together, which no single sentence has"
)


@pytest.mark.full
def test_two_evaluations_are_judged_and_differences_say_what_they_are_of(home):
    found = {}
    for name, width in (("one", 32), ("two", 64)):
        found[name] = layerlab.evaluate(
            candidate(96, hidden_size=width).model,
            "lawbench",
            tokenizer=tokenizer(),
            out=home / name,
            limit=2,
            against=home / "one" if found else None,
            progress=False,
        )
    judged = layerlab.judge([home / "one", home / "two"])
    metrics = {row["task"]: row["metric"] for row in judged.rows if row["scope"] == "task"}
    assert metrics.pop("layerlab_lawbench_2_1") == "alone"
    assert set(metrics.values()) == {"score"} and len(metrics) == 19
    assert all(row["higher"] for row in judged.rows)
    for remarks in (
        judged.content["remarks"],
        found["two"].content["remarks"],
        score_whole(found["one"].content, "asked", 1.0).remarks,
    ):
        assert SAID in remarks
    assert SAID not in found["one"].content["remarks"]
