"""Places of differences on one scale."""

import math

import pytest

from layerlab.report.views.forest_plot import forest, format_signed, tone
from tests.report.support.race import ARMS, race


def row(arm, difference, half=0.01, **more):
    return {
        "arm": arm,
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
        **more,
    }


def by_arm(found):
    return {line["arm"]: line for line in found["lines"]}


def test_lines_stand_in_the_order_of_their_differences_and_zero_is_the_middle():
    found = forest(race()["rows"], "llama", ARMS)
    places = [line["at"] for line in found["lines"]]
    assert places == sorted(places)
    assert found["zero"] == by_arm(found)["llama"]["at"] == 50
    assert not found["clipped"]
    assert [tick["at"] for tick in found["ticks"] if tick["text"] == "0"] == [50]


def test_the_best_stands_first_where_more_is_better_too():
    rows = [row("worst", -0.1), row("base", 0.0), {"arm": "none", "difference": None}]
    rows.append(row("best", 0.1))
    lines = forest(rows, "base", ["base"], higher=True)["lines"]
    assert [line["arm"] for line in lines] == ["best", "base", "worst", "none"]


def test_an_interval_lies_around_its_point_on_the_scale_of_the_ticks():
    found = forest([row("base", 0.0), row("a", 0.05, 0.05)], "base", ["base", "a"])
    line = by_arm(found)["a"]
    assert line["from"] == 50
    assert line["at"] == pytest.approx((line["from"] + line["to"]) / 2, abs=0.02)
    tick = next(t for t in found["ticks"] if t["text"] == "+0.05")
    assert tick["at"] == pytest.approx(line["at"], abs=0.01)


def test_an_arm_far_beyond_the_others_does_not_flatten_them():
    rows = [row("base", 0.0), row("a", 0.02), row("b", -0.03), row("far", 9.0)]
    found = forest(rows, "base", ["base", "a", "b", "far"])
    assert found["clipped"]
    lines = by_arm(found)
    assert lines["far"]["clipped"] and lines["far"]["at"] == 100
    assert lines["a"]["at"] > 53


def test_a_difference_of_about_zero_shows_the_ends_of_its_interval():
    rows = [row("base", 0.0), row("a", 0.02), row("b", -0.03), row("wide", 0.001, 0.9)]
    line = by_arm(forest(rows, "base", ["base", "a", "b", "wide"]))["wide"]
    assert 0 < line["from"] < line["to"] < 100


@pytest.mark.parametrize("missing", [None, math.nan, "Infinity"])
def test_an_arm_without_a_result_is_last_and_has_no_place(missing):
    empty = {"arm": "a", "difference": missing, "low": missing, "high": missing}
    found = forest([empty, row("base", 0.0), row("b", 0.1)], "base", ["base", "a", "b"])
    assert [line["arm"] for line in found["lines"]] == ["base", "b", "a"]
    assert found["lines"][-1]["at"] is found["lines"][-1]["from"] is None


def test_without_any_difference_there_is_still_a_scale():
    found = forest([row("base", 0.0)], "base", ["base"])
    assert found["zero"] == 50 and found["ticks"]
    assert forest([], "", [])["lines"] == []
    same = {"arm": "same", "difference": 0.0, "low": 0.0, "high": 0.0, "verdict": "identical"}
    assert by_arm(forest([row("base", 0.0), same], "base", ["base", "same"]))["same"]["at"] == 50


def test_every_verdict_has_a_mark():
    words = ("baseline", "better", "worse", "identical", "not distinguishable", "too few seeds")
    marks = [tone(word) for word in (*words, None)]
    assert marks == ["baseline", "better", "worse", *["unsure"] * 4]


def test_a_difference_has_as_many_digits_as_its_interval_gives_sense_to():
    assert format_signed(-0.012345, 0.03) == "-0.0123"
    assert format_signed(1.23456, 2.0) == "+1.23"
    assert format_signed("Infinity") == "–"


def test_the_end_of_an_interval_near_zero_keeps_its_side_of_it():
    assert format_signed(-0.0000012, 0.03) == "-1.2e-06"
    assert format_signed(0.0000012, 0.03) == "+1.2e-06"


def test_what_seeds_can_miss_beyond_the_scale_is_told():
    rows = [row("base", 0.0), row("a", 0.02, detectable=[0.01, 0.5])]
    rows.append(row("b", 0.02, detectable=[0.01, 0.02]))
    found = forest(rows, "base", ["base", "a", "b"])
    assert found["cut"]
    assert [by_arm(found)[name]["cut"] for name in ("base", "a", "b")] == [False, True, False]
    assert not forest([rows[0], rows[2]], "base", ["base", "b"])["cut"]
