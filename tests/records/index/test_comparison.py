"""What the index says of a comparison: the verdict on each arm, or on the best."""

from pathlib import Path
from typing import Any

import pytest

from tests.records.index.test_search import only, put
from tests.report.support.race import race


def compared(place: Path, *verdicts: str) -> dict[str, Any]:
    """A comparison of so many arms with llama, each 0.25 apart from the one before."""
    content = race(("llama", *(f"arm-{n}" for n in range(1, len(verdicts) + 1))), updates=100)
    for number, (row, verdict) in enumerate(
        zip(content["rows"], ("baseline", *verdicts), strict=True)
    ):
        row |= {"verdict": verdict, "difference": 0.25 * number}
    put(place, "comparison.json", content)
    return content


def test_a_comparison_of_few_arms_has_the_verdict_on_each(tmp_path):
    place = tmp_path / "own" / "comparisons" / "x"
    content = compared(place, "better", "worse")
    found = only(tmp_path)
    assert (found.kind, found.name, found.state) == (
        "comparison",
        f"{content['name']}: {', '.join(row['arm'] for row in content['rows'])}",
        "finished",
    )
    assert found.headline == (
        "arm-1 is better than llama by 0.25 nats; arm-2 is worse than llama by 0.5 nats"
    )
    put(place, "comparison.json", {**content, "metric": "bits_per_byte"})
    assert "better than llama by 0.25 bits per byte; " in only(tmp_path).headline
    content["runs"][0]["finished"] = False
    put(place, "comparison.json", content)
    found = only(tmp_path)
    assert found.state == "interrupted"
    assert found.headline == f"1 of {len(content['runs'])} runs are not finished"


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("told", "unit"),
    [
        ({"judged": "eval_accuracy", "higher_is_better": True}, "in eval_accuracy"),
        ({"judged": "loss"}, "in loss"),
        ({"higher_is_better": True}, "in score"),  # of an earlier version
        ({}, "in loss"),
    ],
)
def test_what_other_trainers_logged_has_its_own_unit(tmp_path, told, unit, count):
    content = compared(tmp_path, *["better"] * count)
    put(tmp_path, "comparison.json", {**content, "metric": "loss", **told})
    headline = only(tmp_path).headline
    assert f" llama by {0.25 * count:g} {unit}" in headline and "nats" not in headline


@pytest.mark.parametrize("lost", ["arm", "baseline", "both"])
def test_a_verdict_by_divergence_is_given_no_size(tmp_path, lost):
    """The runs that are left may differ the other way."""
    for verdicts in (("better",), ("better", "better", "worse", "worse")):
        content = compared(tmp_path, *verdicts)
        rows = content["rows"]
        for row in rows[:2]:
            row["diverged"] = [1, 2, 3] if lost in (row["verdict"], "both") else []
        rows[1]["diverged"] = [4] if lost != "baseline" else []
        put(tmp_path, "comparison.json", content)
        told = {"arm": "1 of arm-1", "baseline": "3 of llama", "both": "1 of arm-1 and 3 of llama"}
        if len(verdicts) == 1:
            said = f"arm-1 is better than llama; runs that diverged: {told[lost]}"
            assert only(tmp_path).headline == said
        elif lost == "arm":
            assert only(tmp_path).headline.startswith("arm-2 comes out ahead of llama by 0.5 nats")
        else:
            assert only(tmp_path).headline == "of 4 arms: 2 are better, 2 are worse"


def test_a_comparison_says_what_is_not_decided_in_its_own_words(tmp_path):
    compared(tmp_path, "not distinguishable")
    assert only(tmp_path).headline == "arm-1 and llama are not distinguishable"
    compared(tmp_path, "identical", "too few seeds", "diverged")
    assert only(tmp_path).headline == (
        "arm-1 and llama are identical; arm-2: too few seeds; arm-3: diverged"
    )
    compared(tmp_path)
    assert only(tmp_path).headline == "no arm is judged"


def test_a_comparison_of_many_arms_names_the_best_and_counts_verdicts(tmp_path):
    compared(tmp_path, "better", "better", "worse", "not distinguishable", "not distinguishable")
    assert only(tmp_path).headline == (
        "arm-2 comes out ahead of llama by 0.5 nats; of 5 arms: 2 are better, 1 is worse, "
        "2 are not distinguishable"
    )
    assert only(tmp_path).name.endswith(": llama, arm-1, arm-2, arm-3 and 2 more")


@pytest.mark.parametrize("count", [1, 4])
def test_a_ladder_names_the_size_that_its_verdicts_are_of(tmp_path, count):
    content = compared(tmp_path, *["better"] * count)
    sizes = [{"parameters": size, "runs": 4 * (size < 1e6)} for size in (45984, 189376, 2e6)]
    put(tmp_path, "comparison.json", {**content, "ladder": {"sizes": sizes}})
    assert only(tmp_path).headline.endswith("; at 189,376 parameters, of 3 sizes")
