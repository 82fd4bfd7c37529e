"""What the page is given of the features of tokens: as much as there is room for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.report.pages.inspection import render
from layerlab.report.results.report import Report
from layerlab.report.views.inspection import feature_cloud
from layerlab.report.views.inspection import frames as inspection
from tests.report.support.clouded import WORDS, clouded, picture
from tests.report.support.sample import HOSTILE, sample


def test_points_are_shares_of_the_largest_and_come_back_within_a_step():
    given_ = picture(2, 5)
    view = feature_cloud.cloud(given_)
    for layer, reach, drawn in zip(given_["points"], view["reach"], view["points"], strict=True):
        largest = max(abs(v) for word in layer for point in word for v in point)
        assert reach == pytest.approx(largest, rel=1e-3)
        for word, axes in zip(layer, drawn, strict=True):
            for place, point in enumerate(word):
                back = [axis[place] * largest / feature_cloud.STEPS for axis in axes]
                assert back == pytest.approx(point, abs=largest / feature_cloud.STEPS)


def test_a_point_that_is_open_stays_open_and_a_cloud_of_one_place_is_no_error():
    given_ = picture(0, 2)
    given_["points"] = [[[[None] * 3, [0.0] * 3] for _ in WORDS]]
    given_["shares"] = [[None] * 3]
    view = feature_cloud.cloud(given_)
    assert view["points"][0][0] == [[None, 0]] * 3
    assert view["reach"] == [0.0] and view["shares"] == [[None] * 3]


def test_where_there_is_little_room_some_layers_are_kept_of_every_model():
    report = clouded(["a", "b"], layers=20)
    whole = feature_cloud.pictures(report, "features")
    assert [len(view["layers"]) for view in whole] == [21, 21]
    some = feature_cloud.pictures(report, "features", budget=20_000)
    assert [view["layers"][0] for view in some] == [-1, -1]
    assert [view["layers"][-1] for view in some] == [19, 19]
    for view in some:
        assert 3 <= len(view["layers"]) < 21
        assert len(view["layers"]) == len(view["points"]) == len(view["shares"])
        assert len(json.dumps(view["points"], separators=(",", ":"))) < 10_000


@given(count=st.integers(1, 200), most=st.integers(2, 50))
def test_spaced_layers_are_few_and_in_order(count, most):
    kept = feature_cloud.choose_layers(count, most)
    assert len(kept) == min(count, most) and kept == sorted(set(kept))
    assert kept[0] == 0 and kept[-1] == count - 1


def test_a_picture_of_another_kind_is_left_alone():
    report = clouded(["a"])
    report["pictures"]["features"]["a"]["kind"] = "unheard-of"
    assert feature_cloud.pictures(report, "features") == []
    assert feature_cloud.pictures(sample(["a"]), "features") == []


@pytest.mark.full
def test_hostile_tokens_stand_in_the_page_as_data():
    page = render(clouded())
    assert HOSTILE not in page and "\u202eabc" not in page.replace("⟨U+202E⟩", "")
    assert "Drag to turn" in page and "Drag to turn" not in render(sample())


@pytest.mark.full
def test_pictures_survive_the_way_through_a_file():
    report = Report(clouded())
    assert Report(json.loads(report.to_json())) == report
    view = next(m for m in inspection.compact(clouded())["measures"] if m["name"] == "features")
    assert [one["kind"] for one in view["pictures"]] == ["features"] * 2
