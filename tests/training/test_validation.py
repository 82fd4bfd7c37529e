"""Held-out text that does not fit into memory is read in smaller batches, to the same score."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import chunking
from layerlab.console.progress import NullProgress
from layerlab.corpus.batches import IGNORED
from layerlab.records.events import read
from layerlab.training import trainer
from layerlab.training.validation import TooLarge, ValidationResult, evaluate
from tests.support.refused import refuses
from tests.training.support import killed

pytestmark = pytest.mark.usefixtures("cached")


class Room:
    """A hook on a real model that fails, as a full device does, for batches it has no room for."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __call__(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not model.training and len(kwargs["input_ids"]) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def built_with(room: Room) -> Callable[..., Any]:
    plain = trainer.build_model

    def built(*arguments: Any) -> Any:
        model = plain(*arguments)
        model.register_forward_pre_hook(room, with_kwargs=True)
        return model

    return built


def run_of(place: Path) -> Any:
    settings = {
        "train.max_steps": 4,
        "evaluate.eval_steps": 2,
        "evaluate.batch_size": 4,
        "run.save_steps": 3,
    }
    return killed.run_of(killed.recipe(place, **settings))


def course(folder: Path) -> list[float]:
    return [one["nats"] for one in read(folder) if one["kind"] == "evaluation"]


@pytest.mark.full
def test_memory_that_runs_out_halves_the_batch_once_and_leaves_the_score(tmp_path, monkeypatch):
    run = run_of(tmp_path)
    whole = trainer.train_run(run, tmp_path / "whole")
    monkeypatch.setattr(trainer, "build_model", built_with(Room(1)))
    small = trainer.train_run(run, tmp_path / "small")
    told = [text for text in killed.notes(tmp_path / "small") if "out of memory" in text]
    assert [text.rsplit(" ", 1)[1] for text in told] == ["2", "1"]
    assert course(tmp_path / "small") == pytest.approx(course(tmp_path / "whole"), rel=1e-6)
    # Training has not been touched.
    assert small["weights"] == whole["weights"]


@pytest.mark.full
def test_a_resumed_run_keeps_to_the_smaller_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "build_model", built_with(Room(2)))
    run = run_of(tmp_path)
    training = trainer.Trainer(run, tmp_path / "run", NullProgress())
    training.start()
    training.advance()
    training.checkpoint()
    again = trainer.Trainer(run, tmp_path / "run", NullProgress())
    assert training.reader.size == again.reader.size == 2


@pytest.mark.full
def test_a_block_that_does_not_fit_alone_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "build_model", built_with(Room(0)))
    said = "does not fit into memory 1 blocks at a time; write a"
    refuses(said, trainer.train_run, run_of(tmp_path), tmp_path / "run")


def test_another_process_that_lacks_memory_is_heard_of(tmp_path):
    """What all found is added up, and with it whether one of them found nothing."""
    run = run_of(tmp_path)
    training = trainer.Trainer(run, tmp_path / "run", NullProgress())

    def reduce(sums: Tensor) -> Tensor:
        found = sums.clone()
        found[-1] += 1
        return found

    with pytest.raises(TooLarge):
        evaluate(training.model, training.eval_blocks, batch=2, reduce=reduce)


def test_the_loss_of_the_text_is_that_of_its_blocks(tmp_path):
    run = run_of(tmp_path)
    training = trainer.Trainer(run, tmp_path / "run", NullProgress())
    score = evaluate(training.model, training.eval_blocks, batch=2)
    nats, tokens = (torch.tensor(score.blocks[name]).double() for name in ("nats", "tokens"))
    assert (
        len(nats) == len(training.eval_blocks) and int(tokens.sum()) == training.eval_blocks.tokens
    )
    assert float((nats * tokens).sum() / tokens.sum()) == pytest.approx(score.nats, abs=1e-6)
    again = evaluate(training.model, training.eval_blocks, batch=3)
    assert again.blocks["nats"] == pytest.approx(score.blocks["nats"], abs=1e-5)


def test_a_score_is_that_of_all_logits_at_once(tmp_path):
    training = trainer.Trainer(run_of(tmp_path), tmp_path / "run", NullProgress())
    training.start()
    while not training.done:
        training.advance()
    score, held = training.score, training.eval_blocks
    (rows,) = held.batches(len(held))
    asked = rows.targets != IGNORED
    with torch.no_grad():
        logits = training.model.eval()(rows.inputs, position_ids=rows.positions).logits[asked]
    likely, wanted = logits.double().log_softmax(-1), rows.targets[asked]
    nats = -float(likely[range(len(wanted)), wanted].sum())
    assert score.accuracy == float((likely.argmax(-1) == wanted).double().mean()) > 0
    assert score.nats == pytest.approx(nats / len(wanted), rel=1e-6)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / held.bytes, rel=1e-6)


def test_the_loss_of_a_few_tokens_at_a_time_has_the_same_bits(tmp_path, monkeypatch):
    training = trainer.Trainer(run_of(tmp_path), tmp_path / "run", NullProgress())

    def score() -> ValidationResult:
        return evaluate(training.model, training.eval_blocks, batch=3)

    whole = score()
    monkeypatch.setattr(chunking, "PIECE", 1)
    assert score() == whole
