"""Options of what carries tensors from layer to layer; as declared, test_laws.py has them all."""

from typing import Any

import pytest

from tests.model.small import shaken, small
from tests.variants.option import checkpoints, lawful

CASES: list[tuple[str, dict[str, Any]]] = [
    ("history-5", {"first_layer": "zero", "divide": True}),
    ("history-7", {"placement": "post"}),
    ("denseformer", {"dilation": 2}),
    ("denseformer", {"period": 2}),
    ("attention-residuals", {"values": "normed", "scale": "inverse-sqrt"}),
    ("attention-residuals-block", {"blocks": 2}),
    ("value-residual", {"form": "learned"}),
    ("value-residual", {"form": "shared"}),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), CASES)
def test_laws_hold(name, options):
    lawful(name, **options)
    checkpoints(shaken(small(name, **options)))
