"""A report that layerlab 0.1 wrote, of two models of two blocks, is read with today's layers."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerlab import load_report
from layerlab.report.results.report import Report
from tests.support.refused import refuses

STORED = Path(__file__).with_name("schema_1.json")


@pytest.fixture(scope="module")
def older() -> Report:
    return load_report(STORED)


@pytest.mark.parametrize(
    ("measure", "layers"),
    [
        ("stream", [-1, 0, 1]),
        ("features", [-1, 0, 1]),
        ("lipschitz", [-1, 0, 1]),
        ("rounding", [-1, 0, 1]),
        ("gradients", [-1, 0, 1, 2]),
        ("condition", [0, 1]),
        ("attention", [0, 1]),
        ("gain", [0, 1]),
    ],
)
def test_the_embedding_is_minus_one_and_the_first_block_is_0(older, measure, layers):
    assert sorted(set(older.frame(measure)["layer"])) == layers


def test_nothing_but_the_layer_is_another(older):
    stored = json.loads(STORED.read_text("utf-8"))["frames"]["stream"]["data"]
    frame = older.frame("stream")
    assert list(frame["norm"]) == stored["norm"]
    assert list(frame["layer"] + 1) == stored["layer"]


def test_parts_of_the_error_are_called_by_todays_names(older):
    parts = set(older.frame("attribution").query("by == 'layer'")["part"])
    assert parts == {"embedding", "layer 0", "layer 1", "behind the blocks"}


def test_findings_name_the_block_that_they_are_about(older):
    said = {(finding.id.partition("-")[0], finding.layer, finding.detail): finding.sentence
            for finding in older.findings}  # fmt: skip
    massive = said["massive", 0, "channels/massive/0/0"]
    assert massive.startswith("Layer 0: massive activation 4,000 (token 1, channel 3)")
    assert massive.endswith("and 1 more layer (1)")
    broken = [sentence for key, sentence in said.items() if key[0] == "nonfinite"]
    assert "Layer 1: output of layer 1 holds 192 of 192 features not finite" in broken
    assert {finding.detail for finding in older.findings} - {None} == set(
        older.to_dict()["details"]
    )


@pytest.mark.full
def test_it_is_written_as_todays_and_read_again(older, tmp_path):
    older.save(tmp_path / "again")
    again = load_report(tmp_path / "again")
    assert again.to_dict()["schema"] == 2
    assert again == older


def test_attention_layers_of_a_mixed_model_stay_and_it_is_said(tmp_path):
    content = json.loads(STORED.read_text("utf-8"))
    content["models"][0]["attention_layers"] = 1
    notes = _read(content, tmp_path).measures["gain"]["notes"]
    assert "massive: its layers are its attention layers, counted from 0" in notes


@pytest.mark.parametrize("part", ["models", "details", "pictures", "frames"])
def test_a_damaged_one_is_refused_in_one_line(part, tmp_path):
    content = json.loads(STORED.read_text("utf-8"))
    content[part] = {"x": {"y": 3}} if isinstance(content[part], dict) else [{"name": "x"}]
    if part == "models":
        content[part][0]["faults"] = [3]
    refuses(r"damaged|not written", _read, content, tmp_path)


def _read(content: dict[str, Any], folder: Path) -> Report:
    file = folder / "report.json"
    file.write_text(json.dumps(content), "utf-8")
    return load_report(file)
