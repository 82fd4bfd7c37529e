"""Where written-out derivatives stand aside, and that they may: every one against its formula."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from layerlab.blocks.activation import Activation
from layerlab.blocks.operations import chunking, stream_mixing
from layerlab.blocks.operations.causal_taps import tap
from layerlab.blocks.operations.derivative import again, is_unwatched
from layerlab.model.cost.cost import account
from layerlab.variants.feedforward.normed_powers import normed_powers
from layerlab.variants.feedforward.series_sum import series
from layerlab.variants.feedforward.weighed_experts import weigh_gated
from layerlab.variants.residual.augmented import join
from layerlab.variants.residual.hyper import NormedRows
from layerlab.variants.residual.mhc import doubly_stochastic, normed_product
from tests.blocks.operations.pieces import drawn
from tests.model.small import SIZES, shaken, small, tokens
from tests.variants.option import gradients

AGES = torch.tensor([[0, 1, 0], [0, 1, 2]])
Case = tuple[Callable[..., Any], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "tap": (lambda x, w: tap(x, w, AGES, added=True), [(2, 3, 4), (4, 2)]),
    "powers": (lambda x, w, b: normed_powers(x, w, b, 1e-3), [(2, 3, 4), (3,), (1,)]),
    "series": (
        lambda x, a, b, c, d: series(x, ("silu", "tanh"), [a, b], [c, d]),
        [(2, 3, 4), (4,), (4,), (4,), (4,)],
    ),
    "weighed": (
        lambda gate, up, share: weigh_gated(gate, up, share, Activation("silu")),
        [(2, 3, 4), (2, 3, 4), (2, 3, 1)],
    ),
    "joined": (join, [(2, 3, 4), (2, 3, 4), (2,)]),
    "augmented": (join, [(2, 3, 4), (2, 3, 4), (2,), (2, 3, 2), (4, 2)]),
    "mix": (stream_mixing.mix, [(2, 3, 3, 4), (2, 3, 4, 3)]),
    "add": (lambda s, w, y: stream_mixing.add(s * 1, w, y), [(2, 3, 3, 4), (2, 3, 3), (2, 3, 4)]),
    "rows": (
        lambda *given: passed(*NormedRows.apply(*given, 1e-3)[:2]),
        [(2, 3, 4), (4,), (4,), (5, 4)],
    ),
    "product": (lambda x, weight: passed(*normed_product(x, weight)), [(2, 3, 6), (4, 6)]),
    "balance": (lambda x: doubly_stochastic(x, 3, 1e-6), [(2, 3, 4, 4)]),
}
# Every input alone, twice: seconds of a processor each.
COSTLY = {"mix", "add", "rows", "product", "balance", "augmented"}
LARGE_PATHS = ["hyper-connections", "mhc", "canon", "polynorm", "siaf-4", "laurel", "laurel-rw"]
LARGE_PATHS += ["widenet"]


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The written derivatives at every size, in several pieces, the last of which is shorter.

    Also in float64, whose digits tell a wrong gradient from a rounded one.
    """
    monkeypatch.setattr(chunking, "LARGE", 1)
    monkeypatch.setattr(chunking, "PIECE", 17 * SIZES["width"])
    monkeypatch.setattr(stream_mixing, "worthwhile", chunking.large)
    yield


def passed(product: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Handed on as `mix` does: with a gradient of its own, which may be written into."""
    return product, x * 1


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_small_steps_twice(name):
    function, shapes = CASES[name]
    inputs = drawn(*shapes)
    assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if name in COSTLY else []) for name in CASES],
)
def test_each_input_may_be_the_only_one_with_a_gradient(name):
    """As where an adapter learns and the rest is frozen, once and twice."""
    function, shapes = CASES[name]
    for at in range(len(shapes)):
        inputs = [one.requires_grad_(place == at) for place, one in enumerate(drawn(*shapes))]
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("name", [name for name in CASES if name != "rows"])
def test_transforms_and_directions_take_the_formula_apart(name):
    function, shapes = CASES[name]
    inputs = [one.detach() for one in drawn(*shapes)]
    moved = [torch.cos(one) for one in inputs]

    def first(*given: Tensor) -> Tensor:
        found = function(*given)
        return found[0] if isinstance(found, tuple) else found

    along = torch.func.jvp(first, tuple(inputs), tuple(moved))[1]
    step = 1e-6
    ahead, behind = (
        first(*(one + sign * step * move for one, move in zip(inputs, moved, strict=True)))
        for sign in (1, -1)
    )
    torch.testing.assert_close(along, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)
    assert torch.autograd.gradcheck(first, drawn(*shapes), check_forward_ad=True)
    several = torch.func.vmap(lambda x: first(x, *inputs[1:]))(torch.stack([inputs[0]] * 2))
    torch.testing.assert_close(several[1], first(*inputs), rtol=1e-12, atol=1e-12)


def test_an_input_that_is_made_of_another_gets_its_own_share_alone():
    x = torch.tensor([3.0], requires_grad=True)
    y = x.square()
    assert again(torch.mul, (x, y), (torch.ones(1),)) == (y, x)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LARGE_PATHS)
def test_a_gradient_that_is_differentiated_in_turn_is_the_same_gradient(name):
    model, x = shaken(small(name)).train(), tokens()
    loss, inputs = model(x, labels=x, use_cache=False).loss, list(model.parameters())
    plain = torch.autograd.grad(loss, inputs, retain_graph=True)
    for one, other in zip(torch.autograd.grad(loss, inputs, create_graph=True), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_who_watches():
    assert is_unwatched()
    for mode in (FlopCounterMode(display=False), torch.device("cpu"), forward_ad.dual_level()):
        with mode:
            assert not is_unwatched()
    assert not torch.func.vmap(lambda x: x * 0 + is_unwatched())(torch.ones(2)).any()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LARGE_PATHS)
def test_checkpointing_changes_no_bit_of_a_gradient(name):
    model, x = shaken(small(name, dtype=torch.float32)).train(), tokens()
    plain = gradients(model, x)
    for reentrant in (False, True):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        again = gradients(model, x)
        assert all(torch.equal(one, again[key]) for key, one in plain.items()), reentrant


@pytest.mark.few(5)
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("name", LARGE_PATHS)
def test_a_model_learns_as_by_the_plain_formulas(name, precision, monkeypatch):
    """To what the precision leaves, of all gradients together; backward also under autocast."""
    model, x = shaken(small(name, dtype=torch.float32)).train(), tokens()
    around = torch.autocast("cpu", dtype=precision) if precision else nullcontext()
    found = []
    for size in (1, 2**60):
        monkeypatch.setattr(chunking, "LARGE", size)
        with around:
            gathered = gradients(model, x)
        found.append(torch.cat([one.flatten() for one in gathered.values() if one is not None]))
    unit = torch.finfo(precision or torch.float32).eps
    assert (found[0] - found[1]).norm() <= 64 * unit * found[1].norm()


@pytest.mark.parametrize("name", LARGE_PATHS)
def test_products_are_counted_at_sizes_where_none_is_called(name):
    model = small(name, dtype=torch.float32).train()
    model.set_attn_implementation("eager")
    said, x = account(model.config.parse_spec(), model.config.shape()), tokens(2, SIZES["context"])
    with FlopCounterMode(display=False) as forward:
        logits = model(x).logits
    assert forward.get_total_flops() == said.forward * x.numel()
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == said.backward * x.numel()
