"""Specs as frozen values: to and from JSON, and what is no spec is refused in one line."""

import json
import math

import pytest

from layerlab import UserError
from layerlab.blocks.spec import BlockSpec, Spec, StackSpec, Variant
from layerlab.model.config import LabConfig
from layerlab.variants.registry import variants
from tests.support.refused import refusal, refuses


@pytest.mark.parametrize("name", variants())
def test_every_value_comes_back_from_json(name):
    one = variants()[name]
    for value in (one, one.spec, one.spec.block, one.spec.stack):
        written = json.loads(json.dumps(value.to_dict()))
        again = type(value).from_dict(written)
        assert again == value and hash(again) == hash(value)
        assert again.to_dict() == written


PART = "a part with its options: type {"
BLOCK = [
    ({"norm": "rms"}, f"norm is 'rms'; expected {PART}"),
    ({"norm": {"name": "rms"}}, f"norm is {{'name': 'rms'}}; expected {PART}"),
    ({"norm": {"name": 3, "options": {}}}, f"expected {PART}"),
    ({"norm": {"name": "rms", "options": {"self": 1}}}, f"expected {PART}"),
    ({"norm": {"name": "rms", "options": []}}, f"expected {PART}"),
    ({"placement": ["pre"]}, "placement is ['pre']; expected 'pre' or 'post'"),
    ({"normm": {}}, "what should be a BlockSpec has a field 'normm' that there is not; expected"),
    ([], "what should be a BlockSpec is []; expected what BlockSpec.to_dict() gives: norm"),
]
STACK = [
    ({"dropout": "x"}, "dropout is 'x'; expected a number at least 0.0 and at most 0.9"),
    ({"dropout": math.nan}, "dropout is nan; expected a number at least"),
    ({"dropout": 7.0}, "dropout is 7.0; expected a number at least"),
    ({"dropout": True}, "dropout is True; expected a number at least"),
    ({"final_norm": None}, f"final_norm is None; expected {PART}"),
    ({"head": "loose"}, "head is 'loose'; expected 'untied' or 'tied'"),
    ({"depth": 3}, "what should be a StackSpec has a field 'depth'"),
]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [*((BlockSpec, *one) for one in BLOCK), *((StackSpec, *one) for one in STACK)],
)
def test_what_is_no_spec_is_refused_in_one_line(kind, value, said):
    assert said in refusal(kind.from_dict, value)
    place = "block" if kind is BlockSpec else "stack"  # as a configuration on disk has it
    assert said in refusal(LabConfig, spec={**Spec().to_dict(), place: value})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"block": {}}, "what should be a Spec has no stack; expected what Spec.to_dict() gives"),
        ({"block": {}, "stack": {}, "more": 1}, "has a field 'more' that there is not"),
        ("llama", "what should be a Spec is 'llama'; expected"),
    ],
)
def test_a_spec_is_whole(value, said):
    assert said in refusal(Spec.from_dict, value)


def test_a_variant_has_what_a_reader_must_know():
    whole = variants()["llama"].to_dict()
    for lost in ("name", "spec", "equation", "source", "about"):
        with pytest.raises(UserError, match=f"what should be a Variant has no {lost}; expected"):
            Variant.from_dict({key: one for key, one in whole.items() if key != lost})
    assert Variant.from_dict({**whole, "inner": 4}).inner == 4
    with pytest.raises(UserError, match="inner is 'wide'; expected a number above"):
        Variant.from_dict({**whole, "inner": "wide"})
    refuses("name is 3; expected a str", Variant.from_dict, {**whole, "name": 3})
