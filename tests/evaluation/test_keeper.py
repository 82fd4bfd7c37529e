"""Finished tasks are kept whole or not at all."""

from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.evaluation.keeper import LEAVES, SAMPLES, Keeper, key


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "out")
    assert keeper.load("a") is None and keeper.found == 0
    keeper.save("a", {"score": 0.5}, [{"doc": "问"}, {"doc": "x\ny"}])
    assert keeper.load("a") == {"score": 0.5} and keeper.found == 1
    assert (tmp_path / "out" / SAMPLES / "a.jsonl").read_text("utf-8").count("\n") == 2


def test_without_a_folder_nothing_is_kept() -> None:
    Keeper(None).save("a", {}, [])
    assert Keeper(None).load("a") is None


def test_a_task_without_its_samples_is_asked_again(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    keeper.save("a", {}, [])
    (tmp_path / SAMPLES / "a.jsonl").unlink()
    assert keeper.load("a") is None


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    Keeper(tmp_path).save("a", {}, [])
    path = tmp_path / LEAVES / "a.json"
    path.write_text("{half", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        Keeper(tmp_path).load("a")
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert str(caught.value).endswith("; delete it and type it again")


def test_another_part_is_another_key() -> None:
    assert key(model="a", task="b") != key(model="b", task="a") != key(model="ab", task="")
