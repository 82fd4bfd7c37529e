"""A measure without layers is a table on the page, in groups where it is long."""

import math
import re

import pandas as pd
import pytest

from layerlab.report.pages.inspection import render
from layerlab.report.results.report import Report
from layerlab.report.views.inspection import bars
from layerlab.report.views.inspection import frames as inspection
from tests.report.support.reading import content, frames
from tests.report.views.inspection.test_frames import view


def report(**changes):
    tables = frames()
    for name, columns in changes.items():
        tables[name] = tables[name].assign(**columns)
    return Report(content(), tables).to_dict()


def test_rows_are_means_over_sequences_and_bars_are_shares_of_the_longest():
    whole = report()
    table = view(whole, "logits")["table"]
    (group,) = table["groups"]
    assert group["heads"][: group["axes"]] == ["format", "mode"]
    assert [row["names"] for row in group["rows"]] == [
        [format, mode] for format in ("bf16", "fp16") for mode in ("as-run", "flat")
    ]
    assert all(row["bar"] == 100 for row in group["rows"])
    own = inspection.frame(whole, "logits")
    assert group["rows"][0]["cells"][0] == pytest.approx(own["error"].mean(), rel=1e-3)


def merged(tokens, name="error", values=(1.0, 4.0, 9.0), **options):
    rows = pd.DataFrame({"format": "bf16", name: values, bars.TOKENS: tokens}, dtype=object)
    return float(bars.merge_texts(rows, ["format"], [name], **options)[name]["bf16"])


def test_a_mean_is_over_the_tokens_and_one_less_of_next_tokens():
    assert merged([3, 1, 0]) == 7 / 4
    assert merged([3, 2, 1], "loss_change") == 6 / 3
    assert merged([None, None, None]) == pytest.approx(14 / 3)
    assert math.isnan(merged([1, 1, 1], "loss_change"))


def test_a_worst_is_the_largest_and_no_mean():
    assert merged([3, 1, 1], "worst") == merged([1, 1, 90], "kl_worst") == 9
    assert merged([3, 1, 1], "worst", (1.0, math.inf, 2.0)) == math.inf


@pytest.mark.parametrize("name", ["error", "worst"])
def test_a_text_without_a_reading_is_stood_for_only_where_it_may_be(name):
    values = (1.0, math.nan, 1.0)
    assert merged([3, 1, 1], name, values) == 1
    assert math.isnan(merged([3, 1, 1], name, values, whole=True))
    assert merged([3, 0, 1], name, values, whole=True) == 1
    assert math.isnan(merged([1, 1, 1], "error", (math.inf, -math.inf, 1.0)))


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


@pytest.mark.full
def test_a_sequence_that_overflows_is_not_left_out_of_the_mean():
    whole = report()
    data = whole["frames"]["logits"]["data"]
    first = data["format"].index("fp16")
    data["error"][first], data["kl"][first] = "Infinity", None
    (group,) = view(whole, "logits")["table"]["groups"]
    bf16, fp16 = (
        next(row for row in group["rows"] if row["names"] == [name, "as-run"])
        for name in ("bf16", "fp16")
    )
    at = [group["heads"].index(name) - group["axes"] for name in ("error", "kl")]
    assert [fp16["cells"][i] for i in at] == ["Infinity", None]
    assert (bf16["bar"], fp16["bar"]) == (100, 100) and bf16["cells"][at[0]] == 0.001
    section = re.search(r'<section class="listing" id="logits".*?</section>', render(whole), re.S)
    assert section is not None and 'data-value="Infinity">∞<' in section.group()
    assert "Each number is a mean over all tokens" in section.group()


@pytest.mark.full
def test_hostile_names_of_parts_stay_text():
    hostile = "<img src=x onerror=alert(1)></table>"
    page = render(report(attribution={"part": hostile}))
    assert hostile not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


@pytest.mark.full
def test_a_table_without_a_number_is_none_and_a_missing_one_is_a_dash():
    whole = report(logits={"error": float("nan")})
    (group,) = view(whole, "logits")["table"]["groups"]
    assert {row["cells"][0] for row in group["rows"]} == {None}
    assert {row["bar"] for row in group["rows"]} == {0.0}
    page = render(whole)
    section = re.search(r'<section class="listing" id="logits".*?</section>', page, re.S)
    assert section is not None and "–" in section.group()


GAP = {
    "name": "gap",
    "title": "Gap",
    "per": ["by", "part"],
    "columns": dict.fromkeys(("meaning", "share", "differs", "set", "left"), ""),
    "plot": ["share", "left"],
    "roles": {"differs": "flag", "meaning": "note"},
    "typed": ["operation", "remedy"],
    "better": None,
}
OPERATIONS = {
    "by": "operation",
    "part": ["context", "experts chosen otherwise", *(f"op_{i}" for i in range(24))],
    "meaning": ["sums of values, weighted by attention", *[""] * 25],
    "share": [0.6, -0.2, *[0.0] * 24],
    "differs": [1.0, 0.0, *[float("nan")] * 24],
    "set": ["bf16", *[""] * 25],
}
LEFT = {"by": "remedy", "part": ["context, head", "all 3 that differ"], "left": [0.5, 0.0]}


def gap_table():
    rows = pd.concat([pd.DataFrame(OPERATIONS), pd.DataFrame(LEFT)]).assign(model="healthy")
    return bars.view(report(), GAP, rows, [])["table"]


def test_a_group_has_the_columns_that_say_something_of_it():
    operations, left = gap_table()["groups"]
    assert operations["heads"] == ["part", "share", "differs", "set"]
    assert operations["words"] == ["differs", "set"]
    assert (operations["bar"], left["bar"]) == ("share", "left")
    assert left["heads"] == ["part", "left"]
    assert operations["open"] and left["open"]


def test_flags_and_texts_are_words_and_a_note_stands_with_its_name():
    operations, _ = gap_table()["groups"]
    first, second, third = operations["rows"][:3]
    assert first["cells"] == [0.6, "yes", "bf16"]
    assert second["cells"][1:] == ["no", ""] and third["cells"][1:] == ["", ""]
    assert first["note"] == OPERATIONS["meaning"][0] and second["note"] == ""


def test_what_a_user_types_is_told_from_words():
    operations, left = gap_table()["groups"]
    names = [row["names"] for row in (*operations["rows"][:2], *left["rows"])]
    assert names == [
        ["`context`"],
        ["experts chosen otherwise"],
        ["`context`, `head`"],
        ["all 3 that differ"],
    ]


def test_bars_below_0_end_where_the_others_begin():
    operations, left = gap_table()["groups"]
    first, second, third = operations["rows"][:3]
    assert (first["start"], first["bar"]) == (25, 75)
    assert (second["start"], second["bar"]) == (0, 25)
    assert (third["start"], third["bar"]) == (25, 0)
    assert [row["bar"] for row in left["rows"]] == [100, 0]


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
