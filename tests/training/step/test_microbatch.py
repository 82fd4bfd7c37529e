"""A batch that does not fit: recognized by real errors, taken in pieces, the same update."""

import os
import re

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from layerlab import build
from layerlab.console.progress import NullProgress
from layerlab.corpus.batches import Batch
from layerlab.experiments.executors.process import ranks
from layerlab.experiments.executors.slots import RunSlot
from layerlab.model.loss import causal_loss
from layerlab.records.result import read_result
from layerlab.system.hardware import is_out_of_memory
from layerlab.training import trainer
from layerlab.training.run_spec import write_run
from layerlab.training.step.microbatch import MicroBatcher
from tests.support.forked import Forked
from tests.support.refused import refusal, refuses
from tests.training.support import killed

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 16}


def batch(rows: int = 7) -> Batch:
    """Rows of which some predict fewer tokens than others."""
    tokens = torch.randint(0, 64, (rows, 17), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[2, 3:] = -100
    return Batch(tokens[:, :-1], targets)


def test_a_cpu_that_runs_out_is_recognized():
    with pytest.raises(RuntimeError) as error:
        torch.empty(10**15)
    assert is_out_of_memory(error.value)
    with pytest.raises(MemoryError) as numpy:
        np.empty(10**16)
    assert is_out_of_memory(numpy.value)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 32.00 GiB total capacity)",
        "MPS backend out of memory (MPS allocated: 9.00 GB)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_devices_say_it_in_words(text):
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(ValueError(text))


def test_other_errors_are_not_taken_for_it():
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("anything"))


def test_pieces_are_all_rows_in_order():
    whole = batch()
    for size in (1, 2, 3, 7, 9, None):
        pieces = list(MicroBatcher(7, size).pieces(whole))
        assert torch.equal(torch.cat([piece.inputs for _, piece in pieces]), whole.inputs)
        assert [first for first, _ in pieces] == list(range(0, 7, size or 7))
        assert max(len(piece) for _, piece in pieces) == min(size or 7, 7)


@pytest.mark.full
def test_halving_rounds_up_and_ends_at_one_sequence():
    split, sizes = MicroBatcher(7), []
    while split.size > 1:
        note = split.halve()
        sizes.append(split.size)
        assert re.search(
            rf"each batch of 7 sequences is now taken in pieces of {split.size},", note
        )
    assert sizes == [4, 2, 1]
    refuses("not even one sequence of a batch fits into memory", split.halve)


def gradients(
    model: PreTrainedModel, split: MicroBatcher, rows: Batch
) -> tuple[list[int], list[float]]:
    """Rows of each pass and their losses; gradients are left in the model."""
    passes, losses = [], []
    count = (rows.targets != -100).sum()
    for _, piece in split.pieces(rows):
        logits = model(input_ids=piece.inputs).logits
        loss = causal_loss(logits, piece.targets, 64, count, shift_labels=piece.targets)
        loss.backward()
        passes.append(len(piece))
        losses.append(loss.item())
    return passes, losses


def test_pieces_give_the_gradient_of_the_whole_also_where_they_are_unequal():
    rows, model = batch(), build("llama", **SIZES)
    (whole,) = gradients(model, MicroBatcher(7), rows)[1]
    wanted = {name: one.grad.double() for name, one in model.named_parameters()}
    for size in (1, 2, 3, 4):
        model.zero_grad()
        passes, losses = gradients(model, MicroBatcher(7, size), rows)
        assert sum(passes) == 7
        assert sum(losses) == pytest.approx(whole, rel=1e-6)
        for name, one in model.named_parameters():
            error = (one.grad - wanted[name]).norm() / wanted[name].norm()
            assert error < 1e-5, name


def test_moments_are_there_before_the_first_batch(tmp_path, cache):
    """What runs out of memory later does so in a pass, which can be taken in pieces."""
    run = killed.run_of(killed.recipe(tmp_path))
    training = trainer.Trainer(run, tmp_path / "run", NullProgress())
    moments = [training.optimizer.state[one] for one in training.model.parameters()]
    assert training.update == 0
    assert all({"step", "exp_avg", "exp_avg_sq"} == one.keys() for one in moments)


def test_memory_that_runs_out_anywhere_else_is_told_in_a_line(tmp_path, monkeypatch, cache):

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    monkeypatch.setattr(torch.optim.AdamW, "step", full)
    said = refusal(trainer.train_run, killed.run_of(killed.recipe(tmp_path)), tmp_path / "run")
    assert said.startswith("out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.); write")
    assert "train.micro_batch_size, evaluate.batch_size, data.block_size" in said


SHORT = """
import os, sys
from pathlib import Path
import torch
from layerlab.training import trainer as loop
from layerlab.training.run_spec import read_run

built, second = loop.build_model, os.environ["RANK"] == "1"

def small(*arguments):
    model = built(*arguments)
    def full(_, args, kwargs):
        if second and model.training and len(kwargs["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
    model.register_forward_pre_hook(full, with_kwargs=True)
    return model

loop.build_model = small
folder = Path(sys.argv[1])
loop.train_run(read_run(folder), folder)
torch.distributed.destroy_process_group()
"""


@pytest.mark.full
def test_one_process_of_two_that_lacks_memory_makes_both_take_smaller_pieces(tmp_path, cache):
    changes = {"run.num_processes": 2, "train.max_steps": 3, "train.batch_size": 8}
    write_run(killed.run_of(killed.recipe(tmp_path, **changes)), tmp_path / "run")
    places = [{**os.environ, **RunSlot(threads=1).environment(), **rank} for rank in ranks(2)]
    for one in [Forked("-c", SHORT, tmp_path / "run", env=place) for place in places]:
        done = one.wait(timeout=60)
        assert done.returncode == 0, done.stderr[-4000:]
    result = read_result(tmp_path / "run")
    assert result is not None and result["micro_batch"] == 1
