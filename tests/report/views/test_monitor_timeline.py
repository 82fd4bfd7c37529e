"""Readings of the monitor as a time-lapse."""

import json

import pytest

from layerlab.report.views.monitor_timeline import BUDGET, UPDATES, monitor_timeline
from tests.report.support.race import MEASURES, race


def rows(arm="a", run="a1", updates=(1, 2), layers=(0, 1), heads=(0, 1)):
    return [
        {
            "run": run,
            "arm": arm,
            "update": u,
            "layer": n,
            "head": h,
            "measure": "score",
            "value": u + 10.0 * n + (h or 0),
        }
        for u in updates
        for n in layers
        for h in heads
    ]


def test_a_map_holds_the_mean_over_heads_and_the_largest_layer_by_layer():
    found = monitor_timeline(rows(), ["a1"], ["a"])
    (arm,) = found["arms"]
    assert (arm["layers"], arm["updates"]) == ([0, 1], [1, 2])
    assert arm["values"]["0"]["mean"] == [1.5, 2.5, 11.5, 12.5]
    assert arm["values"]["0"]["largest"] == [2, 3, 12, 13]
    assert found["heads"]


def test_only_the_runs_that_are_judged_count():
    found = monitor_timeline([*rows(), *rows(run="a2", updates=(3,))], ["a1"], ["a"])
    assert found["arms"][0]["updates"] == [1, 2]


def test_a_reading_that_is_not_finite_or_of_no_layer_is_a_gap():
    given = rows(heads=(None,))
    given[0]["value"] = "Infinity"
    given.append({**given[1], "layer": None})
    found = monitor_timeline(given, ["a1"], ["a"])
    assert found["arms"][0]["values"]["0"]["mean"] == [None, 2, 11, 12]
    assert found["arms"][0]["infinite"] == {"0": {"count": 1, "readings": 4}}
    assert not found["heads"]


def test_infinite_readings_are_counted_for_each_arm_and_measure():
    given = [*rows(), *rows("b", "b1"), *({**one, "measure": "norm"} for one in rows())]
    for one in given:
        if one["arm"] == "a" and one["measure"] == "norm":
            one["value"] = "Infinity"
    given[0]["value"] = "-Infinity"
    found = monitor_timeline(given, ["a1", "b1"], ["a", "b"])
    assert [arm["infinite"] for arm in found["arms"]] == [
        {"0": {"count": 1, "readings": 8}, "1": {"count": 8, "readings": 8}},
        {},
    ]
    assert found["arms"][0]["values"]["0"]["mean"][0] == 2  # of the other head
    assert set(found["arms"][0]["values"]["1"]["mean"]) == {None}


@pytest.mark.parametrize("given", [[], [{"run": "a1"}], rows(run="other")])
def test_without_readings_there_is_nothing(given):
    assert monitor_timeline(given, ["a1"], ["a"]) == {"measures": [], "arms": [], "heads": False}


def test_a_long_watch_is_thinned_and_keeps_its_end():
    found = monitor_timeline(rows(updates=range(500), heads=(0,)), ["a1"], ["a"])
    updates = found["arms"][0]["updates"]
    assert len(updates) <= UPDATES
    assert updates[-1] == 499


@pytest.mark.full
def test_a_deep_watch_of_many_arms_keeps_to_its_budget():
    content = race(layers=48, heads=1, seeds=(1,))
    runs = [run["run"] for run in content["runs"]]
    found = monitor_timeline(content["monitor"], runs, content["arms"])
    assert found["measures"] == list(MEASURES)
    numbers = sum(
        len(part)
        for arm in found["arms"]
        for one in arm["values"].values()
        for part in one.values()
    )
    assert 0 < numbers <= BUDGET
    json.dumps(found, allow_nan=False)
