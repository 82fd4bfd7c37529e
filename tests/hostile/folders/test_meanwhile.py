"""Files that come into a folder while a command works on what is to take its place."""

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.builtin import SAMPLE
from layerlab.records.checkpoint_names import is_checkpoint
from layerlab.system.files import OWN, OnlyOwn, check_folder, write_folder
from tests.hostile.attack import typed
from tests.support.refused import refuses

TEXT = "A row of text that is long enough to matter for all of us who read it here."


def fill(folder: Path) -> None:
    (folder / "text.jsonl").write_text("made")
    (folder / "parts").mkdir()
    (folder / "parts" / "a").write_text("a")


def add(target: Path, name: str) -> Callable[[Path], None]:
    """Return what fills a folder while the user puts a file where it is to go."""

    def work(folder: Path) -> None:
        fill(folder)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("mine")

    return work


@pytest.mark.parametrize(
    ("like", "before"),
    [
        *((None, before) for before in ("none", "empty")),
        *((OnlyOwn(), before) for before in ("none", "empty", "own")),
        *((is_checkpoint, before) for before in ("none", "empty", "own")),
    ],
)
def test_a_file_that_comes_meanwhile_stays(like, before, tmp_path):
    out = tmp_path / "out"
    if before != "none":
        out.mkdir()
    if before == "own":
        write_folder(out, lambda one: (one / "state.json").touch(), "text", like)
    said = r"out was given files while this ran, and they stay; the text is in .*out-2: move one"
    refuses(said, write_folder, out, add(out, "notes.txt"), "text", like)
    assert (out / "notes.txt").read_text() == "mine" and not (out / "text.jsonl").exists()
    assert (tmp_path / "out-2" / "text.jsonl").read_text() == "made"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "out-2"]
    if before == "own":
        assert (out / "state.json").exists()


@pytest.mark.parametrize("before", ["none", "empty", "own"])
def test_what_another_process_wrote_meanwhile_stays_too(before, tmp_path):
    out = tmp_path / "out"
    if before == "empty":
        out.mkdir()
    if before == "own":
        write_folder(out, lambda one: (one / "a").write_text("first"), "text", OnlyOwn())

    def work(folder: Path) -> None:
        write_folder(out, lambda one: (one / "a").write_text("theirs"), "text", OnlyOwn())
        (folder / "a").write_text("mine")

    with pytest.raises(UserError, match=r"the text is in .*out-2: move one of the two"):
        write_folder(out, work, "text", OnlyOwn())
    assert (out / "a").read_text() == "theirs"
    assert (tmp_path / "out-2" / "a").read_text() == "mine"
    write_folder(out, lambda one: (one / "a").write_text("later"), "text", OnlyOwn())
    assert (out / "a").read_text() == "later"


@pytest.mark.parametrize(
    ("work", "words", "what"),
    [
        (
            "layerlab.api.inspect.run_inspection",
            ("inspect", "pre-norm", "--measures=stream", "--samples=1", "--context=16", "-q"),
            "report",
        ),
        (
            "layerlab.tokenization.vocabulary.change.remake",
            (
                "adapt",
                "vocabulary",
                "--tokenizer",
                "llama",
                "--corpus",
                str(SAMPLE),
                "--size=+2",
                "-q",
            ),
            "vocabulary",
        ),
        pytest.param(
            "layerlab.adaptation.embeddings.compare_inits.embed",
            ("adapt", "embed", "llama", "--tokenizer", "llama", "-q"),
            "model",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "layerlab.api.retrofit.rebuild",
            ("retrofit", "llama", "--variant", "as-32"),
            "model",
            marks=pytest.mark.full,
        ),
    ],
)
def test_of_two_commands_at_once_both_results_stay(work, words, what, tmp_path, monkeypatch):
    out = tmp_path / "out"
    given = (*words, "--out", str(out))
    module, name = work.rsplit(".", 1)
    done = getattr(importlib.import_module(module), name)

    def meanwhile(*asked: Any, **more: Any) -> Any:
        monkeypatch.setattr(work, done)
        assert typed(*given).code == 0
        return done(*asked, **more)

    monkeypatch.setattr(work, meanwhile)
    typed(*given).refused(f"out was given files while this ran, and they stay; the {what} is in")
    names = [sorted(one.name for one in (tmp_path / end).iterdir()) for end in ("out", "out-2")]
    assert names[0] == names[1]


def test_the_work_of_a_second_time_has_a_name_too(tmp_path):
    for number in (2, 3):
        with pytest.raises(UserError, match=f"the text is in .*out-{number}: move"):
            write_folder(tmp_path / "out", add(tmp_path / "out", "notes.txt"), "text")
        (tmp_path / "out" / "notes.txt").unlink()


def test_cleaning_deletes_nothing_that_came_meanwhile(tmp_path, monkeypatch):
    from layerlab.data.cleaning import clean

    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text(json.dumps({"text": TEXT}))
    words = ("adapt", "clean", str(rows), "--out", str(out))
    assert typed(*words).code == 0
    begin = clean.limit_text

    def meanwhile(*given):
        (out / "notes.txt").write_text("mine")
        return begin(*given)

    monkeypatch.setattr(clean, "limit_text", meanwhile)
    typed(*words).refused("out was given files while this ran, and they stay; the cleaned text is")
    assert (out / "notes.txt").read_text() == "mine"
    assert (tmp_path / "out-2" / "text.jsonl").is_file()


@pytest.mark.parametrize("name", ["text.jsonl", "parts/a"])
def test_what_the_user_changed_is_no_longer_what_was_written(name, tmp_path):
    out = tmp_path / "out"
    write_folder(out, fill, "text", OnlyOwn())
    write_folder(out, fill, "text", OnlyOwn())
    (out / name).write_text("edited")
    assert OnlyOwn().others(out) == [name]
    refuses("holds something other than a text", check_folder, out, "text", OnlyOwn())
    refuses("holds something other than a text", write_folder, out, fill, "text", OnlyOwn())
    assert (out / name).read_text() == "edited"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_another_kind_of_file_is_no_longer_what_was_written(kind, tmp_path):
    out = tmp_path / "out"
    write_folder(out, lambda one: (one / "a").write_text("made"), "text", OnlyOwn())
    (out / "a").unlink()
    (tmp_path / "b").write_text("made")
    (out / "a").mkdir() if kind == "folder" else (out / "a").symlink_to(tmp_path / "b")
    assert OnlyOwn().others(out) == ["a"]


def test_weights_that_were_trained_on_in_their_place_are_the_users(tmp_path, monkeypatch):
    monkeypatch.setattr("layerlab.system.files.LARGEST", 100)
    out, weights = tmp_path / "out", b"a" * 200
    write_folder(out, lambda one: (one / "a").write_bytes(weights), "model", OnlyOwn())
    (out / "a").write_bytes(b"b" * 200)  # of the same size
    assert OnlyOwn().others(out) == ["a"]
    (out / OWN).write_text(json.dumps({"a": "200 bytes"}))  # as an earlier version kept it
    assert OnlyOwn()(out)
    (out / "a").write_bytes(b"b" * 201)
    assert OnlyOwn().others(out) == ["a"]


@pytest.mark.parametrize("before", [False, True])
def test_two_that_end_in_the_same_moment_both_stay(before, tmp_path, monkeypatch):
    out, rename = tmp_path / "out", Path.rename
    if before:
        write_folder(out, fill, "text", OnlyOwn())

    def meanwhile(self: Path, target: Path) -> Path:
        if target == out and self.name.endswith(".partial") and not out.exists():
            out.mkdir()
            (out / "theirs").write_text("theirs")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", meanwhile)
    with pytest.raises(UserError, match=r"the text is in .*out-2: move one of the two"):
        write_folder(out, fill, "text", OnlyOwn())
    assert [one.name for one in out.iterdir()] == ["theirs"]
    assert (tmp_path / "out-2" / "text.jsonl").read_text() == "made"
    assert len(list(tmp_path.glob("out.*.earlier/text.jsonl"))) == before


def test_a_folder_of_an_earlier_version_is_known_by_its_names(tmp_path):
    (tmp_path / OWN).write_text(json.dumps(["a.txt"]))
    (tmp_path / "a.txt").write_text("whatever it holds")
    assert OnlyOwn()(tmp_path)
    (tmp_path / "b.txt").write_text("mine")
    assert OnlyOwn().others(tmp_path) == ["b.txt"]


@pytest.mark.parametrize("table", ["3", '"a"', '[["a"]]', "[" * 20_000, '{"a.txt": 3}', "{"])
def test_a_forged_table_names_nothing(table, tmp_path):
    (tmp_path / OWN).write_text(table)
    (tmp_path / "a.txt").write_text("mine")
    assert "a.txt" in OnlyOwn().others(tmp_path)


def test_a_killed_swap_leaves_the_earlier_one_under_a_name_that_says_so(tmp_path):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from layerlab.system.files import OnlyOwn, write_folder\n"
        "def fill(folder): (folder / 'a').write_text('made')\n"
        "write_folder(Path(sys.argv[1]), fill, 'text', OnlyOwn())\n"
        "rename = Path.rename\n"
        "def stop(self, target):\n"
        "    if target.name == 'out': os.kill(os.getpid(), 9)\n"
        "    return rename(self, target)\n"
        "Path.rename = stop\n"
        "write_folder(Path(sys.argv[1]), fill, 'text', OnlyOwn())\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, tmp_path / "out"], check=False)
    assert ended.returncode == -signal.SIGKILL
    (earlier,) = (one for one in tmp_path.iterdir() if not one.name.startswith("."))
    assert earlier.name.startswith("out.") and earlier.name.endswith(".earlier")
    assert (earlier / "a").read_text() == "made"


@pytest.mark.full
@pytest.mark.parametrize("name", ["boolq/my_own_task.yaml", "boolq/notes/n.txt", "edited"])
def test_tasks_that_were_exported_and_changed_stay(name, tmp_path):
    words = ("evaluate", "--export-tasks", str(tmp_path / "tasks"))
    assert typed(*words).code == 0
    if name == "edited":
        file = min((tmp_path / "tasks" / "boolq").glob("*.yaml"))
        file.write_text(text := f"{file.read_text()}# my edit\n")
    else:
        file = tmp_path / "tasks" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text := "mine")
    typed(*words).refused("holds something other than a folder of tasks; name a new or an empty")
    assert file.read_text() == text


def test_the_page_of_a_vocabulary_is_one_of_its_files(tmp_path):
    out = tmp_path / "out"
    words = ("adapt", "vocabulary", "--tokenizer", "llama", "--corpus", str(SAMPLE))
    words = (*words, "--size", "+2", "--out", str(out), "-q")
    assert typed(*words).code == typed(*words).code == 0
    assert "proof.html" in json.loads((out / OWN).read_text())
    (out / "proof.html").write_text("mine")
    typed(*words).refused("holds something other than a")
    assert (out / "proof.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        pytest.param(
            "layerlab.api.precision.precision",
            ("precision", "pre-norm", "--samples", "1", "--context", "16", "--budget", "0.9", "-q"),
            marks=pytest.mark.full,
        ),
        (
            "layerlab.latency.measure.measure_latency",
            *[
                (
                    "bench",
                    "latency",
                    "llama:width=16,layers=1,heads=2,vocab=64",
                    "--repetitions=1",
                    "-q",
                )
            ],
        ),
        (
            "layerlab.data.cleaning.contamination.contamination",
            ("adapt", "contamination", str(SAMPLE), "--benchmark", "QUESTIONS"),
        ),
    ],
)
def test_a_file_that_comes_where_a_result_goes_stays(work, words, tmp_path, monkeypatch):
    out, questions = tmp_path / "out.json", tmp_path / "q.jsonl"
    questions.write_text(json.dumps({"question": TEXT, "answer": "x"}) + "\n")
    module, name = work.rsplit(".", 1)
    done = getattr(importlib.import_module(module), name)

    def meanwhile(*given: Any, **more: Any) -> Any:
        out.write_text("mine")
        return done(*given, **more)

    monkeypatch.setattr(work, meanwhile)
    given = [str(questions) if one == "QUESTIONS" else one for one in words]
    typed(*given, "--out", str(out)).refused("out.json came there while this ran, and stays; what")
    assert out.read_text() == "mine" and len((tmp_path / "out-2.json").read_text()) > 20
