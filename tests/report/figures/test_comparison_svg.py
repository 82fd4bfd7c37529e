"""Pictures that stand alone: valid, harmless, readable, and drawn where the numbers are."""

import re
from xml.etree import ElementTree

import pytest

from layerlab.report.figures.comparison_svg import (
    curve_picture,
    forest_picture,
    gradient_picture,
    pictures,
)
from tests.report.support.race import race

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script>"&\x00\ud800 \u202e]]>'


def parsed(drawing):
    return ElementTree.fromstring(drawing.encode("utf-8"))


def words(drawing):
    return [one.text for one in parsed(drawing).iter(f"{SVG}text")]


def boxes(drawing):
    """Where each text roughly stands: from, to, height."""
    found = []
    for one in parsed(drawing).iter(f"{SVG}text"):
        size = float(one.get("font-size"))
        width = 0.58 * size * len(one.text)
        shift = {"end": 1.0, "middle": 0.5}.get(one.get("text-anchor"), 0.0)
        x, y = float(one.get("x")) - shift * width, float(one.get("y"))
        found.append((x, x + width, y - size, y, one.text))
    return found


@pytest.mark.full
def test_all_pictures_are_svg_without_anything_that_runs_or_is_fetched():
    found = pictures(race())
    assert set(found) == {"forest.svg", "curves.svg", "gradients.svg"}
    for drawing in found.values():
        root = parsed(drawing)
        tags = {one.tag.removeprefix(SVG) for one in root.iter()}
        assert tags <= set("svg title rect text line g polygon polyline circle clipPath".split())
        assert not re.search(r"href|javascript|@import|<style|on\w+=", drawing)
        background = next(root.iter(f"{SVG}rect"))
        assert background.get("fill") == "#ffffff" and background.get("width") == "100%"
        assert root.find(f"{SVG}title").text.startswith("eight-residuals-twin")
        assert len(drawing) < 60_000
    assert pictures(race()) == found


def test_the_forest_says_every_arm_with_its_difference_and_interval():
    content = race()
    said = words(forest_picture(content))
    assert set(content["arms"]) <= set(said)
    row = content["rows"][1]
    sign = "-" if row["difference"] < 0 else "+"
    assert any(one.startswith(f"{sign}{abs(row['difference']):.3f}"[:5]) for one in said)
    assert sum("[" in one for one in said) == len(content["rows"]) - 1
    assert any("95 % interval" in one for one in said)


def test_an_interval_is_drawn_where_its_numbers_are():
    rows = [
        {"arm": "base", "against": "base", "verdict": "baseline", "difference": None},
        {"arm": "a", "against": "base", "verdict": "better", "difference": -0.1}
        | {"low": -0.2, "high": 0.0},
    ]
    drawing = forest_picture({"rows": rows, "baseline": "base", "name": "x"})
    lines = [
        tuple(float(one.get(key)) for key in ("x1", "x2", "y1", "y2"))
        for one in parsed(drawing).iter(f"{SVG}line")
        if one.get("stroke-width") == "2"
    ]
    (whole,) = lines
    zero = next(one for one in boxes(drawing) if one[4] == "0")
    assert whole[1] == pytest.approx((zero[0] + zero[1]) / 2, abs=0.1)
    mark = next(one for one in parsed(drawing).iter(f"{SVG}polygon"))
    corners = [float(pair.split(",")[0]) for pair in mark.get("points").split()]
    assert (min(corners) + max(corners)) / 2 == pytest.approx((whole[0] + whole[1]) / 2, abs=0.2)


def test_an_arm_with_a_baseline_of_its_own_says_which():
    rows = [
        {"arm": "a", "against": "a", "verdict": "baseline", "difference": None},
        {"arm": "b", "against": "b", "verdict": "baseline", "difference": None},
        {"arm": "c", "against": "b", "verdict": "worse", "difference": 0.1, "low": 0.05}
        | {"high": 0.15},
        {"arm": "d", "against": "a", "verdict": "no verdict", "difference": None},
    ]
    said = words(forest_picture({"rows": rows, "baseline": "a"}))
    assert {"a", "b", "c (to b)", "d", "no result"} <= set(said)
    assert said.count("baseline") == 2


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 8, 19])
def test_no_two_words_lie_upon_each_other_or_leave_the_picture(count):
    arms = tuple(f"attention-variant-{n}" for n in range(count))
    content = race(("llama", *arms)[:count]) if count <= 8 else race()
    if count > 8:
        own = content["curves"]
        extra = [{**one, "arm": f"more-{i % 11}"} for i, one in enumerate(own)]
        content["curves"] = [*own, *extra]
    for drawing in pictures(content).values():
        found = boxes(drawing)
        root = parsed(drawing)
        wide, high = float(root.get("width")), float(root.get("height"))
        for left, right, top, bottom, said in found:
            assert left >= 0 and right <= wide + 1 and top >= 0 and bottom <= high, said
        for i, one in enumerate(found):
            for other in found[i + 1 :]:
                apart = (
                    one[1] <= other[0]
                    or other[1] <= one[0]
                    or one[3] <= other[2] + 2.5
                    or other[3] <= one[2] + 2.5
                )
                assert apart, (one[4], other[4])


def test_the_band_spans_the_seeds_and_other_rates_stay_out():
    content = race(("llama",), seeds=(1, 2), rates=(0.001, 0.003))
    drawing = curve_picture(content)
    assert len(list(parsed(drawing).iter(f"{SVG}polyline"))) == 1
    bands = next(parsed(drawing).iter(f"{SVG}polygon")).get("points").split()
    middle = next(parsed(drawing).iter(f"{SVG}polyline")).get("points").split()
    assert len(bands) == 2 * len(middle)
    heights = [float(one.split(",")[1]) for one in bands]
    for place, one in enumerate(middle):
        y = float(one.split(",")[1])
        assert heights[place] - 0.11 <= y <= heights[-1 - place] + 0.11


def test_what_came_from_outside_is_text():
    content = race(("llama", HOSTILE)) | {"name": HOSTILE}
    for drawing in pictures(content).values():
        assert "<script" not in drawing and "\x00" not in drawing and "\u202e" not in drawing
        assert any("script" in (said or "") for said in words(drawing))


def test_without_numbers_there_is_no_picture():
    nothing = {"forest.svg": "", "curves.svg": "", "gradients.svg": ""}
    assert pictures({}) == pictures({"name": "x", "rows": [], "curves": []}) == nothing
    content = race(("llama",))
    for one in content["curves"]:
        one["evaluation"] = {key: [] for key in one["evaluation"]}
    content["gradients"] = []
    assert [name for name, drawing in pictures(content).items() if drawing] == ["forest.svg"]


def test_gradients_are_drawn_block_by_block_each_arm_as_deep_as_it_is():
    def run(arm, seed, norms):
        return {"arm": arm, "seed": seed, "start": norms, "mean": norms}

    read = [run("a", 1, [0.0, -1.0]), run("a", 2, [0.0, -2.0]), run("b", 1, [-1.0, -1.0, -1.0])]
    drawing = gradient_picture({"gradients": read, "arms": ["a", "b"], "name": "x"})
    lines = [one.get("points").split() for one in parsed(drawing).iter(f"{SVG}polyline")]
    assert [len(one) for one in lines] == [2, 3]
    (short, long) = ([[float(n) for n in pair.split(",")] for pair in one] for one in lines)
    assert [place for place, _ in short] == [place for place, _ in long[:2]]
    heights = {height for _, height in long}
    assert len(heights) == 1 and short[0][1] < heights.pop() < short[1][1]
    band = next(parsed(drawing).iter(f"{SVG}polygon")).get("points").split()
    ends = [float(pair.split(",")[1]) for pair in band[1:3]]
    assert sum(ends) / 2 == pytest.approx(short[1][1], abs=0.1)
    assert any("block" in said for said in words(drawing))


def test_a_run_under_way_neither_shortens_a_band_nor_leaves_the_frame():
    whole = race(("llama", "history-1"))
    content = race(("llama", "history-1"))
    part = next(run for run in content["runs"] if run["arm"] == "history-1")
    part["finished"] = False
    for one in content["curves"]:
        if one["run"] == part["run"]:
            one["evaluation"] = {key: column[:2] for key, column in one["evaluation"].items()}
    ends = [
        [one.get("points").split()[-1].split(",")[0] for one in parsed(each).iter(f"{SVG}polyline")]
        for each in (curve_picture(whole), curve_picture(content))
    ]
    assert ends[0] == ends[1] and len(ends[0]) == 2
    # An arm of which nothing has finished is drawn as far as it is.
    for run in content["runs"]:
        run["finished"] = run["arm"] == "llama"
    assert len(list(parsed(curve_picture(content)).iter(f"{SVG}polyline"))) == 2
    for line in parsed(curve_picture(content)).iter(f"{SVG}line"):
        assert all(40 <= float(line.get(key)) <= 360 for key in ("y1", "y2"))
    content["rows"][1]["missing"] = [1]
    assert any("not all of them finished" in said for said in words(forest_picture(content)))
