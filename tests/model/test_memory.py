"""What a variant carries from layer to layer: as much as its account says, whatever the depth."""

import pytest
import torch

from layerlab.model.account import account
from tests.model.exempt import bound
from tests.model.small import small, tokens


def carried(name: str, layers: int) -> tuple[int, int]:
    """Numbers per token that a layer hands on beside the stream, at most: found, and accounted."""
    model, x, sizes = small(name, layers=layers), tokens(1, 3), []
    for layer in model.model.layers:
        layer.register_forward_hook(
            lambda module, given, made: sizes.append(sum(one.numel() for one in made[2:]))
        )
    with torch.no_grad():
        model(x, use_cache=False)
    assert len(sizes) == layers
    said = account(model.config.parsed(), model.config.shape()).carry
    return max(sizes) // x.numel(), said


@pytest.mark.parametrize("name", bound("memory"))
def test_what_is_carried_does_not_grow_with_depth(name: str) -> None:
    (few, said), (many, _) = carried(name, 8), carried(name, 16)
    assert few == many
    assert few <= said


def test_what_mixes_all_layers_keeps_them_and_says_so() -> None:
    for name in ("attention-residuals", "denseformer"):
        (few, less), (many, more) = carried(name, 3), carried(name, 9)
        assert few < many and less < more
        assert few <= less and many <= more
