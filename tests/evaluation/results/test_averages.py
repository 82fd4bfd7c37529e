import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.metrics.estimates import Mean
from layerlab.evaluation.results.averages import (
    FINEVAL,
    GROUPS,
    LAWBENCH,
    group_means,
    macro,
    means_by_heading,
    official,
    weighted_mean,
)

MEANS = st.builds(Mean, st.floats(0, 1, width=32), st.floats(0, 0.5, width=32), st.integers(1, 500))
SOME = settings(max_examples=40, deadline=None)


def named(benchmark: str, value: float = 0.5, n: int = 10) -> dict[str, Mean]:
    return {one.name: Mean(value, 0.1, n) for one in find_benchmark(benchmark).subjects}


@SOME
@given(st.lists(MEANS, min_size=1, max_size=8))
def test_macro_is_the_plain_mean_and_its_error(means):
    parts = {str(place): mean for place, mean in enumerate(means)}
    found = macro(parts, list(parts))
    k = len(means)
    assert found.mean.value == pytest.approx(math.fsum(one.value for one in means) / k)
    square = math.fsum((one.error or 0) ** 2 for one in means)
    assert found.mean.error == pytest.approx(math.sqrt(square) / k)
    assert found.mean.n == sum(one.n for one in means)
    assert found.official and found.formula == f"mean of {k} part{'s' * (k > 1)}"


@SOME
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=34, max_size=34))
def test_weighted_by_questions_is_the_share_of_all_questions(counts):
    counts = [(min(right, n), n) for right, n in counts]
    names = [one.name for one in find_benchmark("fineval").subjects]
    parts = {name: Mean(right / n, None, n) for name, (right, n) in zip(names, counts, strict=True)}
    found = official("fineval", parts)
    assert found.mean.value == pytest.approx(
        sum(right for right, _ in counts) / sum(n for _, n in counts)
    )
    assert found.formula == "mean of 34 subjects, weighted by their questions"
    assert found.mean.error is None  # a part without one tells none of the whole


@pytest.mark.full
@SOME
@given(st.lists(MEANS, min_size=20, max_size=20))
def test_lawbench_is_the_mean_of_twenty_by_levels_too(means):
    subjects = find_benchmark("lawbench").subjects
    parts = {one.name: mean for one, mean in zip(subjects, means, strict=True)}
    found = official("lawbench", parts)
    levels = means_by_heading(parts, {one.name: one.category for one in subjects})
    assert {level: one.parts for level, one in levels.items()} == LAWBENCH
    by_level = weighted_mean(
        {level: one.mean for level, one in levels.items()}, LAWBENCH, list(LAWBENCH)
    )
    assert found.mean.value == pytest.approx(by_level.mean.value)
    assert found.mean.error == pytest.approx(by_level.mean.error)
    assert found.formula == "(2 M + 10 U + 8 A) / 20 = mean of 20 tasks"


def test_lawbench_without_the_approximate_task():
    parts = named("lawbench", 0.4) | {"2-1": Mean(1.0, 0.0, 10)}
    found = official("lawbench", parts, without=("2-1",))
    assert found.mean.value == pytest.approx(0.4)
    assert found.formula == "mean of 19 tasks, without 2-1"
    assert found.official


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_was_not_run_is_named(name):
    parts = named(name)
    whole = official(name, parts)
    assert whole.official and whole.parts == len(parts) and "not run" not in whole.formula
    lost, _ = parts.popitem()
    part = official(name, parts)
    assert part.missing == (lost,) and not part.official
    assert part.formula.endswith(f"not run: {lost}")
    assert f"{len(parts)} of {len(parts) + 1}" in part.formula
    nothing = official(name, {})
    assert math.isnan(nothing.mean.value) and nothing.parts == 0


def test_the_questions_of_fineval_are_those_that_the_source_weighs(data):
    from layerlab.evaluation.benchmarks.readers import read_rows

    fineval = find_benchmark("fineval")
    counts = dict.fromkeys(FINEVAL, 0)
    for one in fineval.subjects:
        counts[one.category] += len(read_rows(fineval, one, "val"))
    assert counts == FINEVAL


def test_groups_of_the_general_benchmarks():
    parts = {name: Mean(0.1 * place, 0.1, 10) for place, name in enumerate(BENCHMARKS)}
    found = group_means(parts)
    assert list(found) == [*GROUPS, "general"]
    assert [found[group].parts for group in found] == [4, 1, 2, 4, 11]
    assert found["general"].mean.value == pytest.approx(0.5)  # of 0 to 10, in tenths
    assert found["examination"].mean.value == pytest.approx(0.15)
    del parts["lcsts"]
    part = group_means(parts)
    assert part["general"].missing == part["understanding"].missing == ("lcsts",)
    assert part["general"].formula == "mean of 10 of 11 benchmarks; not run: lcsts"
