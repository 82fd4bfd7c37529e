"""A stage goes on from its own checkpoints alone, and with the journal that they rely on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from layerlab import UserError
from layerlab.adaptation.pretraining.result import PretrainingResult
from layerlab.adaptation.trainer.resume import hash_plan, newest_checkpoint
from layerlab.records.file_digests import seal_folder
from tests.adaptation.pretraining.test_train import run, texts
from tests.adaptation.small import llama
from tests.support.mounted import room
from tests.support.refused import refuses

__all__ = ["texts"]


class End(Exception):
    """The power that fails."""


def stop(said: str, share: float) -> None:
    if said.startswith("update 6 of"):
        raise End


@pytest.fixture(scope="module")
def half(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stage that ended in its sixth update, with checkpoints of 2 and 4."""
    out = tmp_path_factory.mktemp("half") / "out"
    with pytest.raises(End):
        run(texts, out, save_steps=2, progress=stop)
    return out


@pytest.fixture
def out(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "out"))


def on(texts: Path, out: Path, **options: Any) -> PretrainingResult:
    return run(texts, out, save_steps=2, **options)


def kept(out: Path) -> list[str]:
    return sorted(one.name for one in out.glob("checkpoint-*"))


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "seed": lambda: {"seed": 1},
    "rate": lambda: {"learning_rate": 1e-4},
    "base": lambda: {"model": llama(seed=1)},
}


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_and_stays(texts, half, tmp_path, name):
    """Its weights have the same sizes: by them alone, nobody could tell."""
    other = tmp_path / "other"
    with pytest.raises(End):
        on(texts, other, progress=stop, **OTHERS[name]())
    for one in kept(other):
        shutil.rmtree(other / one)
        shutil.copytree(half / one, other / one)
    with pytest.raises(UserError, match="checkpoint-4 is of another run, with another plan") as no:
        on(texts, other, **OTHERS[name]())
    assert str(no.value).endswith("move it away, and the same call does without it")
    assert kept(other) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.full
def test_a_journal_that_was_changed_is_no_checkpoints(texts, out):
    file = out / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    count = json.loads((out / "checkpoint-4" / "trainer_state.json").read_text())
    late = count["stateful_callbacks"]["Curves"]["attributes"]["events"]
    lines[late - 1] = lines[late - 1].replace('"update":', '"update":1')
    file.write_text("".join(lines))
    found, notes = newest_checkpoint(out)
    assert found == str(out / "checkpoint-2")
    assert notes == [
        f"checkpoint-4 cannot be used: one of the {late} events in events.jsonl that it relies on "
        "was changed; it was passed over"
    ]
    file.write_text(lines[0])
    refuses(r"no checkpoint in .* can be used \(checkpoint-2: 1 of the", on, texts, out)
    assert kept(out) == ["checkpoint-2", "checkpoint-4"] and file.read_text() == lines[0]


def test_a_checkpoint_of_an_earlier_version_is_believed_with_a_note(texts, out):
    for one in kept(out):
        file = out / one / "trainer_state.json"
        state = json.loads(file.read_text())
        del state["stateful_callbacks"]["Curves"]["attributes"]["journal"]
        file.write_text(json.dumps(state))
        seal_folder(out / one)
    note = "checkpoint-4 is of an earlier version, which did not keep what run it is of: it is bel"
    assert any(one.startswith(note) for one in on(texts, out).notes)


def test_a_plan_is_known_by_all_that_it_says(tmp_path):
    for place, plan in (("a", {"seed": 0}), ("b", {"seed": 0, "beginning": {"model": "x"}})):
        (tmp_path / place).mkdir()
        (tmp_path / place / "plan.json").write_text(json.dumps(plan))
    assert hash_plan(tmp_path / "a") != hash_plan(tmp_path / "b")
    for content in ("[1]", "{"):
        (tmp_path / "a" / "plan.json").write_text(content)
        refuses(r"cannot read .*plan.json: .*; remove .*, or name ano", hash_plan, tmp_path / "a")


@pytest.mark.full
def test_hard_batches_of_another_run_are_refused(texts, tmp_path):
    """What is drawn by another base's losses is another choice."""
    section = {"resample_fraction": 0.5}
    for name, seed in (("one", 0), ("other", 1)):
        with pytest.raises(End):
            run(texts, tmp_path / name, seed=seed, section=section, progress=begin)
    shutil.copy(tmp_path / "one" / "batches.json", tmp_path / "other" / "batches.json")
    with pytest.raises(
        UserError, match=r"cannot read .*batches.json: it is of another run; remove"
    ):
        run(texts, tmp_path / "other", seed=1, section=section)


def begin(said: str, share: float) -> None:
    if said.startswith("update"):
        raise End


@pytest.mark.full
def test_a_disk_that_fills_in_a_checkpoint_is_one_line_and_loses_nothing(texts, half, tmp_path):
    """torch's own writer keeps no number of the system's error: a limit of the shell stops it."""
    weights, moments = (
        (half / "checkpoint-2" / name).stat().st_size
        for name in ("model.safetensors", "optimizer.pt")
    )
    with room((weights + moments) // 2):
        said = r"cannot write .*out: no more could be written, for want of room or by a limit"
        refuses(said, on, texts, tmp_path / "out")
    whole = on(texts, tmp_path / "other")
    assert on(texts, tmp_path / "out").after == whole.after


@pytest.mark.parametrize("own", [{"tokens": 64}, {"tokens": 128, "resample_fraction": 0.5}])
def test_a_single_update_learns_although_its_rate_is_to_rise(own, texts, tmp_path):
    """The first of several has a rate of 0; of one, nothing would have been learned."""
    model = llama()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    told = {**own, "warmup_ratio": 0.05, "lr_scheduler_type": "cosine"}
    done = run(texts, tmp_path / "out", model=model, section=told)
    assert done.updates == 1
    after = model.state_dict()
    assert any(not torch.equal(one, after[name]) for name, one in before.items())
