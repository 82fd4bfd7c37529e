"""A result is believed where it fits its run, and nowhere else."""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.records import result as stored
from layerlab.records.result import read_result
from layerlab.training.checkpoints.result import write_result
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, record, runs, write

RUN = runs(recipe())[0]
BLOCKS = {"nats": [3.0, 4.0], "tokens": [16, 16]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run with the digest that today's version writes."""
    one = record(RUN, 3.5, schema=2, blocks=BLOCKS)
    place = write(tmp_path, one)
    write_result(place, one.result)
    return place


def changed(folder: Path, change: Any) -> None:
    file = folder / "result.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def test_what_was_written_is_read(folder, tmp_path):
    found = read_result(folder)
    assert found is not None and found["nats"] == 3.5 and len(found["digest"]) == 64
    assert read_result(tmp_path) is None
    # As git, or Windows, may hand it on.
    for name in ("manifest.json", "events.jsonl"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content.replace(b"\n", b"\r\n"))
    assert read_result(folder) == found


def test_a_run_that_diverged_says_so(tmp_path):
    one = record(RUN, 3.5, diverged="the loss is nan at update 3")
    assert read_result(write(tmp_path, one))["nats"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {**dict.fromkeys(("nats", "bits_per_byte", "accuracy")), "diverged": "loss is nan"},
            "it declares a divergence that events.jsonl does not tell of",
        ),
        ({"nats": 3.4}, "its nats is 3.4, and the last evaluation in events.jsonl has 3.5"),
        ({"parameters": 7}, "its parameters are 7, and manifest.json has 1000"),
        ({"tokens": 7}, "its tokens is 7, and the last evaluation in events.jsonl has 1920"),
        ({"flops": 7.0}, "its flops is 7.0, and the last evaluation in events.jsonl has"),
    ],
)
def test_without_a_digest_it_is_held_against_what_lies_beside_it(change, said, tmp_path):
    """As results of 0.1 are."""
    folder = write(tmp_path, record(RUN, 3.5))
    file = folder / "result.json"
    result = json.loads(file.read_text())
    plain = {name: value for name, value in result.items() if name != "digest"} | {"schema": 1}
    file.write_text(json.dumps(plain))
    assert read_result(folder) == plain
    file.write_text(json.dumps({**plain, **change}))
    refuses(re.escape(said), read_result, folder)


def test_the_first_loss_is_that_of_the_journal(tmp_path):
    folder = write(tmp_path, record(RUN, 3.5))
    file, journal = folder / "result.json", folder / "events.jsonl"
    result = json.loads(file.read_text())
    result = {**result, "schema": 1, "digest": None}
    first = {"kind": "evaluation", "update": 0, "nats": 5.0}
    journal.write_text(json.dumps(first) + "\n" + journal.read_text())
    file.write_text(json.dumps(result))
    refuses(r"its step0_nats is 5\.7, and the first .* has 5\.0", read_result, folder)


@pytest.mark.parametrize("name", ["result.json", "manifest.json", "events.jsonl"])
def test_a_pipe_in_a_run_s_folder_is_refused(name, tmp_path):
    folder = write(tmp_path, record(RUN, 3.5))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refuses("is a pipe; expected a file", read_result, folder)


@pytest.mark.parametrize("name", ["result.json", "manifest.json", "events.jsonl"])
def test_whatever_is_changed_is_noticed(name, folder):
    file = folder / name
    before = file.read_text()
    for change in (
        before.replace("3.5", "3.4") if "3.5" in before else before.replace("d1", "d2"),
        before.replace("1", "2"),
        before.replace("llama", "gpt2") if "llama" in before else before.replace("640", "641"),
    ):
        assert change != before
        file.write_text(change)
        refuses(r"is not believed: .*; delete .* and run it again", read_result, folder)
    file.write_text(before)
    assert read_result(folder) is not None


def test_garbage_behind_the_journal_is_noticed_without_a_digest(tmp_path):
    place = write(tmp_path, record(RUN, 3.5))
    assert read_result(place) is not None
    with (place / "events.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    refuses(r"line 7 of events\.jsonl is no event", read_result, place)


@pytest.mark.parametrize("value", ["3", 1.1e30, -1.1e30, [1]])
@pytest.mark.parametrize("name", ["seconds", "loss"])
def test_what_is_no_count_in_a_journal_is_noticed_without_a_digest(name, value, tmp_path):
    place = write(tmp_path, record(RUN, 3.5))
    with (place / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "update": 30, name: value}) + "\n")
    refuses(rf"line 7 of events\.jsonl: {name} is ", read_result, place)


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n"])).map(b"".join))
def test_the_hash_of_a_text_is_that_of_its_lines_whatever_their_ends(content):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "text")
        file.write_bytes(content)
        expected = hashlib.sha256(content.replace(b"\r\n", b"\n")).digest()
        assert stored._hash(file) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nats": None}, "it has neither a loss nor a divergence that is declared"),
        ({"diverged": "no"}, "it has neither a loss nor a divergence that is declared, or both"),
        ({"nats": float("nan")}, "its nats is nan: Input should be a finite number"),
        ({"nats": "3.5"}, "its nats is '3.5': Input should be a valid number"),
        ({"nats": True}, "its nats is True"),
        ({"seed": -1}, "its seed is -1"),
        ({"rate": 0}, "its rate is 0"),
        ({"rate": 1.1e30}, "its rate is 1.1e+30: Input should be less than"),
        ({"schema": 0}, "its schema is 0"),
        ({"run": "another"}, "its run is 'another', which is not manifest.json's"),
        ({"arm": "another"}, "its arm is 'another', which is not manifest.json's"),
        ({"digest": None}, "it has no digest"),
        ({"schema": 3}, "its schema is 3"),
        ({"blocks": []}, "its blocks is []"),
        ({"blocks": {"nats": [1.0]}}, "it has no blocks.tokens"),
        ({"blocks": {"nats": [1.0], "tokens": [2, 3]}}, "1 nats and 2 tokens"),
        ({"blocks": {"nats": [float("nan")], "tokens": [2]}}, "its blocks.nats.0 is nan"),
        ({"blocks": {"nats": [1.0], "tokens": [0]}}, "its blocks.tokens.0 is 0"),
        ({"blocks": {"nats": [], "tokens": []}}, "its blocks.nats is []"),
        ({"updates": 10**5000}, "4300 digits"),
    ],
)
def test_what_does_not_fit_is_one_line(change, said, folder):
    if change.get("updates"):
        file = folder / "result.json"
        file.write_text(file.read_text().replace('"updates": 30', f'"updates": {"9" * 5000}'))
    else:
        changed(folder, lambda found: {**found, **change})
    assert len(refuses(re.escape(said), read_result, folder)) < 900


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one),
    max_leaves=5,
)


@given(st.data())
def test_no_value_of_any_field_is_a_traceback(data):
    """And none that changes what a verdict stands on is believed."""
    with tempfile.TemporaryDirectory() as place:
        one = record(RUN, 3.5, schema=2, blocks=BLOCKS)
        folder = write(Path(place), one)
        whole = write_result(folder, one.result)
        name = data.draw(st.sampled_from(sorted(whole)))
        value = data.draw(VALUES.filter(lambda found: found != whole[name]))
        changed(folder, lambda found: {**found, name: value})
        if name == "digest" and value is None:
            return
        with pytest.raises(UserError):
            read_result(folder)
