"""Choices among experts: what is counted, and what margins foretell of it."""

import pytest
import torch
from torch import Tensor

from layerlab.numerics.profiles.expert_choices import (
    ChangedChoices,
    ExpertChoices,
    compare_choices,
)

TOKENS, EXPERTS, TAKEN = 4000, 16, 2


def count(values: tuple[Tensor, Tensor], chosen: tuple[Tensor, Tensor]) -> ExpertChoices:
    whole, found = ExpertChoices(), compare_choices(values, chosen)
    whole.add([found], len(values[0]))
    return whole


def draw(noise: float) -> ExpertChoices:
    torch.manual_seed(0)
    first = torch.randn(TOKENS, EXPERTS)
    second = first + noise * torch.randn(TOKENS, EXPERTS)
    chosen = first.topk(TAKEN).indices, second.topk(TAKEN).indices
    return count((first, second), chosen)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_margins_foretell_how_many_choose_otherwise(noise):
    found = draw(noise)
    assert found.total == TOKENS
    # Other pairs than the nearest add to it, the more the larger the noise.
    assert found.expected == pytest.approx(found.changed, rel=0.35)


def test_errors_that_grow_with_the_value_are_those_beside_the_margin():
    torch.manual_seed(0)
    first = torch.randn(TOKENS, 64).mul(2).softmax(-1)
    second = first * (1 + 0.02 * torch.randn(TOKENS, 64))
    chosen = first.topk(TAKEN).indices, second.topk(TAKEN).indices
    found = count((first, second), chosen)
    assert found.changed > 100
    assert found.expected == pytest.approx(found.changed, rel=0.45)


def test_without_a_difference_nothing_changes():
    found = draw(0.0)
    assert found.changed == 0 and found.expected == 0


@pytest.mark.parametrize(
    ("values", "chosen", "name"),
    [
        pytest.param(([3.0, 2.0, 1.0], [2.0, 3.0, 1.0]), ([0, 1], [1, 0]), "changed", id="order"),
        pytest.param(([3.0, 2.0], [2.0, 3.0]), ([0, 1], [1, 0]), "expected", id="all taken"),
        pytest.param(([1.0, 0.5, -torch.inf],) * 2, ([0], [0]), "expected", id="masked out"),
    ],
)
def test_what_is_no_other_choice_is_not_counted(values, chosen, name):
    first, second, own, other = (torch.tensor([row]) for row in (*values, *chosen))
    assert getattr(count((first, second), (own, other)), name) == 0


def layer(*changed: bool, likely: float = 0.5) -> ChangedChoices:
    return ChangedChoices(torch.tensor(changed), torch.full((len(changed),), likely).double())


def test_a_token_is_counted_once_however_many_of_its_layers_change():
    whole = ExpertChoices()
    first = whole.add([layer(True, False, False, True), layer(True, True, False, True)], 4)
    # After the last token nothing is predicted.
    assert first.tolist() == [True, True, False]
    assert (whole.total, whole.changed) == (8, 5)
    assert (whole.tokens, whole.tokens_changed) == (3, 2)
    assert whole.tokens_expected == pytest.approx(3 * (1 - 0.5**2))
    whole.add([layer(False, False), layer(False, True)], 2)
    assert (whole.total, whole.changed) == (12, 6)
    assert (whole.tokens, whole.tokens_changed) == (4, 2)


def test_rows_of_several_choices_a_token_are_found_by_their_axis():
    changed = torch.tensor([[[True, False], [False, False], [False, True]]])
    whole = ExpertChoices()
    assert whole.add([ChangedChoices(changed, changed.double())], 3).tolist() == [True, False]
    assert whole.total == 6


def test_where_experts_choose_tokens_no_share_of_tokens_is_told():
    whole = ExpertChoices()
    assert whole.add([layer(True, False)], 5).tolist() == [False] * 4
    assert [one.name for one in whole.values] == [
        "choices of experts that change",
        "such choices, predicted from the margins of the router",
    ]


def test_a_model_without_experts_tells_nothing_of_them():
    whole = ExpertChoices()
    whole.add([], 5)
    assert whole.values == []
