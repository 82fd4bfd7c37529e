"""A measure without layers is a table on the page, in groups where it is long."""

import re

import pandas as pd
import pytest

from layerlab.report.pages.inspection import render
from layerlab.report.results.report import Report
from layerlab.report.views import bars, inspection
from tests.report.reading import content, frames


def report(**changes):
    tables = frames()
    for name, columns in changes.items():
        tables[name] = tables[name].assign(**columns)
    return Report(content(), tables).to_dict()


def view(whole, name):
    measure = next(m for m in whole["measures"] if m["name"] == name)
    return inspection.measure_view(whole, measure)


def test_rows_are_means_over_sequences_and_bars_are_shares_of_the_longest():
    whole = report()
    table = view(whole, "logits")["table"]
    (group,) = table["groups"]
    assert table["heads"][: table["axes"]] == ["format", "mode"]
    assert [row["names"] for row in group["rows"]] == [
        [format, mode] for format in ("bf16", "fp16") for mode in ("as-run", "flat")
    ]
    assert all(row["bar"] == 100 for row in group["rows"])
    own = inspection.frame(whole, "logits")
    assert group["rows"][0]["numbers"][0] == pytest.approx(own["error"].mean(), rel=1e-3)


def test_a_long_table_is_cut_into_groups_and_keeps_every_row():
    whole = report()
    rows = inspection.frame(whole, "attribution")
    measure = next(m for m in whole["measures"] if m["name"] == "attribution")
    short = bars.view(whole, measure, rows, [])["table"]
    again = [rows.assign(part=rows["part"] + str(i)) for i in range(6)]
    long = bars.view(whole, measure, pd.concat(again), [])["table"]
    assert [group["title"] for group in short["groups"]] == [""]
    assert [group["title"] for group in long["groups"]] == [
        "bf16, by component",
        "fp16, by component",
    ]
    assert sum(len(group["rows"]) for group in long["groups"]) == 6 * len(rows)


def test_hostile_names_of_parts_stay_text():
    hostile = "<img src=x onerror=alert(1)></table>"
    page = render(report(attribution={"part": hostile}))
    assert hostile not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_a_table_without_a_number_is_none_and_a_missing_one_is_a_dash():
    whole = report(logits={"error": float("nan")})
    (group,) = view(whole, "logits")["table"]["groups"]
    assert {row["numbers"][0] for row in group["rows"]} == {None}
    assert {row["bar"] for row in group["rows"]} == {0.0}
    page = render(whole)
    section = re.search(r'<section class="listing" id="logits".*?</section>', page, re.S)
    assert section is not None and "–" in section.group()


def test_limits_beside_a_reading_are_never_violated_and_a_band_is_the_range():
    whole = report()
    measure = next(m for m in whole["measures"] if m["name"] == "rounding")
    measure["bounds"] = [
        {"column": "mean", "limit": "predicted", "side": "beside", "source": "Own", "vacuous": 1.0}
    ]
    measure["band"] = {"column": "mean", "low": "predicted", "high": "mean", "label": "some"}
    series = view(whole, "rounding")["series"][0]
    assert series["bounds"][0]["violated"] == series["bounds"][0]["readings"] == 0
    assert series["values"]["mean"]["low"] == series["values"]["predicted"]["mean"]
