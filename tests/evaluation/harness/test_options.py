"""How questions are put, and what is said where a benchmark cannot be asked so."""

import pytest

from layerlab import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.harness.options import Options
from layerlab.evaluation.tasks.configs import ways


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("scoring", [None, "choice_ll", "mean_nll", "gen"])
@pytest.mark.parametrize("cot", [False, True])
def test_every_way_leads_to_tasks_that_are_there(benchmark, scoring, cot):
    one, options = find_benchmark(benchmark), Options(scoring=scoring, cot=cot)
    assert options.way(one) in ("", *ways(one))
    assert options.choose_scoring(one) in one.scorings
    assert options.shows_explanations(one) == (cot and one.explained)


def test_a_wish_that_cannot_be_met_is_told():
    asked = [find_benchmark(name) for name in ("ceval", "boolq", "lawbench")]
    found = Options(scoring="gen", cot=True, shots=5).deviations(asked)
    assert found == [
        "BoolQ: not scored by gen",
        "BoolQ, LawBench: no explanations are there to show",
        "BoolQ, LawBench: fewer than 5 examples are there",
    ]
    assert Options().deviations(asked) == []
    assert Options(shots=1).deviations(asked) == ["BoolQ: no example is there"]


def test_examples_inside_a_benchmarks_own_files():
    law, exam = find_benchmark("lawbench"), find_benchmark("ceval")
    assert Options(shots=1).changes(law) == {"shots": 1}
    assert Options(shots=7).inside(law) == 1 and Options().inside(law) == 0
    assert Options(shots=7).examples(exam) == 5 and Options().examples(exam) is None
    assert Options(shots=1).examples(law) == 0


def test_values_that_are_none():
    with pytest.raises(UserError) as caught:
        Options(shots=2.5)
    assert str(caught.value) == "shots is 2.5; expected a whole number at least 0 and at most 1000"
