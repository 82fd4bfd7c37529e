"""Every corpus of the source is listed, with what is known and what is not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import layerlab
from layerlab import UserError
from layerlab.cli.adapt.group import adapt
from layerlab.data.catalog import list_corpora, table

LOOSE = ("--near-duplicate-threshold", "0")


def typed(*words: str | Path) -> str:
    done = CliRunner().invoke(adapt, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_all_eight_are_there_and_whole():
    found = list_corpora()
    assert {one.name for one in found} == {
        *("FinCorpus", "TuShare", "Pile of Law", "LeXFiles"),
        *("JEC-QA", "ChatLaw", "Lawyer LLaMA", "LawGPT"),
    }
    for one in found:
        assert one.domain in {"finance", "law"} and one.language in {"zh", "en"}
        assert one.stage in {"continued pretraining", "instruction tuning"}
        assert all(value.strip() for value in (one.id, one.size, one.license, one.get, one.source))
    fed = {one.name for one in found if "LawBench 1-2" in one.feeds}
    assert {"JEC-QA", "Lawyer LLaMA", "LawGPT"} <= fed
    assert table().row_count == 8


def test_it_is_printed_as_a_table_and_as_json():
    assert "Pile of Law" in typed("catalogue")
    found = json.loads(typed("catalogue", "--json"))
    assert [one["name"] for one in found] == [one.name for one in list_corpora()]


def test_text_is_cleaned_as_typed(tmp_path):
    (tmp_path / "law.jsonl").write_text('{"body": "ＡＢＣ law"}\n{"body": "x"}\n')
    words = ("--min-chars", "3", "--unicode-form", "NFKC", "--field", "body", *LOOSE)
    said = typed("clean", tmp_path / "law.jsonl", "--out", tmp_path / "out", *words)
    assert "too short" in said and "text.jsonl" in said
    assert json.loads((tmp_path / "out" / "text.jsonl").read_text()) == {"text": "ABC law"}
    again = typed("clean", tmp_path / "law.jsonl", "--out", tmp_path / "out", *words, "--json")
    assert json.loads(again)["kept"] == 1


def test_rules_are_called_as_in_a_recipe_and_read_by_their_names_of_0_1(tmp_path):
    text, out = tmp_path / "law.txt", tmp_path / "out"
    text.write_text("An appeal.")
    assert layerlab.clean_text(text, out, min_chars=3, near_duplicate_threshold=0).kept == 1
    said = r"clean\.shortest is now called clean\.min_chars"
    with pytest.warns(FutureWarning, match=rf"^clean_text: {said} and 1 more; the names of 0"):
        assert layerlab.clean_text(text, out, shortest=3, near=0).kept == 1  # type: ignore[call-arg]
    with pytest.warns(FutureWarning, match=rf"^adapt clean: {said}; the names of 0"):
        typed("clean", text, "--out", out, "--shortest=3", *LOOSE)
    both = r"clean\.min_chars is given under its older name 'shortest' too; leave one out"
    with pytest.raises(UserError, match=both):
        layerlab.clean_text(text, out, shortest=3, min_chars=3)  # type: ignore[call-arg]


@pytest.mark.full
def test_a_text_that_is_read_in_place_of_another_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    words = ("law-zh", "--out", tmp_path / "out", *LOOSE)
    said = typed("clean", *words)
    assert "python-docs, cleaned" in said and "law-zh is not here" in said


def test_questions_are_looked_for_as_typed(tmp_path):
    asked = "who hears an appeal against the first ruling of a county court"
    (tmp_path / "text.txt").write_text(f"An exam: {asked}? \x1b[31m")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "1-2.json").write_text(json.dumps([{"question": asked}]))
    words = (tmp_path / "text.txt", "--benchmark", tmp_path / "bench")
    said = typed("contamination", *words, "--out", tmp_path / "found.json")
    assert "100%  1-2 1 in document 1: who hears an appeal" in said and "JEC-QA" in said
    kept = json.loads((tmp_path / "found.json").read_text())
    assert kept == json.loads(typed("contamination", *words, "--json"))
    assert kept["benchmarks"]["1-2"]["held"] == 1
    with pytest.raises(UserError, match="nor is it in the data folder"):
        typed("contamination", tmp_path / "text.txt", "--benchmark", tmp_path / "none")


def test_a_benchmark_is_found_by_its_place_in_the_data_folder(tmp_path, monkeypatch):
    """As `clean.benchmarks` of a recipe takes it."""
    asked = " ".join(f"word{number}" for number in range(20))
    for folder in ("one_shot", "zero_shot"):
        (tmp_path / "data" / "lawbench" / folder).mkdir(parents=True)
        (tmp_path / "data" / "lawbench" / folder / "1-1.json").write_text(
            json.dumps([{"question": asked}])
        )
    (tmp_path / "text.txt").write_text(f"Once: {asked}.")
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path / "data"))
    said = typed("contamination", tmp_path / "text.txt", "--benchmark", "lawbench", "--json")
    assert json.loads(said)["benchmarks"]["1-1"]["questions"] == 1
