"""The figures of a report: all of its pictures, the numbers of the page, files of their own."""

import base64
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import layerlab
from layerlab import UserError
from layerlab.report.figures import heatmaps
from layerlab.report.figures.export import draw
from layerlab.report.figures.inspection import figures, slugs
from layerlab.report.results import report
from layerlab.report.results.report import Report
from layerlab.report.views.inspection import frames as inspection
from tests.report.figures.test_export import really
from tests.report.support.clouded import clouded, picture
from tests.report.support.looked import looked
from tests.report.support.reading import content, frames
from tests.report.support.sample import HOSTILE, sample
from tests.support.refused import refuses

__all__ = ["really"]

MOST = 1_000_000


@pytest.fixture
def drawn(monkeypatch):
    """Stand in for kaleido: every figure becomes a file of its format's name."""

    def write(orders, **options):
        for order in orders:
            Path(order["path"]).write_text(order["opts"]["format"])

    monkeypatch.setitem(sys.modules, "kaleido", SimpleNamespace(write_fig_from_object_sync=write))
    monkeypatch.setattr(report, "check_drawing", lambda kind: None)


@pytest.mark.full
def test_every_picture_of_a_report_is_a_figure():
    content = sample(["a", "b"])
    found = figures(content)
    view = inspection.compact(content)
    for measure in view["measures"]:
        for column in measure["plot"]:
            for kind in measure["kinds"] or [""]:
                assert "-".join(filter(None, [measure["name"], column, kind])) in found
            if measure["per_head"]:
                assert {f"{measure['name']}-{column}-heads-{m}" for m in "ab"} <= set(found)
    assert "map-1-layer-1-head-2" in found
    seen = figures(looked(["a"])) | figures(clouded(["a"], layers=8))
    assert {"saliency-a-embedding", "saliency-a-layer-2", "features-a-layer-3"} <= set(seen)


def test_matrices_have_a_map_beside_their_curves(tiny):
    report = layerlab.inspect(tiny("gpt2"), measures=["matrices"], progress=False)
    found = figures(report.to_dict())
    label = next(name for name in found if "matrices-norm-matrices" in name)
    drawn = found[label].data[0]
    rows = report.frame("matrices").set_index(["matrix", "layer"])["norm"]
    assert list(drawn["y"]) == [name for name, layer in rows.index if layer == 0]
    for name, line in zip(drawn["y"], drawn["z"], strict=True):
        assert line == pytest.approx([rows[name, layer] for layer in drawn["x"]], rel=1e-3)


def test_a_map_of_matrices_has_a_row_for_each_and_says_what_it_leaves_out(tiny):
    whole = layerlab.inspect(tiny("gpt2"), measures=["matrices"], progress=False).to_dict()
    data = whole["frames"]["matrices"]["data"]
    renamed = {"attn.c_attn": "a" * 50 + "_up", "attn.c_proj": "a" * 50 + "_down"}
    data["matrix"] = [renamed.get(name, name) for name in data["matrix"]]
    ways = {"mlp.c_fc": ["Infinity"] * 2, "mlp.c_proj": ["Infinity", 1.0]}
    for name, values in ways.items():
        for at, value in zip((0, 1), values, strict=True):
            data["condition"][data["matrix"].index(name, data["layer"].index(at))] = value
    found = {k: one for k, one in figures(whole).items() if k.startswith("matrices-condition-matr")}
    (drawn,) = found.values()
    rows = drawn.data[0]["y"]
    assert len(set(rows)) == len(rows) == 4 and list(rows[-2:]) == ["mlp.c_fc", "mlp.c_proj"]
    assert drawn.data[0]["z"][-2] == [None, None]
    assert drawn.data[0]["z"][-1][0] is None
    assert drawn.layout["xaxis"]["title"]["text"].endswith(
        ": 3 readings are infinite, and not drawn"
    )
    kept = [one == "mlp.c_proj" for one in data["matrix"]]
    whole["frames"]["matrices"]["data"] = {
        key: [one for one, keep in zip(values, kept, strict=True) if keep]
        for key, values in data.items()
    }
    assert not any("-matrices-" in name for name in figures(whole)), "its curve shows the same"


@pytest.mark.full
def test_a_figure_says_which_readings_it_leaves_out():
    content = sample(["a", "<b>"], layers=2, heads=2, sequences=1)
    content["frames"]["querykey"]["data"]["condition"][-1] = "Infinity"
    found = figures(content)
    told = "layer<br>&lt;b&gt;: 1 of 4 readings are infinite, and not drawn"
    for name in ("querykey-condition", "querykey-condition-heads-b"):
        assert found[name].layout["xaxis"]["title"]["text"] == told
    for name in ("querykey-condition-heads-a", "querykey-norm"):
        assert "infinite" not in str(found.get(name))


@pytest.mark.full
@pytest.mark.parametrize(
    ("measure", "column"),
    [
        ("dimension", "effective_dimension"),
        ("diversity", "relative_residual"),
        ("spectrum", "norm"),
    ],
)
def test_curves_of_several_models_stand_in_one_figure(measure, column):
    content = sample(["a", "b", "c"])
    name = f"{measure}-{column}" + ("-stream" if measure == "diversity" else "")
    figure = figures(content)[name]
    lines = [t for t in figure.data if t["mode"] == "lines+markers"]
    assert [line["name"] for line in lines] == ["a", "b", "c"]
    view = next(m for m in inspection.compact(content)["measures"] if m["name"] == measure)
    for line, series in zip(lines, (s for s in view["series"] if s["kind"] == 0), strict=True):
        assert line["y"] == series["values"][column]["mean"] and line["x"] == series["layers"]
    assert figure.layout["showlegend"]


@pytest.mark.full
def test_a_layer_stands_at_its_depth_where_the_last_ones_have_no_reading():
    content = sample(["a", "b"], layers=[3, 8])
    data = content["frames"]["spectrum"]["data"]
    kept = [m == "a" or layer < 4 for m, layer in zip(data["model"], data["layer"], strict=True)]
    for name, values in data.items():
        data[name] = [value for value, keep in zip(values, kept, strict=True) if keep]
    lines = {t["name"]: t for t in figures(content)["spectrum-norm"].data if "marker" in t}
    assert lines["a"]["x"] == pytest.approx([1 / 3, 2 / 3, 1])
    assert lines["b"]["x"] == pytest.approx([1 / 8, 2 / 8, 3 / 8, 4 / 8])


@pytest.mark.full
def test_checkpoints_of_a_run_are_drawn_over_its_steps():
    content = sample(["c", "a", "b"], steps=[300, 100, 200], layers=4)
    figure = figures(content)["dimension-effective_dimension-steps"]
    assert [trace["x"] for trace in figure.data] == [[100, 200, 300]] * 4
    rows = inspection.frame(content, "dimension").set_index(["model", "layer"])[
        "effective_dimension"
    ]
    inside = rows.drop(index=-1, level="layer")  # the embedding is no layer
    assert figure.data[0]["y"] == pytest.approx([inside[m].mean() for m in "abc"], rel=1e-3)
    assert figure.data[1]["y"] == pytest.approx([inside[m].iloc[0] for m in "abc"], rel=1e-3)
    assert figure.data[3]["y"] == pytest.approx([rows[m].iloc[-1] for m in "abc"], rel=1e-3)
    assert "dimension-effective_dimension-steps" not in figures(sample(["a", "b"]))


@pytest.mark.full
def test_a_bound_is_dashed_and_named_once():
    figure = figures(sample(["a", "b"]))["spectrum-norm"]
    limits = [t for t in figure.data if t.get("name") == "column_bound"]
    assert len(limits) == 2 and [t["showlegend"] for t in limits] == [True, False]
    assert all(t["line"]["dash"] != "solid" for t in limits)


@pytest.mark.full
def test_wide_and_positive_readings_stand_in_powers_and_zeros_are_left_out():
    content = sample(["a"])
    norms = content["frames"]["stream"]["data"]["norm"]
    norms[:] = [10.0 ** (layer % 7) for layer in range(len(norms))]
    assert figures(content)["stream-norm"].layout["yaxis"]["type"] == "log"
    norms[:] = [0.0, *norms[1:]]
    content["frames"]["stream"]["data"]["norm"] = [v - 1 for v in norms]
    assert "type" not in figures(content)["stream-norm"].layout["yaxis"]


@pytest.mark.full
def test_a_reading_that_is_nowhere_is_no_figure():
    content = sample(["a"])
    norms = content["frames"]["stream"]["data"]["norm"]
    norms[:] = [None] * len(norms)
    found = figures(content)
    assert "stream-norm" not in found and "stream-kurtosis" in found


@pytest.mark.full
def test_hostile_names_and_tokens_are_letters_and_no_paths(tmp_path):
    content = clouded(["../../etc", "<b>x</b>"])
    found = figures(content)
    assert all(Path(name).name == name and not name.startswith(".") for name in found)
    assert {"features-etc-embedding", "features-b-x-b-embedding"} <= set(found)
    names = {t.get("name") for t in found["features-etc-embedding"].data}
    assert "&lt;b&gt;x&lt;/b&gt;" in names and not any("<" in str(name) for name in names)
    lines = {t.get("name") for t in found["dimension-effective_dimension"].data}
    assert "&lt;b&gt;x&lt;/b&gt;" in lines
    ticks = figures(looked(["a"]))["saliency-a-embedding"].layout["xaxis"]["ticktext"]
    assert HOSTILE[:12] not in ticks and "&lt;/script&gt;&lt;im" in ticks


@given(names=st.lists(st.text(max_size=60), max_size=6))
def test_every_name_is_another_file(names):
    found = slugs(names)
    assert len({one.lower() for one in found}) == len(names)
    assert all(one == Path(one).name and "/" not in one and one.strip(".-") for one in found)


def test_the_cloud_is_drawn_on_one_scale_with_its_shares():
    content = clouded(["a"])
    figure = figures(content)["features-a-layer-2"]
    own = figure.layout
    assert own["xaxis"]["range"] == own["yaxis2"]["range"] == own["yaxis"]["range"]
    assert own["yaxis"]["scaleanchor"] == "x" and own["yaxis2"]["scaleanchor"] == "x2"
    assert own["yaxis2"]["title"]["text"] == "direction 3 (10.0%)"
    points = content["pictures"]["features"]["a"]["points"][3]
    largest = max(abs(v) for word in points for point in word for v in point)
    for word, trace in zip(points, figure.data[::2], strict=True):
        assert trace["x"] == pytest.approx([p[0] for p in word], abs=2e-3 * largest)
        assert trace["y"] == pytest.approx([p[1] for p in word], abs=2e-3 * largest)


@pytest.mark.full
def test_maps_are_those_that_were_packed():
    given_ = looked(["a"])
    packed = given_["pictures"]["saliency"]["a"]["maps"][0]
    flat = zlib.decompress(base64.b64decode(packed))
    (trace,) = figures(given_)["saliency-a-embedding"].data
    assert trace["z"][3][5] == flat[5 * 4 + 3] / 255
    detail = next(iter(inspection.compact(sample(["a"]))["details"].values()))
    (cells,) = heatmaps.attention(detail).data
    assert cells["z"][0][1] is None and 0 < cells["z"][5][0] <= 1


def test_a_map_of_parts_of_a_text_has_a_gap_between_them():
    content = sample(["a"])
    content["details"]["head"]["queries"] = [*range(20), *range(251, 271)]
    detail = inspection.compact(content)["details"]["head"]
    figure = heatmaps.attention(detail)
    (cells,) = figure.data
    assert len(cells["z"]) == 41 and cells["z"][20] == [None] * 41
    assert cells["z"][40][20] is None and cells["z"][40][0] > 0
    positions = [text.split()[0] for text in figure.layout["xaxis"]["ticktext"]]
    assert positions[:10] == [str(position) for position in range(0, 20, 2)]
    assert positions[10:12] == ["⋯", "252"]


@pytest.mark.full
def test_a_report_brings_its_figures_and_is_still_a_report(drawn, tmp_path):
    whole = Report(clouded(["a"]))
    folder = whole.save(tmp_path / "out", figures="pdf")
    kept = {file.stem for file in (folder / "figures").iterdir()}
    assert kept == set(figures(whole.to_dict())) and len(kept) > 20
    whole.save(folder)  # an earlier one is replaced, figures and all
    assert not (folder / "figures").exists()
    whole.save(folder, figures="svg")
    own = folder / "figures" / "mine.svg"
    own.write_text("mine")
    refuses("something other than a report", whole.save, folder)
    assert own.read_text() == "mine"


@pytest.mark.full
def test_a_failure_while_drawing_loses_nothing_that_was_measured(drawn, tmp_path, monkeypatch):
    folder = Report(sample(["a"])).save(tmp_path / "out")

    def fail(*args, **options):
        raise RuntimeError("gone", "and a page of advice")

    monkeypatch.setattr(sys.modules["kaleido"], "write_fig_from_object_sync", fail)
    with pytest.raises(UserError, match=r"not drawn: gone; .*; all else is in .*out$"):
        Report(sample(["b"])).save(tmp_path / "out", figures="svg")
    assert (folder / "report.json").read_text("utf-8") == Report(sample(["b"])).to_json()
    assert not (folder / "figures").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.full
def test_the_largest_pictures_stay_below_a_megabyte(really, tmp_path):
    content = clouded(["a", "b", "c"], layers=3, points=100)
    content["pictures"]["features"]["a"] = picture(3, 5000)  # as `points=5000` asks for
    wide = looked(["a"], tokens=512)
    found = figures(content) | figures(wide) | figures(sample(layers=36, heads=20))
    kinds = ("features-", "saliency-a", "map-1", "spectrum-norm", "diversity-")
    alike = [[name for name in found if name.startswith(kind)] for kind in kinds]
    most = (max(names, key=lambda name: len(str(found[name].data))) for names in alike)
    chosen = {name: found[name] for name in most}
    draw(chosen, tmp_path, "svg")
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {f"{name}.svg" for name in chosen}
    assert max(sizes.values()) < MOST, max(sizes.items(), key=lambda item: item[1])
    for file in tmp_path.iterdir():
        text = file.read_text("utf-8")
        assert "<script" not in text and "onerror=window" not in text.replace("&lt;", "")


def test_bars_of_a_table_are_a_figure_for_each_of_its_groups():
    whole = Report(content(), frames()).to_dict()
    groups = inspection.measure_view(
        whole, next(one for one in whole["measures"] if one["name"] == "logits")
    )["table"]["groups"]
    (figure,) = [one for name, one in figures(whole).items() if name.startswith("logits-")]
    (bars,) = figure.data
    column = groups[0]["heads"].index(groups[0]["bar"]) - groups[0]["axes"]
    assert [*bars["x"]] == [row["cells"][column] for row in groups[0]["rows"]]
    assert bars["y"][0] == "bf16, as-run"
