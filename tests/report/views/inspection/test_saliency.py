"""What the page is given of a saliency: no more than there is room for, and nothing to obey."""

import json
import math

import pytest

from layerlab.report.pages.inspection import render
from layerlab.report.results.report import Report
from layerlab.report.views.inspection import frames as inspection
from layerlab.report.views.inspection import saliency
from tests.report.support.looked import looked
from tests.report.support.sample import HOSTILE, sample


def pictures(report, **options):
    return saliency.pictures(report, "saliency", inspection.frame(report, "saliency"), **options)


def test_each_layer_has_the_score_of_every_position():
    report = looked()
    first, second = pictures(report)
    assert (first["model"], second["model"]) == (0, 1) and first["layers"] == [-1, 0, 1, 2]
    data = report["frames"]["saliency"]["data"]
    for place, seen in enumerate(first["scores"]["product"][2]):
        row = data["layer"].index(1) + place
        assert data["position"][row] == place
        assert seen == pytest.approx(data["product"][row], rel=6e-3)
    assert first["earlier"] == [1, 2] and first["prediction"]["token"] == "␣King"


def test_what_cannot_be_drawn_is_left_out_and_a_hole_is_no_number():
    report = looked(["a"])
    report["frames"]["saliency"]["data"]["l1"][0] = math.nan
    assert pictures(report)[0]["scores"]["l1"][0][0] is None
    report["pictures"]["saliency"]["a"]["kind"] = "unheard-of"
    assert pictures(report) == []
    assert pictures(sample(["a"])) == []


def test_where_there_is_little_room_maps_of_some_layers_are_kept_of_every_model():
    report = looked(layers=12)
    whole, little = pictures(report), pictures(report, budget=3000)
    assert [len(one["maps"]) for one in whole] == [13, 13]
    assert [one["model"] for one in little] == [0, 1]
    for one in little:
        assert 3 <= len(one["maps"]) == len(one["mapped"]) == len(one["peaks"]) < 13
        assert (one["mapped"][0], one["mapped"][-1]) == (-1, 11)
        assert one["layers"] == whole[0]["layers"]


def test_pictures_survive_the_way_through_a_file(tmp_path):
    report = Report(looked())
    content = json.loads(report.to_json())
    assert content["pictures"] == looked()["pictures"]
    assert Report(content) == report


@pytest.mark.full
def test_hostile_tokens_stand_in_the_page_as_data():
    page = render(looked())
    assert HOSTILE not in page and "\u202eabc" not in page.replace("⟨U+202E⟩", "")
    assert 'data-part="pictures"' in page and 'data-part="pictures"' not in render(sample())


@pytest.mark.full
def test_scores_are_drawn_by_layer_and_the_tokens_are_no_categories():
    view = next(m for m in inspection.compact(looked())["measures"] if m["name"] == "saliency")
    assert view["category"] is None and view["per_token"] and len(view["series"]) == 2
    values = view["series"][0]["values"]["l1"]
    assert len(values["mean"]) == 4 and all(
        low < mean < high
        for low, mean, high in zip(values["low"], values["mean"], values["high"], strict=True)
    )
