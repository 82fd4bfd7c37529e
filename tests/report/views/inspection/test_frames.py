"""The reduction of readings to what is drawn keeps what matters."""

import base64
import json
import zlib

import numpy as np
import pytest

from layerlab.report.views.inspection import frames as inspection
from tests.report.support.sample import attention_detail, sample

# Keeping DIGITS significant digits moves a number by at most half a unit of the last of them.
ROUNDING = 0.5 * 10.0 ** (1 - inspection.DIGITS)


def view(report, name):
    measure = next(m for m in report["measures"] if m["name"] == name)
    return inspection.measure_view(report, measure)


def test_a_layer_mean_is_the_mean_over_sequences_and_heads():
    report = sample(["a", "b"], layers=3, heads=2)
    rows = inspection.frame(report, "spectrum")
    for series in view(report, "spectrum")["series"]:
        own = rows[rows["model"] == "ab"[series["model"]]]
        for index, layer in enumerate(series["layers"]):
            values = own.loc[own["layer"] == layer, "norm"]
            drawn = series["values"]["norm"]
            assert drawn["mean"][index] == pytest.approx(values.mean(), rel=ROUNDING)
            assert drawn["low"][index] == pytest.approx(values.min(), rel=ROUNDING)
            assert drawn["high"][index] == pytest.approx(values.max(), rel=ROUNDING)


def test_a_longer_text_counts_for_more_in_a_layer_mean_and_a_worst_is_the_largest():
    report = sample(["a"], layers=1, sequences=2)
    report["text"]["sequences"][0]["tokens"] = 3 * report["text"]["sequences"][1]["tokens"]
    (measure,) = (one for one in report["measures"] if one["name"] == "stream")
    measure["columns"] = {**measure["columns"], "worst": ""}
    stream = report["frames"]["stream"]
    stream["columns"].append("worst")
    read = [5.0 if sequence else 1.0 for sequence in stream["data"]["sequence"]]
    stream["data"] |= {"norm": read, "worst": read}
    (series,) = view(report, "stream")["series"]
    assert series["values"]["norm"] == {"mean": [2, 2], "low": [1, 1], "high": [5, 5]}
    assert series["values"]["worst"]["mean"] == [5, 5]


@pytest.mark.full
def test_checkpoints_of_two_runs_are_no_line_of_one():
    report = sample(["a", "b", "c"], steps=[0, 100, 100])
    for model, run in zip(report["models"], ("one", "one", "two"), strict=True):
        model["source"] = f"/runs/{run}/checkpoint-{model['step']}"
    assert [one["step"] for one in inspection.compact(report)["models"]] == [None] * 3
    report["models"][2]["source"] = "/runs/one/checkpoint-200"
    assert [one["step"] for one in inspection.compact(report)["models"]] == [0, 100, 100]


@pytest.mark.full
def test_names_that_begin_alike_are_told_by_their_ends():
    names = [f"/data/{'long/' * 20}{run}/checkpoint-5" for run in ("one", "two")]
    shown = [one["name"] for one in inspection.compact(sample([*names, "c" * 99]))["models"]]
    assert [len(one) for one in shown] == [60] * 3 and shown[2].endswith("c…")
    assert shown[0].endswith("/long/one/checkpoint-5") and shown[1].endswith("/two/checkpoint-5")


def test_a_map_has_one_cell_for_each_layer_and_head_in_that_order():
    report = sample(["a"], layers=3, heads=2, sequences=1)
    (series,) = view(report, "querykey")["series"]
    rows = inspection.frame(report, "querykey").sort_values(["layer", "head"])
    assert series["maps"]["norm"]["mean"] == pytest.approx(rows["norm"].tolist(), rel=ROUNDING)


def test_a_head_that_is_missing_in_one_layer_leaves_a_hole_and_shifts_nothing():
    report = sample(["a"], layers=2, heads=3, sequences=1)
    data = report["frames"]["querykey"]["data"]
    for values in data.values():
        del values[1]
    (series,) = view(report, "querykey")["series"]
    cells = series["maps"]["norm"]["mean"]
    assert len(cells) == 6
    assert cells[1] is None
    assert cells[2] == pytest.approx(data["norm"][1], rel=ROUNDING)


def test_a_category_gives_one_series_per_model_and_kind():
    drawn = view(sample(["a", "b"]), "diversity")
    assert drawn["category"] == "place"
    assert drawn["kinds"] == ["stream", "attention", "ffn"]
    assert {(s["model"], s["kind"]) for s in drawn["series"]} == {
        (m, k) for m in range(2) for k in range(3)
    }


def test_one_reading_per_layer_has_no_range():
    (series,) = view(sample(["a"]), "dimension")["series"]
    assert all(set(values) == {"mean"} for values in series["values"].values())


def test_what_is_not_finite_becomes_null_and_leaves_the_mean_of_the_rest():
    report = sample(["a"], layers=1, sequences=3)
    data = report["frames"]["stream"]["data"]
    at = [index for index, layer in enumerate(data["layer"]) if layer == -1]
    for index, value in zip(at, [2.0, None, "Infinity"], strict=True):
        data["norm"][index] = value
    (series,) = view(report, "stream")["series"]
    assert series["values"]["norm"]["mean"][0] == 2
    assert series["infinite"] == {"norm": {"count": 1, "readings": 5, "layers": [-1]}}
    json.dumps(series, allow_nan=False)


def test_a_column_without_any_reading_is_kept_and_text_is_not():
    report = sample(["a"], layers=2)
    data = report["frames"]["stream"]["data"]
    data["norm"] = [None] * len(data["norm"])
    data["median"] = ["text"] * len(data["median"])
    drawn = view(report, "stream")
    assert "norm" in drawn["columns"]
    assert "median" not in drawn["columns"]
    assert set(drawn["series"][0]["values"]["norm"]["mean"]) == {None}


def test_a_measure_without_a_frame_has_no_series():
    report = sample(["a"])
    del report["frames"]["gain"]
    assert view(report, "gain")["series"] == []


def test_a_model_that_is_not_applicable_is_named_by_its_number():
    report = sample(["a", "b"])
    report["measures"][0]["not_applicable"] = [{"model": "b", "reason": "it has no attention"}]
    assert view(report, "diversity")["missing"] == [{"model": 1, "reason": "it has no attention"}]


def test_a_violation_names_its_layers():
    report = sample(["a"], layers=3, heads=2, sequences=1)
    data = report["frames"]["spectrum"]["data"]
    broken = data["layer"].index(2)
    data["column_bound"][broken] = data["norm"][broken] / 2
    (series,) = view(report, "spectrum")["series"]
    verdict = series["bounds"][0]
    assert (verdict["violated"], verdict["layers"], verdict["readings"]) == (1, [2], 6)
    assert verdict["reach"] == pytest.approx(2, rel=ROUNDING)


def test_readings_whose_residual_is_large_are_counted_in_whatever_measure_has_one():
    report = sample(["a"], layers=3, sequences=2)
    for name in ("lipschitz", "stream"):
        rows = len(report["frames"][name]["data"]["layer"])
        residual = [0.5, 0.1, None] + [0.0] * (rows - 3)
        report["frames"][name]["columns"] = list(
            dict.fromkeys([*report["frames"][name]["columns"], "residual"])
        )
        report["frames"][name]["data"]["residual"] = residual
        measure = next(m for m in report["measures"] if m["name"] == name)
        measure["columns"]["residual"] = "relative"
        (series,) = view(report, name)["series"]
        found = series["convergence"]
        assert (found["open"], found["readings"], found["limit"]) == (1, rows - 1, 0.1)
    assert "convergence" not in view(report, "spectrum")["series"][0]


def test_an_attention_map_is_packed_without_loss():
    stored = attention_detail("a", [f"w{i}" for i in range(17)])
    packed = inspection.details([{"detail": "k"}], {"k": stored}, ["a"])["k"]
    flat = zlib.decompress(base64.b64decode(packed["map"]))
    table = np.frombuffer(flat, dtype=np.uint8).reshape(17, 17)
    for index, row in enumerate(stored["weights"]):
        assert table[index, : index + 1].tolist() == row
        assert not table[index, index + 1 :].any()


def test_a_part_of_a_long_sequence_keeps_its_positions():
    stored = attention_detail("a", ["x", "y", "z"]) | {"queries": [0, 500, 511]}
    packed = inspection.details([{"detail": "k"}], {"k": stored}, ["a"])["k"]
    assert packed["positions"] == [0, 500, 511]
    assert packed["own"] == [0, 1, 2]


def test_pictures_are_kept_in_the_order_of_the_findings_until_the_page_is_full():
    one = attention_detail("a", ["x"] * 40)
    findings = [{"detail": name} for name in ("late", "first", None, "absent")]
    cost = len(str(inspection.details([{"detail": "late"}], {"late": one}, ["a"])["late"]))
    kept = inspection.details(findings, {"first": one, "late": one}, ["a"], budget=cost)
    assert list(kept) == ["late"]


@pytest.mark.full
def test_models_of_unlike_depth_are_aligned_by_depth():
    assert inspection.compact(sample(["a", "b"], layers=[3, 5]))["aligned"]
    assert not inspection.compact(sample(["a", "b"], layers=3))["aligned"]


def held_against(**threshold):
    """A report whose first finding is held against this threshold of the measure `diversity`."""
    report = sample(["a"])
    finding = {"measure": "diversity", "column": "cosine", "kind": "ffn", "threshold": 0.9}
    report["findings"] = [{**report["findings"][0], "model": "a", **finding, **threshold}]
    return view(report, "diversity")["thresholds"]


def test_a_finding_leaves_its_threshold_on_the_curve_that_it_speaks_of():
    assert held_against() == [{"model": 0, "column": "cosine", "kind": 2, "value": 0.9}]


def test_a_threshold_that_is_no_level_of_a_curve_is_not_drawn():
    assert held_against(relative=True) == []
    assert held_against(column=None) == []
    assert held_against(threshold=None) == []
    assert held_against(measure="stream") == []


def test_of_positions_the_most_frequent_stands_for_a_layer_and_no_mean():
    report = sample(["a"], layers=1, sequences=3)
    (measure,) = (one for one in report["measures"] if one["name"] == "stream")
    measure["roles"] = {"largest": "index", "massive": "flag"}
    data = report["frames"]["stream"]["data"]
    at = {layer: iter(values) for layer, values in {-1: [7, 90, 7], 0: [1, 2, 3]}.items()}
    data["largest"] = [next(at[layer]) for layer in data["layer"]]
    drawn = view(report, "stream")
    assert drawn["series"][0]["values"]["largest"] == {"mean": [7, None]}
    assert drawn["indices"] == ["largest"]
    assert not {"largest", "massive"} & {*drawn["plot"], *drawn["more"]}


def test_a_bound_without_a_reading_is_not_offered():
    report = sample(["a"])
    data = report["frames"]["gain"]["data"]
    assert [bound["limit"] for bound in view(report, "gain")["bounds"]] == ["bound", "sharp"]
    data["bound"] = [None] * len(data["bound"])
    assert [bound["limit"] for bound in view(report, "gain")["bounds"]] == ["sharp"]
