"""Options that a variant cannot have: each is answered in one line, with what to type."""

from typing import Any

import pytest

from layerlab.blocks.spec import Choice
from layerlab.model.cost.cost import account
from tests.model.small import small
from tests.support.refused import refusal, refuses

SQUARE = "that start at zero would stay equal for ever"
FLAT = "has no slope at zero, or is not zero there"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("siaf-2", {"ffn": options}, text)
        for options, text in (
            ({"n": 3, "activations": ("silu", "gelu")}, "names 2 functions for n=3 terms"),
            (
                {"form": "convolution", "activations": ("silu", "gelu")},
                "form has one activation for all tokens",
            ),
            ({"position": "product", "body": "mlp"}, "needs a gate, which body='mlp' lacks"),
            (
                {"position": "product", "form": "multi-projection"},
                "terms with matrices of their own do not read the product",
            ),
            ({"activations": "none"}, "option activations of ffn part 'siaf' got 'none'"),
            ({"activations": ("silu", "swish")}, "or a list of them"),
            ({"activations": ()}, "or a list of them"),
            ({"n": 0}, "option n of ffn part 'siaf' got 0"),
        )
    ),
    *(
        ("as-32", {"shortcut": options}, text)
        for options, text in (
            ({"form": "full", "T": 2}, SQUARE),
            ({"form": "circulant", "T": 3}, SQUARE),
            ({"form": "full", "activation": "relu"}, FLAT),
            ({"form": "full", "activation": "sigmoid"}, FLAT),
            ({"form": "circulant", "block": 5}, "blocks of 5 do not tile a width of 48"),
            ({"r": 0}, "option r of shortcut part 'augmented' got 0"),
            ({"T": 0}, "option T of shortcut part 'augmented' got 0"),
        )
    ),
    ("value-residual", {"form": "sv"}, "option form of attention part 'value-residual' got 'sv'"),
    ("qk-norm", {"epsilon": 1e-3}, "epsilon is an option of norm and attention"),
    ("canon", {"places": "ca"}, "option places of attention part 'canon' got 'ca'"),
    ("widenet", {"k": 5}, "5 experts cannot serve a token where there are 4"),
    ("layernorm-scaling", {"initialisation": "depth-scaled"}, "both make deep layers small"),
    ("layernorm-scaling", {"initialisation": "depth-scaled"}, "type initialisation=plain"),
    ("denseformer", {"period": 0}, "option period of residual part 'denseformer' got 0"),
    ("attention-residuals", {"blocks": 0}, "expected a whole number at least 1"),
    ("attention-residuals", {"values": "keys"}, "expected 'raw' or 'normed'"),
    ("history-3", {"first_layer": "none"}, "first_layer of residual part 'history' got 'none'"),
    ("history-3", {"method": 8}, "expected 0 or 1 or 2 or 3 or 4 or 5 or 6 or 7"),
]


@pytest.mark.parametrize(("name", "options", "text"), REFUSED, ids=str)
def test_impossible_options_are_refused_in_one_line(name, options, text):
    said = refusal(small, name, **options)
    assert text in said and "type" in said


def test_more_experts_than_there_are_are_not_accounted_for_either():
    model = small("widenet")
    spec = model.config.parse_spec().with_block(ffn=Choice("experts", experts=1))
    refuses("2 experts cannot serve a token where there are 1", account, spec, model.config.shape())
