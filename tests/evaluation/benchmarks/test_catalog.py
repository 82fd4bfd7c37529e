"""The declarations: which benchmarks there are, under which names, with which subjects."""

import re

import pytest

from layerlab import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from tests.support.refused import refuses

EACH = pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)


def test_the_source_has_eleven_general_two_of_finance_and_one_of_law():
    groups = [one.group for one in BENCHMARKS.values()]
    assert [groups.count(name) for name in dict.fromkeys(groups)] == [4, 1, 2, 4, 2, 1]
    assert list(dict.fromkeys(groups)) == [
        *("examination", "knowledge", "reasoning", "understanding", "finance", "law")
    ]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("ceval", 52), ("cmmlu", 67), ("mmlu", 57), ("agieval", 21)),
        *(("financeiq", 10), ("fineval", 34), ("lawbench", 20), ("boolq", 1)),
    ],
)
def test_subjects_are_as_many_as_the_source_has(name, count):
    assert len(find_benchmark(name).subjects) == count


@EACH
def test_a_declaration_agrees_with_itself(benchmark):
    assert benchmark.split in benchmark.files
    assert benchmark.shots_split is None or benchmark.shots_split in benchmark.files
    assert benchmark.shots_split != benchmark.split
    assert benchmark.shots <= benchmark.most_shots
    assert (benchmark.most_shots > 0) == (benchmark.shots_split is not None)
    assert benchmark.licence and benchmark.source and benchmark.scorings
    assert re.fullmatch(r"layerlab_[a-z_]+", benchmark.task)


@EACH
def test_every_subject_has_a_name_a_category_and_a_file_of_its_own(benchmark):
    leaves = [benchmark.leaf(subject) for subject in benchmark.subjects]
    assert len(set(leaves)) == len(leaves)
    assert len({subject.file for subject in benchmark.subjects}) == len(leaves)
    for subject in benchmark.subjects:
        assert subject.english and subject.category
        assert benchmark[subject.name] is subject
    if benchmark.language == "zh" and benchmark.name != "agieval":
        assert all(subject.chinese for subject in benchmark.subjects)


def test_lawbench_has_levels_of_two_ten_and_eight():
    levels = [subject.category for subject in find_benchmark("lawbench").subjects]
    assert {name: levels.count(name) for name in levels} == {
        "memorization": 2,
        "understanding": 10,
        "applying": 8,
    }


def test_an_unknown_benchmark_names_the_nearest():
    refuses(r"no benchmark 'cevall'; did you mean 'ceval'\? expected one", find_benchmark, "cevall")


def test_an_unknown_subject_names_the_nearest():
    with pytest.raises(UserError, match="C-Eval has no subject 'laws'; did you mean law"):
        find_benchmark("ceval")["laws"]
