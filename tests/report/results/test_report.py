import io
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from layerlab.records.parse import check_digest
from layerlab.report.findings.find import Finding, find
from layerlab.report.results.report import Report, load_report
from layerlab.report.views import tables as table
from tests.report.support.reading import card, content, frames, measures, report
from tests.support.forked import empty_python
from tests.support.oldest import read_csv
from tests.support.refused import refuses

HOSTILE = '</script><img src=x onerror=alert(1)>[/b]\x1b[31m\u202e\ud800 a,"b"\n\';--'
SPOT = pd.Series([1.0, math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2])


def hostile() -> Report:
    """A report whose every string tries to be something else."""
    cards = [card(HOSTILE, revision=HOSTILE, loss_nats=9.0)]
    tables = frames()
    for name, frame in tables.items():
        tables[name] = frame.assign(model=pd.Series([HOSTILE] * len(frame), dtype=object))
    whole = content(*cards, options={HOSTILE: HOSTILE}, text={"source": HOSTILE, "sequences": []})
    return Report({**whole, "findings": find(whole, tables)}, tables)


def printed(renderable: Any, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(renderable)
    return stream.getvalue()


@pytest.mark.full
def test_a_saved_report_loads_as_it_was(tmp_path):
    kept = report()
    kept.save(tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out" / "report.json", str(tmp_path / "out")):
        loaded = load_report(path)
        assert loaded == kept
        assert loaded.findings == kept.findings and loaded.notes == kept.notes
        for name in kept.frames:
            pd.testing.assert_frame_equal(loaded.frame(name), kept.frame(name))


@pytest.mark.full
def test_hostile_strings_survive_as_data(tmp_path):
    kept = hostile()
    loaded = load_report(kept.save(tmp_path / "out"))
    assert loaded == kept
    spelled = HOSTILE.replace("\ud800", "\\ud800")
    assert loaded.models[0]["name"] == loaded.frame("gain")["model"].iloc[0] == spelled
    parquet = pd.read_parquet(tmp_path / "out" / "tables" / "gain.parquet")
    assert parquet["model"].iloc[0] == spelled


@pytest.mark.full
def test_hostile_strings_stay_text_on_the_page(tmp_path):
    written = hostile().to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in written


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(), max_size=8),
    st.lists(st.text(max_size=5) | st.none(), max_size=8),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    st.lists(st.booleans(), max_size=8),
)
def test_any_table_survives_json(reals, texts, numbers, flags):
    columns = {"real": reals, "text": texts, "number": numbers, "flag": flags}
    rows = min(map(len, columns.values()))
    frame = table.tidy(pd.DataFrame({name: column[:rows] for name, column in columns.items()}))
    text = json.dumps(table.encode_table(frame), allow_nan=False)
    again = table.decode_table("any", json.loads(text))
    pd.testing.assert_frame_equal(again, frame, check_exact=True)
    assert json.dumps(table.encode_table(again), allow_nan=False) == text


@pytest.mark.full
def test_a_report_that_was_edited_is_not_loaded(tmp_path):
    file = report().save(tmp_path / "out") / "report.json"
    content = json.loads(file.read_text("utf-8"))
    content["models"][0]["parameters"] = 7
    file.write_text(json.dumps(content), "utf-8")
    refuses(r"report\.json is damaged: it is not what was written", load_report, file)
    # A file of before there were digests is read as it stands.
    del content["digest"]
    file.write_text(json.dumps(content), "utf-8")
    assert load_report(file).models[0]["parameters"] == 7


def test_the_json_is_strict_and_names_its_schema(tmp_path):
    kept = report(
        machine={"load": math.nan, "limit": math.inf, "tuple": (np.float32(1.5), np.int8(2))}
    )
    text = kept.to_json()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    parsed = json.loads(text, parse_constant=refuse)
    assert parsed["schema"] == 2
    assert parsed["machine"] == {"load": None, "limit": "Infinity", "tuple": [1.5, 2]}
    assert check_digest(parsed) == kept.to_dict()


def test_csv_and_parquet_hold_every_digit(tmp_path):
    tables = {"odd": pd.DataFrame({"model": "m", "layer": range(len(SPOT)), "reading": SPOT})}
    folder = Report(content(measures=[]), tables).save(tmp_path / "out") / "tables"
    csv = read_csv(folder / "odd.csv")
    parquet = pd.read_parquet(folder / "odd.parquet")
    for read in (csv, parquet):
        np.testing.assert_array_equal(read["reading"].to_numpy(), SPOT.to_numpy())
        assert math.copysign(1, read["reading"][4]) == -1
        assert read["layer"].dtype == "int64"


@pytest.mark.full
def test_infinite_findings_survive(tmp_path):
    tables = frames()
    tables["attention"] = tables["attention"].assign(logit_max=math.inf)
    kept = Report({**content(), "findings": find(content(), tables)}, tables)
    assert kept.findings[0].value == math.inf
    assert load_report(kept.save(tmp_path / "out")).findings == kept.findings


def test_the_caller_keeps_its_tables_and_the_report_its_own():
    tables = {name: frame.copy() for name, frame in frames().items()}
    kept = Report(content(), tables)
    before = kept.to_json()
    copied = kept.frame("attention")
    copied["entropy"] = 0.0
    tables["attention"]["entropy"] = 0.0
    kept.models[0]["name"] = "other"
    kept.measures["gain"]["unit"] = "other"
    assert kept.to_json() == before


def test_reports_are_equal_by_content():
    assert report() == report()
    assert report() != report(created="2027-01-01T00:00:00Z")
    assert report() != "a report"


def test_an_unknown_table_is_answered_with_the_known_ones():
    refuses("no table 'spectrun'; did you mean 'spectrum'. it has: ", report().frame, "spectrun")
    for name in (3, None, ["spectrum"]):
        refuses("this report has no table .* it has: ", report().frame, name)


@pytest.mark.full
def test_a_measure_that_is_not_applicable_has_an_empty_table_and_a_reason(tmp_path):
    tables = frames()
    tables["gain"] = pd.DataFrame([], columns=tables["gain"].columns)
    del tables["lipschitz"]
    kept = Report(content(measures=measures(gain="its rows do not sum to 1")), tables)
    assert kept.frame("lipschitz").dtypes.astype(str).to_dict()["layer"] == "int64"
    frame = kept.frame("gain")
    assert frame.empty
    assert frame.columns.tolist()[:4] == ["model", "sequence", "layer", "sublayer"]
    assert "tightness" in frame.columns
    assert kept.measures["gain"]["not_applicable"][0]["reason"] == "its rows do not sum to 1"
    assert "not applicable to healthy, because its rows do not sum to 1" in printed(kept.table())
    loaded = load_report(kept.save(tmp_path / "out"))
    pd.testing.assert_frame_equal(loaded.frame("gain"), frame)


def test_a_report_without_models_or_measures_is_still_a_report(tmp_path):
    kept = Report({})
    assert kept == load_report(kept.save(tmp_path / "out"))
    assert kept.findings == [] and "Report(" in repr(kept)


def test_the_summary_counts_parameters_as_tables_do():
    kept = report(models=[card(parameters=6_738_415_616)])
    assert "GPT2LMHeadModel, 6.74 G parameters, 6 layers" in printed(kept.table(), width=400)


@pytest.mark.full
def test_the_summary_ranks_findings_and_says_where_the_page_is(tmp_path):
    kept = report()
    assert "The page" not in printed(kept.table())
    kept.save(tmp_path / "out")
    text = printed(kept.table(), width=400)
    assert "GPT2LMHeadModel, 480 k parameters, 6 layers, 4 heads" in text
    assert "1 warning" in text and "largest attention score 131" in text and "kimi25" in text
    assert str(tmp_path / "out" / "report.html") in text


def test_a_finding_goes_on_below_its_first_word():
    lines = printed(report().table(), width=60).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("warning"))
    assert len(lines[start + 1 :]) > 2
    assert all(line.startswith(" " * 8) for line in lines[start + 1 :] if line.strip())


@pytest.mark.parametrize("name", ["post-norm", "a-very-long-name/of-some-model-on-the-hub"])
def test_what_is_said_of_a_model_goes_on_below_itself(name):
    text = printed(Report(content(card(name)), frames()).table(), width=60)
    first, *rest = text.split("No findings")[0].rstrip().splitlines()
    assert first.startswith(name) and rest
    assert all(line.startswith("  ") for line in rest)


def test_nothing_found_is_said():
    assert "No findings" in printed(Report(content(), frames()).table())


@pytest.mark.full
def test_hostile_strings_are_harmless_in_a_terminal():
    text = printed(hostile().table())
    assert "\x1b" not in text and "\u202e" not in text
    assert "[/b]" in text.replace("\n", "")
    assert "\x1b" not in repr(hostile())


@pytest.mark.full
def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    shown = report()._repr_html_()
    assert shown.startswith("<iframe") and 'sandbox="allow-scripts"' in shown
    inside = shown.split('srcdoc="', 1)[1].rsplit('"></iframe>', 1)[0]
    assert '"' not in inside and "<" not in inside


@pytest.mark.full
def test_a_page_too_large_for_a_notebook_becomes_a_summary(monkeypatch):
    monkeypatch.setattr("layerlab.report.results.report.NOTEBOOK_BYTES", 10)
    shown = hostile()._repr_html_()
    assert "to_html" in shown and "<iframe" not in shown and "<img" not in shown


@pytest.mark.full
def test_a_report_loads_without_torch(tmp_path):
    folder = report().save(tmp_path / "out")
    script = (
        "import sys, layerlab; r = layerlab.load_report(sys.argv[1]); r.frame('gain'); r.findings\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'a report needs no tensors'"
    )
    empty_python("-c", script, folder, check=True)


def test_two_models_of_one_name_are_refused():
    twins = {**report().to_dict(), "models": [card("twin"), card("twin")]}
    refuses("two models of the report are called 'twin'", Report, twins)


def test_a_remark_is_called_one_in_its_count_and_in_its_line():
    content = report().to_dict()
    content["findings"] = [
        Finding(id="f", severity="info", model="m", sentence="S", advice="A.", source="Own")
    ]
    text = printed(Report(content).table())
    assert "1 remark\n" in text and "remark  S [Own]" in text
    assert "info" not in text


def test_a_finding_reads_as_one_line():
    finding = Finding(id="f", severity="info", model="m", sentence="S", advice="A.", source="Own")
    assert finding.text == "m: S [Own]"


def test_what_is_no_path_is_refused():
    for write in (report().save, report().to_html):
        refuses("the path is None; expected a text or a pathlib.Path", write, None)
