"""What all sizes of a ladder take, against what each takes."""

from dataclasses import replace

import pytest

from layerlab.console.units import amount, duration
from layerlab.experiments.estimate.estimate import estimate
from layerlab.experiments.estimate.ladder import describe_sum, plan_to_json
from layerlab.experiments.plan.ladder import plan_rungs
from layerlab.experiments.plan.plan import plan
from tests.training.support.planned import EXTENT, recipe, unmeasured  # noqa: F401  its fixture


def test_all_sizes_take_what_each_takes_and_the_memory_of_the_largest():
    rungs = plan_rungs(recipe(compare={"arms": ["llama"]}, ladder={"count": 2}), EXTENT)
    small, large = (estimate(plan(one.recipe, EXTENT), measure=False) for one in rungs)
    assert small.memory < large.memory and small.flops < large.flops
    took = (small.seconds or 0.0) + (large.seconds or 0.0)
    told = plan_to_json(rungs, [small.to_dict(), large.to_dict()])
    assert (told["runs"], told["memory"]) == (small.runs + large.runs, large.memory)
    assert told["flops"] == small.flops + large.flops
    assert told["disk"] == small.disk + large.disk
    assert told["seconds"] == pytest.approx(took) and took > 0
    assert [one["flops"] for one in told["sizes"]] == [small.flops, large.flops]
    assert [one["parameters"] for one in told["sizes"]] == [one.parameters for one in rungs]
    (line,) = describe_sum([small, large])
    assert line == (
        f"all sizes: 6 runs, {duration(took)} in all, {amount(told['flops'], 'FLOP')}, "
        f"{amount(large.memory, 'B')} of memory at most, {amount(told['disk'], 'B')} on disk"
    )
    unknown = replace(small, seconds=None)
    assert plan_to_json(rungs, [unknown.to_dict(), large.to_dict()])["seconds"] is None
    assert f"6 runs, {duration(None)} in all" in describe_sum([unknown, large])[0]
