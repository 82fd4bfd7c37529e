"""Logits in aligned rows are the model's own, and the model is as it was."""

import pytest
import torch
from torch import nn

from layerlab.observe.tracing.aligned_head import Room, align_head, multiply_aligned
from tests.families.recipe import build as family

IDS = torch.arange(3, 27)[None]


@pytest.mark.parametrize("bias", [False, True])
def test_the_products_are_those_of_the_layer_in_rows_of_whole_cache_lines(bias):
    torch.manual_seed(0)
    head, features = nn.Linear(48, 1001, bias=bias), torch.randn(2, 40, 48)
    with torch.no_grad():
        found, own = multiply_aligned(features, head, Room()), head(features)
    torch.testing.assert_close(found, own, rtol=1e-5, atol=1e-6)
    assert found.shape == own.shape
    assert found.stride() == (40 * 1008, 1008, 1) != own.stride()


@torch.no_grad()
def test_logits_of_a_room_are_written_over_by_the_next():
    head, room = nn.Linear(8, 5), Room()
    first = multiply_aligned(torch.randn(3, 8), head, room)
    kept, features = first.clone(), torch.randn(2, 8)
    second = multiply_aligned(features, head, room)
    torch.testing.assert_close(second, head(features))
    assert second.data_ptr() == first.data_ptr() and torch.equal(first[2], kept[2])
    larger = multiply_aligned(torch.randn(9, 8), head, room)
    assert larger.shape == (9, 5) and larger.data_ptr() != first.data_ptr()


def test_gradients_and_other_types_go_the_usual_way():
    head = nn.Linear(8, 5)
    multiply_aligned(torch.randn(3, 8), head, Room()).sum().backward()
    assert head.weight.grad is not None
    with torch.no_grad():
        found = multiply_aligned(torch.randn(3, 8).double(), head.double(), Room())
    assert found.dtype == torch.float64 and found.is_contiguous()


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mamba"])
@torch.no_grad()
def test_a_model_gives_its_own_logits_and_keeps_its_head(name):
    model = family(name)
    head, own = model.get_output_embeddings(), model(input_ids=IDS).logits
    with pytest.raises(ZeroDivisionError), align_head(model):
        torch.testing.assert_close(model(input_ids=IDS).logits, own, rtol=1e-6, atol=1e-6)
        assert "forward" in vars(head)
        _ = 1 / 0
    assert "forward" not in vars(head) and model.get_output_embeddings() is head


def test_a_head_that_somebody_changed_stays_as_it_is():
    model = family("gpt2")
    head = model.get_output_embeddings()

    def mine(features: torch.Tensor) -> torch.Tensor:
        return features

    head.forward = mine
    with align_head(model):
        assert head.forward is mine
    assert head.forward is mine
