"""From results of tasks to benchmarks, groups and parts; the source's tables beside them."""

from typing import Any

import pytest

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.metrics.estimates import mean
from layerlab.evaluation.results.aggregate import (
    benchmark_rows,
    group_rows,
    section_rows,
    unsound_remarks,
)
from layerlab.evaluation.results.averages import GROUPS
from layerlab.evaluation.results.paired_difference import (
    FORGETTING,
    GENERAL,
    differences,
    differing,
    paired_differences,
)
from layerlab.evaluation.results.published import LABEL, tables
from layerlab.evaluation.results.published_comparison import AVERAGE, OURS, published_rows
from tests.support.refused import refusal


def record(benchmark: str, subject: str, scores: list[float], **changes: Any) -> dict[str, Any]:
    whole = mean(scores)
    return {
        "arm": "a",
        "task": f"{benchmark} {subject}",
        "benchmark": benchmark,
        "subject": subject,
        "score": whole.value,
        "error": whole.error,
        "n": whole.n,
        "abstained": None,
        "chance": 0.25,
        "shots": vars(Shots(asked=5, mean=5.0, least=5)),
        "limited": None,
        "scoring": "choice_ll",
        "cot": False,
        "metrics": {},
        "scores": {str(place): score for place, score in enumerate(scores)},
        **changes,
    }


@pytest.fixture(scope="module")
def law() -> list[dict[str, Any]]:
    """LawBench with task i of twenty scored i/20."""
    parts = find_benchmark("lawbench").subjects
    return [
        record("lawbench", part.name, [place / 20, place / 20], chance=None, abstained=0.5)
        for place, part in enumerate(parts)
    ]


def test_lawbench_by_level_and_kind_and_without_what_is_approximate(law):
    whole, without = benchmark_rows(law)
    assert whole["score"] == pytest.approx(sum(range(20)) / 400)
    assert whole["formula"].startswith("(2 M + 10 U + 8 A) / 20")
    assert whole["chance"] is None and whole["abstained"] == 0.5
    place = [part.name for part in find_benchmark("lawbench").subjects].index("2-1")
    assert without["score"] == pytest.approx((sum(range(20)) - place) / 19 / 20)
    assert without["title"] == "LawBench without 2-1"
    sections = {(row["by"], row["section"]): row["score"] for row in section_rows(law)}
    levels = {row: value for row, value in sections.items() if row[0] == "level"}
    assert len(levels) == 3 and len(sections) == 3 + 5
    weights = {"memorization": 2, "understanding": 10, "applying": 8}
    joined = sum(weights[name] * value for (_, name), value in levels.items()) / 20
    assert joined == pytest.approx(whole["score"])


def test_fewer_subjects_are_named_as_missing(law):
    row, _ = benchmark_rows(law[:3])
    assert row["formula"].startswith("mean of 3 of 20 tasks; not run: 2-2")
    assert len(row["missing"]) == 17


def test_a_benchmark_is_lost_where_all_that_could_be_asked_is():
    long = vars(Shots(unfit=1))
    rows = [
        record("financeiq", "actuary_fin_math", [0.0], shots=long),
        record("financeiq", "economic_analyst", [0.0] * 3, unsound=3),
    ]
    (row,) = benchmark_rows(rows)
    assert row["lost"] and row["unsound"] == 3 and all(one["lost"] for one in group_rows([row]))
    (said,) = unsound_remarks([row])
    assert said.startswith("a: FinanceIQ: NaN or infinite logits at 3 of 4 questions; they count")
    other = record("boolq", find_benchmark("boolq").subjects[0].name, [0.0], shots=long)
    beside = benchmark_rows([*rows, other])
    lost = {one["group"]: one["lost"] for one in group_rows(beside)}
    assert lost == {"knowledge": False, "general": False, "finance": True}
    (sound,) = benchmark_rows([rows[0]])
    assert not sound["lost"] and unsound_remarks([sound]) == []
    (part,) = benchmark_rows([rows[1], record("financeiq", "actuary_fin_math", [1.0])])
    assert not part["lost"] and len(unsound_remarks([part])) == 1


def test_examples_and_abstentions_are_pooled_over_questions():
    few = vars(Shots(asked=5, mean=1.0, least=0, shortened=1, unfit=2))
    rows = [
        record("financeiq", "actuary_fin_math", [0.0], shots=few, abstained=1.0),
        record("financeiq", "economic_analyst", [1.0] * 3, abstained=0.0),
    ]
    (row,) = benchmark_rows(rows)
    assert row["shots"]["mean"] == 4.0 and row["shots"]["least"] == 0
    assert row["shots"]["unfit"] == 2 and row["abstained"] == 0.25
    assert row["score"] == 0.5 and row["chance"] == 0.25


def test_the_general_average_is_of_eleven():
    rows = []
    for name, one in BENCHMARKS.items():
        rows += [record(name, part.name, [0.25, 0.75]) for part in one.subjects]
    groups = {row["group"]: row for row in group_rows(benchmark_rows(rows))}
    assert groups["general"]["formula"] == "mean of 11 benchmarks"
    assert groups["general"]["score"] == pytest.approx(0.5)
    assert groups.keys() == {
        *("examination", "knowledge", "reasoning", "understanding", "general", "finance", "law")
    }


def test_a_full_table_of_the_source_has_our_average_too():
    rows = []
    for name, one in BENCHMARKS.items():
        rows += [record(name, part.name, [0.25, 0.75]) for part in one.subjects]
    found = published_rows(["a"], benchmark_rows(rows), rows, section_rows(rows))
    ours = {row["table"]: row for row in found if row["from"] == OURS}
    assert ours.keys() == {5, 6, 8, 9, 10}
    for row in ours.values():
        assert row["cells"][AVERAGE] == pytest.approx(50.0)
        assert None not in row["cells"].values()
    theirs = [row for row in found if row["from"] == LABEL and row["table"] == 10]
    assert {row["model"] for row in theirs} == set(tables()[10].rows)
    yunshan = next(row for row in theirs if row["model"] == "YunShan")
    assert yunshan["cells"][AVERAGE] == 31.75


def test_without_finite_logits_nothing_stands_beside_what_was_published():
    parts = find_benchmark("lawbench").subjects
    rows = [
        record("lawbench", part.name, [0.0], chance=None, unsound=1, lost=True) for part in parts
    ]
    benchmarks = benchmark_rows(rows)
    assert [row["lost"] for row in benchmarks] == [True, True]
    found = published_rows(["a"], benchmarks, rows, section_rows(rows))
    assert not [row for row in found if row["from"] == OURS]


def test_forgetting_is_what_the_general_mean_lost():
    general = [one for one in BENCHMARKS.values() if one.group in GROUPS]
    ours = [
        record(one.name, part.name, [0.0, 1.0, 0.0]) for one in general for part in one.subjects
    ]
    before = [{**one, "scores": {"0": 1.0, "1": 1.0, "2": 0.5}} for one in ours]
    rows = {row["title"]: row for row in paired_differences(ours, before, "base")}
    assert rows.keys() == {*(one.title for one in general), GENERAL, FORGETTING}
    assert rows[GENERAL]["complete"] and rows[GENERAL]["whole"] == 11
    assert rows[FORGETTING]["difference"] == pytest.approx(0.5)
    assert rows["BoolQ"]["error"] == pytest.approx(mean([-1.0, 0.0, -0.5]).error)
    assert rows["BoolQ"]["n"] == 3


def test_another_scoring_is_told():
    ours, theirs = [record("boolq", "all", [1.0])], [record("boolq", "all", [1.0], scoring="gen")]
    assert differing(ours, theirs) == [
        "asked differently: BoolQ: scored by choice_ll here, by gen there"
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cot": True}, "asked differently: BoolQ: explained examples only there"),
        ({"chat": True}, "asked differently: BoolQ: the chat template only there"),
        (
            {"scores": {"other": 1.0}},
            "asked differently: BoolQ: no question in common in 1 of its parts",
        ),
    ],
)
def test_other_prompts_are_told(changes, said):
    ours = [record("boolq", "all", [1.0])]
    theirs = [{**ours[0], **changes}]
    assert differing(ours, theirs) == [said]
    assert differing(theirs, ours) == [said.replace("there", "here")]
    assert differing(ours, ours) == []


def test_an_earlier_run_of_others():
    ours = [record("boolq", "all", [1.0, 0.0])]
    earlier = {"arms": [{"arm": "x"}, {"arm": "y"}], "subjects": []}
    assert refusal(differences, earlier, [{"arm": "a"}], ours) == (
        "--against holds 'x', 'y', and none is called 'a'; give the results of a single model"
    )
