"""The eight residual schemes against their rules written out with lists."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from layerlab.blocks.context import Flow
from layerlab.blocks.spec import Choice
from layerlab.model.modeling import LabForCausalLM
from tests.model.small import shaken, small, tokens
from tests.variants.option import with_residual

METHODS = range(8)
FIRST = ("own-input", "zero")
ROUNDING = 1e-12  # float64 throughout: some thousand operations of 1e-16 each


def joined(x: Tensor, earlier: list[Tensor] | None, divide: bool) -> Tensor:
    """What is added to a sublayer's output when m > 1: its input, or a sum of earlier outputs."""
    if earlier is None:
        return x
    total = torch.zeros_like(x)
    for one in earlier:
        total = total + one
    return total / len(earlier) if divide else total


def written_out(
    model: LabForCausalLM, ids: Tensor, method: int, first_layer: str, divide: bool
) -> Tensor:
    """The last features by the table of the rules, every output of every layer kept in a list."""
    stack: Any = model.model
    post = model.config.parse_spec().block.placement == "post"
    x = stack.embed_tokens(ids)
    places = torch.arange(ids.shape[1]).unsqueeze(0)
    attended: list[Tensor] = []
    fed: list[Tensor] = []
    for m, layer in enumerate(stack.layers, 1):
        flow = Flow(rotary=stack.rotary_emb(x, places))
        empty = m == 1 and first_layer == "zero"
        x_out = layer.attention(x if post else layer.attention_norm(x), flow)[0]
        lists = {1: attended, 2: attended, 5: attended, 6: fed, 7: attended}
        added = joined(x, lists.get(method) if m > 1 else None, divide or method == 2)
        if empty and method in (1, 2, 5, 6, 7):
            added = torch.zeros_like(x)
        z = x_out + added
        z = layer.attention_norm(z) if post else z
        y_out = layer.ffn(z if post else layer.ffn_norm(z), flow)
        lists = {3: fed, 4: fed, 5: attended, 6: fed, 7: fed}
        added = joined(z, lists.get(method) if m > 1 else None, divide or method == 4)
        if empty and method in (3, 4, 5, 6, 7):
            added = torch.zeros_like(z)
        x = y_out + added
        x = layer.ffn_norm(x) if post else x
        attended.append(x_out)
        fed.append(y_out)
    return stack.norm(x)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize(
    ("method", "first_layer", "divide"), list(itertools.product(METHODS, FIRST, [False, True]))
)
def test_every_scheme_is_what_its_rule_says(method, first_layer, divide, placement):
    model = with_residual(
        "history", placement=placement, first_layer=first_layer, divide=divide, method=method
    )
    ids = tokens(2, 8)
    with torch.no_grad():
        expected = written_out(model, ids, method, first_layer, divide)
        torch.testing.assert_close(
            model.model(ids).last_hidden_state, expected, rtol=0, atol=ROUNDING
        )


@pytest.mark.full
def test_the_options_tell_models_apart():
    """Or the comparison above could hold by options that do nothing."""
    ids = tokens(1, 6)
    found: dict[tuple[Any, ...], Tensor] = {}
    for method, first, divide in itertools.product(METHODS, FIRST, [False, True]):
        same = method in (0, 2, 4) and divide  # these divide, or have no sum, whatever is said
        if not same and not (method == 0 and first == "zero"):
            model = with_residual("history", method=method, first_layer=first, divide=divide)
            found[method, first, divide] = model.model(ids).last_hidden_state.detach()
    # dividing method 1 or 3 gives method 2 or 4
    pairs = {((1, first, True), (2, first, False)) for first in FIRST}
    pairs |= {((3, first, True), (4, first, False)) for first in FIRST}
    for one, other in itertools.combinations(found, 2):
        alike = torch.allclose(found[one], found[other], rtol=0, atol=1e-6)
        assert alike == ((one, other) in pairs), (one, other)


def test_method_0_is_llama_bit_for_bit():
    ids = tokens()
    plain = shaken(small("llama"))
    same = shaken(small("history-1", method=0))
    assert torch.equal(plain(ids).logits, same(ids).logits)


@pytest.mark.parametrize("method", range(1, 8))
def test_a_variant_is_its_method(method):
    ids = tokens()
    named = small(f"history-{method}")
    assert named.config.parse_spec().block.residual == Choice("history", method=method)
    other = "history-1" if method != 1 else "history-7"
    assert torch.equal(named(ids).logits, small(other, method=method)(ids).logits)


def held(model: LabForCausalLM, ids: Tensor) -> int:
    """Numbers that a forward pass holds for the backward pass, each storage once."""
    storages: dict[int, int] = {}

    def note(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() // one.element_size()
        kept.append(one)  # so that no address is used twice
        return one

    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        logits = model(ids).logits
    del logits
    return sum(storages.values())


@pytest.mark.parametrize("method", range(1, 8))
def test_a_sum_holds_nothing_for_the_backward_pass(method):
    ids = tokens()
    for layers in (2, 6):
        plain = held(small("llama", layers=layers), ids)
        assert held(small("history-1", layers=layers, method=method), ids) == plain
