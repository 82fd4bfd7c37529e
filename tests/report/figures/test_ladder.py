"""Pictures of a ladder: valid, harmless, and drawn where the numbers are."""

import copy
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from layerlab.report.figures.ladder import ladder_pictures
from layerlab.report.i18n.language import language
from layerlab.report.pages.comparison import render, save_comparison
from layerlab.report.pages.ladder import check_ladder
from tests.refused import refuses
from tests.report.race import race

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (1e6, 3e6, 9e6)


def ladder(gains: tuple[float, ...] = (0.03, 0.02, 0.01)) -> dict[str, Any]:
    def rows(place: int) -> list[dict[str, Any]]:
        loss, gain = 4.0 - 0.3 * place, gains[place]
        common = {"against": "llama", "n": 3, "rate": 3e-3, "flops": 1e12 * 9**place}
        interval = {"difference": -gain, "low": -gain - 0.01, "high": -gain + 0.01, "holm": 0.01}
        return [
            {**common, "arm": "llama", "nats": loss, "verdict": "baseline"},
            {**common, "arm": "history-1", "nats": loss - gain, "verdict": "better", **interval},
        ]

    sizes = [
        {"parameters": size, "tokens": 20 * size, "rows": rows(place)}
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


def test_three_pictures_without_anything_that_runs_or_is_fetched() -> None:
    found = ladder_pictures(content())
    assert list(found) == ["ladder-gain.svg", "ladder-loss.svg", "ladder-rate.svg"]
    for drawing in found.values():
        root = parsed(drawing)
        tags = {one.tag.removeprefix(SVG) for one in root.iter()}
        assert tags <= set("svg title rect text line polygon polyline circle".split())
        assert not re.search(r"href|javascript|@import|<style|on\w+=", drawing)
    assert ladder_pictures(race()) == {}


def test_points_stand_where_the_numbers_are() -> None:
    """The sizes are equal steps of a logarithmic axis, and the gains equal steps down."""
    circles = list(parsed(ladder_pictures(content())["ladder-gain.svg"]).iter(f"{SVG}circle"))
    xs, ys = ([float(one.get(axis) or 0) for one in circles] for axis in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2) and xs[0] < xs[1]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2) and ys[0] < ys[1]


def test_what_is_forecast_is_dashed_and_does_not_set_the_scale() -> None:
    root = parsed(ladder_pictures(content())["ladder-gain.svg"])
    dashed = [one for one in root.iter(f"{SVG}polyline") if one.get("stroke-dasharray")]
    assert len(dashed) == 1 and len((dashed[0].get("points") or "").split()) == 2
    heights = {float(one.get("y") or 0) for one in root.iter(f"{SVG}text")}
    assert max(heights) <= float(root.get("height") or 0)
    ticks = [
        one.text for one in root.iter(f"{SVG}text") if re.fullmatch(r"-?[\d.]+", one.text or "")
    ]
    assert all(abs(float(one or 0)) < 0.1 for one in ticks)


def test_one_size_or_one_rate_draws_nothing() -> None:
    single = content()
    for size in single["ladder"]["sizes"][1:]:
        size["rows"] = []
    for one in single["ladder"]["rates"]:
        for best in one["best"]:
            best["swept"] = 1
    found = ladder_pictures(single)
    assert found["ladder-loss.svg"] == found["ladder-rate.svg"] == ""


@pytest.mark.full
def test_the_page_has_them_with_a_row_for_each_arm_and_size(tmp_path: Any) -> None:
    page = render(content())
    section = page[page.index('<section id="ladder"') :]
    section = section[: section.index("</section>")]
    assert section.count("<figure") == 3 and section.count("<tr>") == 7
    assert "its gain shrinks by 0.0063" in section and "octaves per doubling" in section
    save_comparison(content(), tmp_path)
    assert (tmp_path / "pictures" / "ladder-gain.svg").read_text("utf-8").startswith("<svg")
    lines = (tmp_path / "tables" / "ladder.csv").read_text("utf-8").splitlines()
    assert len(lines) == 7 and lines[0].startswith("size,tokens,arm,against,n,nats")
    save_comparison({**content(), "ladder": None}, tmp_path)
    assert '<section id="ladder"' not in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.full
def test_the_page_speaks_chinese() -> None:
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
        lambda one: one.update(tests="many"),
    ],
)
def test_a_damaged_ladder_is_one_line(damage: Any) -> None:
    given = copy.deepcopy(ladder())
    damage(given)
    refuses("'ladder' is damaged; type layerlab compare", check_ladder, given)
    refuses("'ladder' is damaged", render, {**content(), "ladder": given})


def test_a_name_that_would_be_markup_is_text() -> None:
    hostile = '<script>alert(1)</script>"&'
    given = content()
    given["ladder"]["arms"][0]["arm"] = hostile
    drawing = ladder_pictures(given)["ladder-gain.svg"]
    assert parsed(drawing) is not None and "<script" not in drawing
