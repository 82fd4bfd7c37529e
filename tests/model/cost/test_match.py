"""Sizes on equal terms: the solver against an exhaustive search, and what it refuses."""

from dataclasses import replace

import pytest

from layerlab import UserError
from layerlab.model.build import build
from layerlab.model.cost.cost import Account, account
from layerlab.model.cost.match import _resize, match, matched
from layerlab.model.design import design
from tests.model.small import SIZES


def cost(found, **changes):
    return account(found.spec, replace(found.shape, **changes))


@pytest.mark.parametrize("on", ["parameters", "flops"])
@pytest.mark.parametrize(("by", "size", "most"), [("ffn", "inner", 240), ("depth", "layers", 8)])
def test_no_other_size_is_nearer(by, size, most, on):
    # One layer each for the feed-forward, so that every size can be tried.
    sizes = {**SIZES, "layers": 1 if by == "ffn" else 5}
    own, other = design("pangu-pi", sizes=sizes), design("gpt2", sizes=sizes)
    wanted = cost(other)
    found = match(own.spec, own.shape, wanted, by=by, on=on)

    def gap(one: Account) -> int:
        if on == "parameters":
            return abs(one.parameters - wanted.parameters)
        return abs(one.forward - wanted.forward)

    gaps = {step: gap(cost(own, **{size: step})) for step in range(1, most)}
    assert gap(cost(own, **{size: getattr(found.shape, size)})) == min(gaps.values())
    assert abs(found.mismatch) == min(gaps.values())


def test_a_matched_width_keeps_the_heads_and_the_share_of_the_feed_forward():
    own = design("llama", sizes=SIZES)
    found = match(own.spec, own.shape, cost(own, width=96, head_width=24, inner=256), by="width")
    assert found.shape.width % (2 * own.shape.heads) == 0
    assert found.shape.inner == round(found.shape.width * own.shape.inner / own.shape.width)
    assert (found.shape.width, found.mismatch) == (96, 0)


def test_a_head_of_a_width_of_its_own_keeps_it():
    found = matched("llama", "llama", by="width", **SIZES, head_width=6)
    assert (found.shape.head_width, found.mismatch) == (6, 0)


@pytest.mark.parametrize("on", ["parameters", "flops"])
@pytest.mark.parametrize(
    ("by", "size"), [("ffn", "inner"), ("depth", "layers"), ("width", "width")]
)
def test_a_size_is_found_again_from_its_cost_the_smallest_too(by, size, on):
    own = design("llama", sizes={**SIZES, "layers": 1, "head_width": 2, "width": 8, "inner": 8})
    for step in (1, 2, 3, 37):
        shape = _resize(own.shape, by, step)
        found = match(own.spec, own.shape, account(own.spec, shape), by=by, on=on)
        assert (found.shape, found.mismatch) == (shape, 0)
        assert found.brief == f"{size} {getattr(shape, size)}, +0.00 %"


def test_none_only_says_what_differs():
    found = matched("pangu-pi", by="none", **SIZES)
    own, other = design("pangu-pi", sizes=SIZES), design("llama", sizes=SIZES)
    assert found.shape == own.shape
    assert found.mismatch == cost(own).parameters - cost(other).parameters
    assert found.percent == pytest.approx(100 * found.mismatch / cost(other).parameters)
    assert "no size changed" in str(found)


@pytest.mark.parametrize("by", ["ffn", "depth", "width"])
def test_what_was_matched_is_what_is_built(by):
    found = matched("pangu-pi", "gpt2", by=by, **SIZES)
    model = build("pangu-pi", **found.sizes, device="meta")
    assert model.num_parameters() == found.found
    assert found.found - found.wanted == found.mismatch
    assert f" parameters against {found.wanted:,}" in str(found) and " %)" in str(found)


def test_the_layers_of_pangu_pi_7b_come_out_as_published():
    found = matched("pangu-pi", "llama-7b", by="depth", preset="pangu-pi-7b")
    assert found.shape.layers == design("pangu-pi-7b").shape.layers
    assert abs(found.percent) < 0.2


def test_a_preset_brings_its_own_sizes_but_those_of_the_user():
    found = matched("llama", "llama-7b", by="none", preset="pangu-pi-7b", layers=2)
    large = design("llama-7b", sizes={"layers": 2})
    assert found.wanted == cost(large).parameters


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"name": "attention-only", "by": "ffn"},
            "matching by ffn changes nothing here.*; match by depth or width: type --match depth",
        ),
        (
            {
                "name": "llama",
                "against": "attention-only",
                "by": "ffn",
                "heads": 4,
                "width": 8,
                "vocab": 8,
            },
            "the smallest ffn already gives",
        ),
        ({"name": "llama", "by": "hight"}, "cannot match by 'hight' on 'parameters'"),
        (
            {"name": "llama", "by": "ffn", "on": "time"},
            "expected by ffn, depth, width, none and on",
        ),
        ({"name": "llama", "depth": 3}, "'depth' is not a size; expected width"),
        ({"name": "llama", "against": "lama"}, "no variant is called 'lama'"),
    ],
)
def test_what_cannot_be_matched_is_answered_in_one_line(given, message):
    with pytest.raises(UserError, match=message) as caught:
        matched(**{**SIZES, **given})
    assert "\n" not in str(caught.value)


def test_shared_blocks_do_not_grow_with_depth():
    own = design("llama", sizes=SIZES, options={"sharing": "blocks"})
    wanted = cost(design("llama", sizes={**SIZES, "width": 480}))
    with pytest.raises(UserError, match="no depth up to 256 reaches the") as told:
        match(own.spec, own.shape, wanted, by="depth")
    said = (
        "that are wanted; match by ffn or width: type --match ffn with layerlab variants, or write "
    )
    assert str(told.value).endswith(f'{said}compare.match_by = "ffn" in a recipe')
