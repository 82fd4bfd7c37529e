"""A batch that does not fit: recognised by real errors, taken in pieces, the same update."""

import re

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from layerlab import UserError, build
from layerlab.model.loss import causal_loss
from layerlab.training.batch import Batch
from layerlab.training.fault import Split, is_out_of_memory

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 16}


def batch(rows: int = 7) -> Batch:
    """Rows of which some predict fewer tokens than others."""
    tokens = torch.randint(0, 64, (rows, 17), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[2, 3:] = -100
    return Batch(tokens[:, :-1], targets)


def test_a_cpu_that_runs_out_is_recognised() -> None:
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
def test_devices_say_it_in_words(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(ValueError(text))


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("anything"))


def test_pieces_are_all_rows_in_order() -> None:
    whole = batch()
    for size in (1, 2, 3, 7, 9, None):
        pieces = list(Split(7, size).pieces(whole))
        assert torch.equal(torch.cat([piece.inputs for _, piece in pieces]), whole.inputs)
        assert [first for first, _ in pieces] == list(range(0, 7, size or 7))
        assert max(len(piece) for _, piece in pieces) == min(size or 7, 7)


def test_halving_rounds_up_and_ends_at_one_sequence() -> None:
    split, sizes = Split(7), []
    while split.size > 1:
        note = split.halved()
        sizes.append(split.size)
        assert re.search(
            rf"each batch of 7 sequences is now taken in pieces of {split.size},", note
        )
    assert sizes == [4, 2, 1]
    with pytest.raises(UserError, match="not even one sequence of a batch fits into memory"):
        split.halved()


def gradients(model: PreTrainedModel, split: Split, rows: Batch) -> tuple[list[int], list[float]]:
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


def test_pieces_give_the_gradient_of_the_whole_also_where_they_are_unequal() -> None:
    rows, model = batch(), build("llama", **SIZES)
    (whole,) = gradients(model, Split(7), rows)[1]
    wanted = {name: one.grad.double() for name, one in model.named_parameters()}
    for size in (1, 2, 3, 4):
        model.zero_grad()
        passes, losses = gradients(model, Split(7, size), rows)
        assert sum(passes) == 7
        assert sum(losses) == pytest.approx(whole, rel=1e-6)
        for name, one in model.named_parameters():
            error = (one.grad - wanted[name]).norm() / wanted[name].norm()
            assert error < 1e-5, name
