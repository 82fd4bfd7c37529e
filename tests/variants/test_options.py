"""Options of variants: every law holds under them; as declared, test_laws.py has them all."""

from typing import Any

import pytest

from tests.variants.option import holds

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gated-attention", {}),
    ("gated-attention", {"gate": "head"}),
    ("gated-attention", {"kv_heads": 2, "head_width": 20, "attention.bias": "all"}),
    ("gated-attention", {"gate": "head", "kv_heads": 1, "head_width": 6}),
    ("qk-norm", {"form": "head", "kv_heads": 1}),
    ("qk-norm", {"form": "full", "kv_heads": 2}),
    ("qk-norm", {"form": "l2", "kv_heads": 1}),
    ("qk-norm", {"attention.bias": "all", "attention.epsilon": 1e-3}),
    ("polynorm", {}),
    ("polynorm", {"form": "relu"}),
    ("polynorm", {"order": 1}),
    ("polynorm", {"order": 4, "form": "relu", "ffn.bias": True}),
    ("polynorm", {"ffn.epsilon": 1e-3, "ffn.bias": True}),
    *(("canon", {"places": places}) for places in ("a", "b", "cd")),
    ("canon", {"kernel": 1}),
    ("canon", {"kernel": 2, "places": "bd", "kv_heads": 2}),
    ("canon", {"kernel": 7, "head_width": 20, "attention.bias": "all", "ffn.bias": True}),
    ("canon", {"position": "none", "ffn.activation": "relu2"}),
    ("canon", {"placement": "both"}),
    ("dyt", {"norm.bias": False}),
    ("derf", {"norm.bias": False}),
    ("layernorm-scaling", {"norm.epsilon": 1e-5}),
    # These carry tensors from layer to layer.
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
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_laws_hold(name, options):
    holds(name, **options)
