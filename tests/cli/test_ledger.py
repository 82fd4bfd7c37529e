"""`layerlab ledger` in the terminal: its exit codes, its JSON, and one line where it refuses."""

import json
from pathlib import Path

import pytest

from layerlab.ledger.chain import FILE
from tests.support.forked import python


def ledger(folder: Path, *words: str) -> tuple[int, str, str]:
    ended = python("-m", "layerlab", "ledger", *words, cwd=folder)
    return ended.returncode, ended.stdout, ended.stderr


def logs(folder: Path, name: str, seeds: range, gain: float, arm: str = "wide") -> None:
    rows = [
        f"{each},{seed},100,{3 + 0.1 * seed - (each == arm) * (gain + 0.001 * (seed % 3)):.4f}"
        for each in ("plain", arm)
        for seed in seeds
    ]
    (folder / name).write_text("\n".join(["arm,seed,step,loss", *rows]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert ledger(tmp_path, "new", "own", "--baseline", "plain")[0] == 0
    return tmp_path


def test_the_way_to_an_adoption_and_its_exit_codes(folder):
    code, out, _ = ledger(folder, "add", "own", "wide", "--says", "wider", "--seeds", "1,2,3,4")
    assert code == 0 and "wide is written down (screening) with seeds 1,2,3,4" in out
    logs(folder, "a.csv", range(1, 5), 0.05)
    code, out, _ = ledger(folder, "judge", "own", "wide", "a.csv")
    assert code == 4 and "wide is undecided: it looks better; confirm it" in out
    code, out, _ = ledger(
        folder, "add", "own", "wide", "--confirm", "--seeds", "5,6,7,8,9", "--json"
    )
    assert code == 0 and json.loads(out)["stage"] == "confirmation"
    logs(folder, "b.csv", range(5, 10), 0.05)
    code, out, _ = ledger(folder, "judge", "own", "wide", "b.csv", "--json")
    assert code == 0 and json.loads(out)["verdict"] == "adopted"
    ledger(folder, "add", "own", "bad", "--says", "worse", "--seeds", "1,2,3,4")
    logs(folder, "c.csv", range(1, 5), -0.05, "bad")
    assert ledger(folder, "judge", "own", "bad", "c.csv")[0] == 3
    code, out, _ = ledger(folder, "status", "own")
    assert code == 0 and "2 ideas against plain: 1 adopted, 1 refuted, 0 undecided" in out
    code, out, _ = ledger(folder, "status", "own", "--json")
    found = json.loads(out)
    assert (found["tried"], found["adopted"], found["confirmations"]) == (2, 1, 1)
    assert [one["idea"] for one in found["ideas"]] == ["wide", "bad"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "nowhere"), "there is no ledger in 'nowhere'"),
        (("add", "own", "x", "--says", "y", "--seeds", "1,b"), "--seeds is '1,b'; expected whole"),
        (("judge", "own", "x", "a.csv"), "no idea 'x' is written down in"),
        (("new", "own", "--baseline", "plain"), "own has a ledger already"),
    ],
)
def test_what_is_wrong_is_one_line(folder, words, said):
    logs(folder, "a.csv", range(1, 5), 0.05)
    code, out, err = ledger(folder, *words)
    assert code == 2 and not out and err.startswith("layerlab: ") and err.count("\n") == 1
    assert said in err


def test_a_changed_line_stops_every_command(folder):
    ledger(folder, "add", "own", "wide", "--says", "wider", "--seeds", "1,2,3,4")
    file = folder / "own" / FILE
    file.write_text(file.read_text().replace("wider", "w1der"))
    logs(folder, "a.csv", range(1, 5), 0.05)
    for words in (
        ("status", "own"),
        ("judge", "own", "wide", "a.csv"),
        ("add", "own", "new", "--says", "y", "--seeds", "1,2"),
    ):
        code, _, err = ledger(folder, *words)
        assert code == 2 and "line 2 of own/ledger.jsonl was changed after it was written" in err


@pytest.mark.full
def test_a_table_that_is_refused_ends_with_2_each_time(folder):
    """Threads that read a table aborted a process in which torch had come first."""
    ledger(folder, "add", "own", "wide", "--says", "wider", "--seeds", "1,2")
    (folder / "a.csv").write_text("arm,seed,step,height\nplain,1,10,3\n")
    for _ in range(8):
        code, _, err = ledger(folder, "judge", "own", "wide", "a.csv")
        assert code == 2 and "has no column with a usual name for a loss" in err
