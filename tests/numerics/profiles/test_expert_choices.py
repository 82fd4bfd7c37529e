"""Choices among experts: what is counted, and what margins foretell of it."""

import pytest
import torch

from layerlab.numerics.profiles.expert_choices import ExpertChoices, compare_choices

TOKENS, EXPERTS, TAKEN = 4000, 16, 2


def draw(noise: float) -> ExpertChoices:
    torch.manual_seed(0)
    first = torch.randn(TOKENS, EXPERTS)
    second = first + noise * torch.randn(TOKENS, EXPERTS)
    chosen = first.topk(TAKEN).indices, second.topk(TAKEN).indices
    return compare_choices((first, second), chosen)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_margins_foretell_how_many_choose_otherwise(noise: float) -> None:
    found = draw(noise)
    assert found.total == TOKENS
    # Other pairs than the nearest add to it, the more the larger the noise.
    assert found.expected == pytest.approx(found.changed, rel=0.35)


def test_errors_that_grow_with_the_value_are_those_beside_the_margin() -> None:
    torch.manual_seed(0)
    first = torch.randn(TOKENS, 64).mul(2).softmax(-1)
    second = first * (1 + 0.02 * torch.randn(TOKENS, 64))
    chosen = first.topk(TAKEN).indices, second.topk(TAKEN).indices
    found = compare_choices((first, second), chosen)
    assert found.changed > 100
    assert found.expected == pytest.approx(found.changed, rel=0.45)


def test_without_a_difference_nothing_changes() -> None:
    found = draw(0.0)
    assert found.changed == 0 and found.expected == 0


def test_the_same_experts_in_another_order_are_the_same() -> None:
    values = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[2.0, 3.0, 1.0]])
    found = compare_choices(values, (torch.tensor([[0, 1]]), torch.tensor([[1, 0]])))
    assert found.changed == 0


def test_who_takes_all_chooses_nothing() -> None:
    values = torch.tensor([[3.0, 2.0]]), torch.tensor([[2.0, 3.0]])
    found = compare_choices(values, (torch.tensor([[0, 1]]), torch.tensor([[1, 0]])))
    assert found.expected == 0


def test_what_is_masked_out_is_no_error() -> None:
    gone = float("-inf")
    values = torch.tensor([[1.0, 0.5, gone]]), torch.tensor([[1.0, 0.5, gone]])
    found = compare_choices(values, (torch.tensor([[0]]), torch.tensor([[0]])))
    assert found.expected == 0


def test_choices_are_added_up() -> None:
    whole = ExpertChoices()
    for _ in range(2):
        whole.add(ExpertChoices(total=3, changed=1, expected=0.5))
    assert whole == ExpertChoices(total=6, changed=2, expected=1.0)
