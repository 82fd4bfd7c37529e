"""A comparison gives its parts as tables."""

import pytest

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, records

LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare_runs(recipe(), records(recipe(), LOSSES))


def test_every_point_of_a_curve_is_a_row(found):
    points = found.frame("curves")
    assert len(points) == 6 * (3 + 3)
    last = points[(points["kind"] == "evaluation") & (points["update"] == 30)]
    assert last.set_index(["arm", "seed"])["nats"].to_dict() == {
        (arm, seed): nats for arm, seeds in LOSSES.items() for seed, nats in seeds.items()
    }
    assert found.frame("paired")["difference"].iloc[-1] == pytest.approx(-0.01, rel=0.01)
    assert len(found.frame("runs")) == 6


def test_an_arm_and_a_part_that_are_not_there_are_named(found):
    refuses("has no arm 'gpt3'; expected one of llama, gpt2", found.row, "gpt3")
    said = "no part 'bad'; expected one of rows, claims, runs, curves, paired, ladder: type"
    refuses(said, found.frame, "bad")
