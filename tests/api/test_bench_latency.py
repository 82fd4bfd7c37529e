"""Timing and stages of adaptation as functions: what Python alone can give them."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from layerlab import UserError, bench_latency, change_vocabulary
from layerlab.api.bench_latency import _check_candidates
from tests.support.refused import refuses


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": "3"}, "batch is '3'; expected a whole number"),
        ({"context": 4.5}, "context is 4.5; expected a whole number"),
        ({"repetitions": True}, "repetitions is True; expected a whole number"),
        ({"models": (), "accounting": "fewer-layers", "width": "x"}, "width is 'x'; expected a"),
        ({"models": Path("none")}, "none"),
        ({"models": [Path("none")]}, "none"),
    ],
)
def test_what_no_size_and_no_model_is_is_one_line(given, said):
    refuses(said, bench_latency, **{"models": "llama", "progress": False, **given})


@pytest.mark.parametrize("given", [{"models": "no-such-idea"}, {"models": "no-such-idea:width=8"}])
def test_a_name_that_a_plugin_may_declare_is_looked_up_with_it(given, monkeypatch):
    entry = EntryPoint("none", "a_module_that_is_nowhere", "layerlab.variants")
    for module in ("layerlab.api.bench_latency", "layerlab.model.preset"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: [entry])
    _check_candidates([given["models"]])


def test_a_folder_with_a_colon_is_a_model(tmp_path):
    folder = tmp_path / "run 12:30"
    folder.mkdir()
    refuses(r"has no config\.json", bench_latency, folder, progress=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("width", "cannot read the option 'width'; expected a name and a value: type llama:"),
        ("heads=2,heads=4", "llama:'heads' is given twice"),
    ],
)
def test_what_is_wrong_behind_a_name_is_answered_with_that_name(given, said):
    refuses(said, bench_latency, f"llama:{given}", progress=False)


def test_a_size_of_a_vocabulary_may_be_a_number(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("an appeal", encoding="utf-8")
    with pytest.raises(UserError, match="there is no tokenizer 'none'"):
        change_vocabulary("none", text, 8000, tmp_path / "new", progress=False)
    with pytest.raises(UserError, match="cannot read the size '-1'"):
        change_vocabulary("none", text, -1, tmp_path / "new", progress=False)
