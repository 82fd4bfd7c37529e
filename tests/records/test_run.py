"""Folders of runs are read as they are, and damaged ones are named."""

import math

import pytest

from layerlab.records.run import RunRecord, read_record
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, record, runs, write

RUN = runs(recipe())[0]


def test_a_run_is_read_back(tmp_path):
    given = record(RUN, 3.5)
    found = read_record(write(tmp_path, given))
    assert found == given
    assert (found.arm, found.seed, found.rate, found.name) == ("llama", 1, 1e-3, RUN.name)
    assert found.finished and found.diverged is None and found.value("nats") == 3.5


def test_a_run_that_goes_on_has_no_result_and_its_last_line_may_be_cut(tmp_path):
    folder = write(tmp_path, RunRecord(manifest=record(RUN, 3.5).manifest, events=()))
    (folder / "events.jsonl").write_text('{"kind":"train","update":1,"loss":5.0}\n{"kind":"tr')
    found = read_record(folder)
    assert found is not None and not found.finished and found.value("nats") is None
    assert [event["update"] for event in found.events] == [1]


def test_a_divergence_is_declared_and_never_inferred():
    given = record(RUN, 3.5)
    unsaid = {**(given.result or {}), "nats": math.nan}
    assert RunRecord(manifest=given.manifest, result=unsaid).diverged is None
    assert record(RUN, 3.5, diverged="NaN in layer 2").diverged == "NaN in layer 2"
    assert record(RUN, None).diverged is None


def test_a_folder_without_a_manifest_has_not_begun(tmp_path):
    assert read_record(tmp_path) is None
    refuses("no folder of a run at", read_record, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("manifest.json", "{", "delete .* and run it again"),
        ("result.json", "[]", "is no table; delete"),
        ("manifest.json", '{"run": "a", "arm": "b"}', "it has no recipe; delete"),
        ("manifest.json", '{"run": "a", "arm": "b", "recipe": 3}', "its recipe is 3: .*; delete"),
        ("result.json", "{}", "it has no schema; delete"),
        ("result.json", "[" * 9999 + "]" * 9999, "nested too deeply"),
        ("events.jsonl", "", "the last evaluation in events.jsonl has None"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, text, said):
    folder = write(tmp_path, record(RUN, 3.5))
    (folder / file).write_text(text)
    told = refuses(said, read_record, folder)
    assert str(folder) in told and file in told


def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path):
    folder = write(tmp_path, record(RUN, 3.5))
    (folder / "events.jsonl").rename(folder / "kept")
    (folder / "events.jsonl").mkdir()
    refuses(r"events.jsonl is a folder; delete .*, run it again", read_record, folder)
    (folder / "manifest.json").unlink()
    refuses(r"has a result and no manifest\.json; delete it, run it", read_record, folder)


def test_halves_are_the_shares_of_even_and_odd_blocks():
    nats, tokens = [1.0, 2.0, 4.0], [8, 4, 1]
    blocks = {"nats": nats, "tokens": tokens}
    given = RunRecord(manifest={}, result={"nats": 20 / 13, "blocks": blocks})
    even, odd = given.halves("nats")
    assert (even, odd) == pytest.approx((12 / 13, 8 / 13))
    one_is_zero = {**blocks, "nats": [0.0, 2.0, 0.0]}
    given = RunRecord(manifest={}, result={"nats": 3.0, "blocks": one_is_zero})
    assert given.halves("nats") == (0.0, 3.0) and given.halves("accuracy") is None
    for result in ({"nats": 3.0}, {"nats": 3.0, "blocks": {**blocks, "nats": [0.0] * 3}}):
        assert RunRecord(manifest={}, result=result).halves("nats") == (1.5, 1.5)
