"""Pictures of a ladder: valid, harmless, and drawn where the numbers are."""

import copy
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from layerlab.report.figures.ladder import ladder_pictures
from layerlab.report.i18n.language import language
from layerlab.report.pages.comparison import render, save_comparison
from layerlab.report.pages.ladder import check_ladder, tabulate_sweeps
from tests.report.support.race import race
from tests.support.refused import refuses

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (1e6, 3e6, 9e6)
# How far above the best each rate ends.
SWEEP = ((1e-3, 0.1), (3e-3, 0.0), (9e-3, 0.2))


def ladder(gains: tuple[float, ...] = (0.03, 0.02, 0.01)) -> dict[str, Any]:
    def rows(place: int) -> list[dict[str, Any]]:
        loss, gain = 4.0 - 0.3 * place, gains[place]
        common = {"against": "llama", "n": 3, "rate": 3e-3, "flops": 1e12 * 9**place}
        own, other = (
            {"nats": nats, "rates": [{"rate": rate, "nats": nats + up} for rate, up in SWEEP]}
            for nats in (loss, loss - gain)
        )
        interval = {"difference": -gain, "low": -gain - 0.01, "high": -gain + 0.01, "holm": 0.01}
        return [
            {**common, **own, "arm": "llama", "verdict": "baseline"},
            {**common, **other, "arm": "history-1", "verdict": "better", **interval},
        ]

    sizes = [
        {"parameters": size, "tokens": 20 * size, "runs": 18, "rows": rows(place)}
        for place, size in enumerate(SIZES)
    ]
    marks = [
        {"parameters": size, "gain": gain, "low": gain - 0.01, "high": gain + 0.01}
        for size, gain in zip(SIZES, gains, strict=True)
    ]
    places = [*SIZES, 27e6]
    band = {
        "parameters": places,
        "gain": [*gains, 0.0],
        "low": [gain - 0.005 for gain in (*gains, -0.5)],
        "high": [gain + 0.005 for gain in (*gains, 0.5)],
    }
    best = [
        {"parameters": size, "rate": 4e-3 / (1 + n), "swept": 3} for n, size in enumerate(SIZES)
    ]
    said = (
        "history-1 against llama: better at 1.00 M, 3.00 M and 9.00 M parameters; from 1.00 M to "
        "9.00 M its gain shrinks by 0.0063 (0.0010 to 0.0116) nats per doubling; at 27.0 M a gain "
        "of +0.0010 (-0.0200 to +0.0220) nats, not decidable from here; 20.0 M to 180 M tokens a "
        "run, 20 a parameter; 3 seeds a size; p is corrected for 5 tests."
    )
    return {
        "sizes": sizes,
        "arms": [{"arm": "history-1", "said": said, "gains": marks, "band": band}],
        "rates": [
            {"arm": "history-1", "best": best, "drift": -0.3, "low": -0.5, "high": -0.1},
            {"arm": "llama", "best": best, "drift": -0.25, "low": -0.4, "high": -0.1},
        ],
        "tests": 5,
        "unit": "nats",
    }


def content(**given: Any) -> dict[str, Any]:
    return {**race(("llama", "history-1"), updates=40), "ladder": ladder(**given)}


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def test_pictures_without_anything_that_runs_or_is_fetched():
    found = ladder_pictures(content())
    assert list(found) == [f"ladder-{name}.svg" for name in ("gain", "loss", "rate", "sweep")]
    for drawing in found.values():
        root = parsed(drawing)
        tags = {one.tag.removeprefix(SVG) for one in root.iter()}
        assert tags <= set("svg title rect text line polygon polyline circle".split())
        assert not re.search(r"href|javascript|@import|<style|on\w+=", drawing)
    assert ladder_pictures(race()) == {}


def test_points_stand_where_the_numbers_are():
    """The sizes are equal steps of a logarithmic axis, and the gains equal steps down."""
    circles = list(parsed(ladder_pictures(content())["ladder-gain.svg"]).iter(f"{SVG}circle"))
    xs, ys = ([float(one.get(axis) or 0) for one in circles] for axis in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2) and xs[0] < xs[1]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2) and ys[0] < ys[1]


def drawn(given: dict[str, Any], kind: str) -> list[tuple[float, float]]:
    """The centres of the circles of a class in the picture of the sweeps."""
    circles = parsed(ladder_pictures(given)["ladder-sweep.svg"]).iter(f"{SVG}circle")
    own = [one for one in circles if one.get("class") == kind]
    return [(float(one.get("cx") or 0), float(one.get("cy") or 0)) for one in own]


def crosses(given: dict[str, Any]) -> int:
    strokes = parsed(ladder_pictures(given)["ladder-sweep.svg"]).iter(f"{SVG}line")
    return sum((one.get("class") or "").startswith("s") for one in strokes) // 2


def test_losses_stand_at_their_rates_in_a_panel_for_each_size():
    """Rates are equal steps of a logarithmic axis; 0.2 above the best is twice as far as 0.1."""
    dots = drawn(content(), "s0 dot")
    assert len(dots) == 9
    for place in range(3):
        (low, first), (middle, best), (high, last) = dots[3 * place : 3 * place + 3]
        assert middle - low == pytest.approx(high - middle, abs=0.2) and low < middle
        assert best - last == pytest.approx(2 * (best - first), abs=0.3) and first < best
    assert [x for x, _ in dots[:3]] == [x for x, _ in dots[3:6]] == [x for x, _ in dots[6:]]
    assert dots[0][1] < dots[3][1] < dots[6][1]
    root = parsed(ladder_pictures(content())["ladder-sweep.svg"])
    said = [one.text for one in root.iter(f"{SVG}text")]
    assert [one for one in said if one and "parameters" in one] == [
        f"{size} M parameters" for size in (1, 3, 9)
    ]
    assert said.count("0.001") == said.count("0.003") == said.count("0.009") == 3
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Held-out loss against the learning rate, by size"


def test_a_ring_marks_the_best_rate():
    given = content()
    for size, rate in zip(given["ladder"]["sizes"], (9e-3, 3e-3, 1e-3), strict=True):
        size["rows"][0]["rate"] = rate
    dots = drawn(given, "s0 dot")
    assert drawn(given, "s0 ring") == [dots[2], dots[4], dots[6]]
    assert drawn(given, "s1 ring") == [drawn(given, "s1 dot")[at] for at in (1, 4, 7)]


def test_what_diverged_or_lies_far_above_is_a_cross_that_does_not_set_the_scale():
    given = content()
    assert crosses(given) == 0
    first = given["ladder"]["sizes"][0]["rows"][0]["rates"]
    first[2]["nats"] = None
    lost = ladder_pictures(given)["ladder-sweep.svg"]
    assert crosses(given) == 1 and len(drawn(given, "s0 dot")) == 8
    first[2]["nats"] = 400.0
    assert ladder_pictures(given)["ladder-sweep.svg"] == lost
    for row in given["ladder"]["sizes"][0]["rows"]:
        row["rates"] = [{**one, "nats": None} for one in row["rates"]]
    assert len(drawn(given, "s0 dot")) == 6


def test_rates_that_lie_close_are_not_written_over_each_other():
    given = content()
    for size in given["ladder"]["sizes"]:
        for row in size["rows"]:
            row["rates"] = [{"rate": 1e-3 * 1.05**n, "nats": 4.0 + n / 10} for n in range(60)]
    root = parsed(ladder_pictures(given)["ladder-sweep.svg"])
    middles = [one for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "middle"]
    told = [float(one.get("x") or 0) for one in middles if one.text != "learning rate"]
    panel = told[: len(told) // 3]
    assert len(panel) > 5
    assert all(after - before >= 44 for before, after in pairwise(panel))


def test_an_arm_without_a_sweep_is_in_no_picture_of_rates():
    given = content()
    for size in given["ladder"]["sizes"]:
        size["rows"][1]["rates"] = size["rows"][1]["rates"][:1]
    assert "history-1" not in ladder_pictures(given)["ladder-sweep.svg"]
    for size in given["ladder"]["sizes"]:
        size["rows"][0]["rates"] = []
    assert ladder_pictures(given)["ladder-sweep.svg"] == ""
    assert tabulate_sweeps(check_ladder(given["ladder"]), "nats") == {"rates": [], "rows": []}


def test_losses_by_rate_are_a_table_too():
    given = check_ladder(ladder())
    found = tabulate_sweeps(given, "nats")
    assert found["rates"] == [1e-3, 3e-3, 9e-3] and len(found["rows"]) == 6
    first = found["rows"][0]
    assert (first["arm"], first["parameters"], first["best"]) == ("llama", 1e6, 3e-3)
    assert first["losses"] == {1e-3: 4.1, 3e-3: 4.0, 9e-3: 4.2}


def test_names_of_many_arms_stay_in_their_panel():
    given = content()
    for size in given["ladder"]["sizes"]:
        size["rows"] = [{**size["rows"][0], "arm": f"arm-{n}"} for n in range(30)]
    root = parsed(ladder_pictures(given)["ladder-sweep.svg"])
    places = [
        float(one.get("y") or 0)
        for one in root.iter(f"{SVG}text")
        if (one.text or "").startswith("arm-")
    ]
    assert max(places[:30]) < min(places[30:60]) and max(places) < float(root.get("height") or 0)
    assert all(low - high > 13 for high, low in pairwise(sorted(places)))


def test_what_is_forecast_is_dashed_and_does_not_set_the_scale():
    root = parsed(ladder_pictures(content())["ladder-gain.svg"])
    dashed = [one for one in root.iter(f"{SVG}polyline") if one.get("stroke-dasharray")]
    assert len(dashed) == 1 and len((dashed[0].get("points") or "").split()) == 2
    heights = {float(one.get("y") or 0) for one in root.iter(f"{SVG}text")}
    assert max(heights) <= float(root.get("height") or 0)
    ticks = [
        one.text for one in root.iter(f"{SVG}text") if re.fullmatch(r"-?[\d.]+", one.text or "")
    ]
    assert all(abs(float(one or 0)) < 0.1 for one in ticks)


def test_one_size_or_one_rate_draws_nothing():
    single = content()
    for size in single["ladder"]["sizes"][1:]:
        size["rows"] = []
    for one in single["ladder"]["rates"]:
        for best in one["best"]:
            best["swept"] = 1
    found = ladder_pictures(single)
    assert found["ladder-loss.svg"] == found["ladder-rate.svg"] == ""


@pytest.mark.full
def test_the_page_has_them_with_a_row_for_each_arm_and_size(tmp_path):
    page = render(content())
    assert "2 arms, 3 sizes, 54 runs</p>" in page
    section = page[page.index('<section id="ladder"') :]
    section = section[: section.index("</section>")]
    assert section.count("<figure") == 4 and section.count("<tr>") == 14
    assert section.count("<b>4</b>") == 1 and "Loss by learning rate" in section
    assert "its gain shrinks by 0.0063" in section and "octaves per doubling" in section
    save_comparison(content(), tmp_path)
    assert (tmp_path / "pictures" / "ladder-gain.svg").read_text("utf-8").startswith("<svg")
    lines = (tmp_path / "tables" / "ladder.csv").read_text("utf-8").splitlines()
    assert len(lines) == 7 and lines[0].startswith("size,tokens,arm,against,n,nats")
    save_comparison({**content(), "ladder": None}, tmp_path)
    assert '<section id="ladder"' not in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.full
def test_the_page_speaks_chinese():
    page = render(content(), "zh")
    section = page[page.index('<section id="ladder"') :]
    section = section[: section.index("</section>")]
    for english in (
        "shrinks",
        "not decidable",
        "doubling",
        "tokens a run",
        "Gain",
        "forecast",
        " and ",
    ):
        assert english not in section
    assert (
        language("zh")
        .translate(content()["ladder"]["arms"][0]["said"])
        .startswith("history-1 对 llama")
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one.update(sizes=3),
        lambda one: one["sizes"][0].pop("parameters"),
        lambda one: one["sizes"][0].update(parameters=-1),
        lambda one: one["arms"][0].update(gains="x"),
        lambda one: one["rates"][0]["best"][0].update(rate=0),
        lambda one: one["sizes"][0]["rows"][0]["rates"][0].update(rate=0),
        lambda one: one.update(tests="many"),
    ],
)
def test_a_damaged_ladder_is_one_line(damage):
    given = copy.deepcopy(ladder())
    damage(given)
    refuses("'ladder' is damaged; type layerlab compare", check_ladder, given)
    refuses("'ladder' is damaged", render, {**content(), "ladder": given})


def test_a_name_that_would_be_markup_is_text():
    hostile = '<script>alert(1)</script>"&'
    given = content()
    given["ladder"]["arms"][0]["arm"] = hostile
    drawing = ladder_pictures(given)["ladder-gain.svg"]
    assert parsed(drawing) is not None and "<script" not in drawing


def test_the_top_of_the_page_names_the_size_that_its_verdicts_are_of():
    given = content()
    assert "at 9 M parameters, the largest size that has run" in render(given)
    given["ladder"]["sizes"][-1]["runs"] = 0
    page = render(given)
    assert "at 3 M parameters, the largest size that has run" in page
    assert page.index("the largest size that has run") < page.index('class="forest"')
