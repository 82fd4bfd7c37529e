"""Mistakes with texts are found in what a reader of them makes, which sums up what came before."""

from collections.abc import Callable, Sequence
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from layerlab.numerics.recorded.explain import _find_token
from layerlab.numerics.recorded.mistakes import (
    RecordedTexts,
    _find_positions,
    try_beginning,
    try_context,
    try_shifts,
    try_zeros,
    turn,
)
from layerlab.numerics.recorded.recorded_gap import Cause

BEGINNING, PAD = 1, 2
GONE = torch.tensor([nan], dtype=torch.float64)


def read(pieces: Sequence[Tensor]) -> list[Tensor]:
    """Numbers of all tokens but the first, of which each depends on all before it."""
    return [
        ((ids.double() + 1).sqrt() * torch.arange(1, len(ids) + 1)).cumsum(0)[1:] for ids in pieces
    ]


def text(*ids: int) -> Tensor:
    return torch.tensor(ids)


def hold(pieces: list[Tensor], values: list[Tensor]) -> RecordedTexts:
    return RecordedTexts(values, read(pieces), pieces, read)


def best(causes: list[Cause]) -> tuple[str, float]:
    return min((one.left, one.name) for one in causes)[::-1]


def test_a_mistake_is_measured_on_the_tokens_that_it_tells_of():
    values = [torch.tensor([1.0, 5.0, nan]), torch.tensor([2.0])]
    exact = [torch.tensor([0.0, 1.0, 9.0]), torch.tensor([0.0])]
    held = RecordedTexts(values, exact, [], read)
    wrong = [torch.tensor([nan, 2.0, 1.0]), torch.tensor([2.0])]
    found = held.judge("it", wrong)
    assert found.left == pytest.approx((9 / 2) ** 0.5)
    assert found.whole == pytest.approx(((16 + 4) / 2) ** 0.5)
    none = held.judge("it", [one * nan for one in wrong])
    assert none.left == inf and none.part == inf


WITH, WITHOUT = text(BEGINNING, 5, 7, 9), text(4, 6, 8, 3)


def test_a_shift_is_told_by_its_direction():
    pieces = [WITH, WITHOUT]
    for early in (True, False):
        values = [
            torch.cat([one[1:], GONE]) if early else torch.cat([GONE, one[:-1]])
            for one in read(pieces)
        ]
        name, left = best(try_shifts(hold(pieces, values)))
        assert (name, left) == (f"each recorded a token too {'early' if early else 'late'}", 0)


def test_only_zeros_that_were_written_are_tried():
    right = read([WITH])[0]
    assert try_zeros(hold([WITH], [right])) == []
    (found,) = try_zeros(hold([WITH], [right * torch.tensor([1, 0, 1])]))
    assert found.left == 0 and found.whole == pytest.approx(float(right[1]) / 3**0.5)


# What an engine recorded of a text, which has a beginning in the record, or has none.
BEGUN: dict[str, tuple[Callable[[Tensor], Tensor], list[Tensor]]] = {
    "missing": (
        lambda ids: torch.cat([GONE, *read([ids[1:]])]) if ids[0] == BEGINNING else read([ids])[0],
        [WITH, WITHOUT],
    ),
    "added": (
        lambda ids: read([ids if ids[0] == BEGINNING else torch.cat([text(BEGINNING), ids])])[0][
            -len(ids) + 1 :
        ],
        [WITH, WITHOUT],
    ),
    "twice": (lambda ids: read([torch.cat([text(BEGINNING), ids])])[0][1:], [WITH, WITH + 1 - 1]),
}


@pytest.mark.parametrize("name", BEGUN)
def test_another_beginning_is_named(name):
    run, pieces = BEGUN[name]
    found = try_beginning(hold(pieces, [run(ids) for ids in pieces]), BEGINNING)
    assert best(found) == (f"the token of the beginning {name}", 0)
    assert len(found) == 2 and try_beginning(hold(pieces, read(pieces)), None) == []


def test_nothing_is_read_of_a_text_whose_beginning_is_half_of_it():
    pieces = [WITH, text(BEGINNING, 5)]
    (found,) = try_beginning(hold(pieces, read(pieces)), BEGINNING)
    assert found.name.endswith("twice")


def test_what_a_text_was_read_beside_is_named():
    pieces = [text(5, 7, 9, 4), text(6, 8, 3)]
    padded = [read([torch.cat([text(PAD), ids])])[0][1:] for ids in pieces[1:]]
    packed = [read([torch.cat(pieces)])[0][4:]]
    first = read(pieces[:1])
    for values, name in ((padded, "padding on the left"), (packed, "the texts before each")):
        found = try_context(hold(pieces, first + values), PAD, 7)
        assert best(found) == (f"{name} attended to", 0) and len(found) == 2
    alike = [one[:3] for one in pieces]
    # What is longer than the model can read was not read, and texts as long as others need no more.
    for given, most, tried in ((pieces, 6, 1), (alike, 6, 1), (alike, 5, 0), (pieces[:1], 9, 0)):
        assert len(try_context(hold(given, read(given)), PAD, most)) == tried


def test_rotations_turn_as_by_another_base_and_at_other_positions():
    def rotate(base: float) -> Tensor:
        return base ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)

    torch.testing.assert_close(turn(rotate(100.0), 5.0, 1.0), rotate(500.0))
    angles = turn(rotate(100.0), 1.0, 4.0) * 12
    torch.testing.assert_close(angles, rotate(100.0) * 3)


def test_only_tables_with_a_place_for_each_token_are_of_positions():
    model = nn.ModuleDict({"wte": nn.Embedding(9, 2), "wpe": nn.Embedding(8, 2)})
    assert [len(one) for one in _find_positions(model, 8)] == [8]
    assert _find_positions(model, 9) == []


@pytest.mark.parametrize(
    ("given", "token"),
    [
        ({"pad_token_id": 3, "eos_token_id": 4}, 3),
        ({"pad_token_id": None, "eos_token_id": 4}, 4),
        ({"pad_token_id": 10, "eos_token_id": [4]}, None),
        ({"pad_token_id": -1, "eos_token_id": 0}, 0),
        ({"eos_token_id": 9}, 9),
    ],
)
def test_padding_is_a_token_that_the_model_has(given, token):
    names = ("pad_token_id", "eos_token_id")
    assert _find_token(SimpleNamespace(**given), names, 10) == token
