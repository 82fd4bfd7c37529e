"""What measures say of layers where they have no reading."""

from types import SimpleNamespace

import pytest

from layerlab.measures.measure import MeasureContext

REMARK = "bound: not applicable to {layers}, because it is gated"


def noted(layers: list[int], blocks: int = 4) -> dict[str, str]:
    """The notes after a remark on each of these layers of a model of four blocks."""
    stack = SimpleNamespace(blocks=[None] * blocks)
    run = MeasureContext(options={}, subject=SimpleNamespace(stack=stack))
    for layer in layers:
        run.note_layer("bound", REMARK, layer)
    return run.notes


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([0], "layer 0"),
        ([0, 2, 2], "layers 0, 2"),
        ([3, 0, 1, 2], "every layer"),
        ([-1], "embedding"),
    ],
)
def test_a_remark_names_every_layer_that_it_holds_of(layers, words):
    assert noted(layers) == {"bound": REMARK.replace("{layers}", words)}


def test_of_a_model_of_one_layer_that_layer_is_named():
    assert noted([0], blocks=1)["bound"] == REMARK.replace("{layers}", "layer 0")


def test_another_reason_is_a_remark_of_its_own():
    run = MeasureContext(options={})
    run.note_layer("bound", REMARK, 0)
    run.note_layer("bound", "{layers}: its block was not found", 1)
    assert list(run.notes.values()) == [
        "bound: not applicable to layer 0, because it is gated",
        "layer 1: its block was not found",
    ]
