"""Suites, groups and benchmarks by name."""

import pytest

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.suites import GENERAL, SUITES, select_benchmarks
from tests.support.refused import refusal


def test_the_three_suites_are_those_of_the_source():
    assert [len(select_benchmarks(name)) for name in ("general", "finance", "law")] == [11, 2, 1]
    assert [one.name for one in select_benchmarks("all")] == list(BENCHMARKS)
    assert [one for name in GENERAL for one in select_benchmarks(name)] == list(
        select_benchmarks("general")
    )


def test_each_once_in_the_order_of_the_words():
    assert [one.name for one in select_benchmarks("LAW, piqa,reasoning")] == [
        "lawbench",
        "piqa",
        "ax-b",
    ]


@pytest.mark.parametrize("name", SUITES)
def test_no_suite_is_empty(name):
    assert select_benchmarks(name)


def test_an_unknown_name():
    assert refusal(select_benchmarks, "lawbensh").startswith(
        "there is no suite or benchmark 'lawbensh'; did you mean 'lawbench'? expected one of "
    )
