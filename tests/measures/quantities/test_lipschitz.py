"""The local Lipschitz constant, against full Jacobians and maps whose answer is known."""

from collections.abc import Callable
from dataclasses import replace
from math import isnan, prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.lipschitz import (
    MEASURES,
    local_lipschitz,
    read,
)
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import trace
from layerlab.records.layer_names import EMBEDDING
from tests.numerics.draw import gaussian

(MEASURE,) = MEASURES
DOUBLE = torch.finfo(torch.float64).eps


def run(**options: Any) -> MeasureContext:
    return MeasureContext(options=MEASURE.given(**options).options)


def traced(model: PreTrainedModel, tokens: int = 5, gradient: bool = False) -> list[Layer]:
    """All layers of one sequence; only tests keep more than one."""
    layers: list[Layer] = []
    ids = torch.arange(1, tokens + 1) * 7 % 64
    trace(model, anatomy(model), [ids], layers.append, gradient=gradient)
    return layers


def jacobian_norm(rerun: Callable[[Tensor], Tensor], stream: Tensor) -> float:
    jacobian = torch.autograd.functional.jacobian(rerun, stream)
    return float(torch.linalg.matrix_norm(jacobian.reshape(stream.numel(), -1), 2))


def test_a_linear_block_has_the_spectral_norm_of_its_matrix():
    weight = gaussian(6, 6)
    found = local_lipschitz(lambda x: x @ weight, gaussian(4, 6), steps=6, tolerance=0.0)
    truth = float(torch.linalg.matrix_norm(weight, 2))
    assert abs(found.value - truth) <= 64 * DOUBLE * 24 * truth


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "llama"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_local_is_the_largest_singular_value_of_the_full_jacobian(tiny, family, implementation):
    if family == "openai-gpt" and implementation == "sdpa":
        pytest.skip("this family has no fused attention")
    model = tiny(family, attn_implementation=implementation).double()
    for layer in traced(model)[1:]:
        assert layer.rerun is not None and layer.entered is not None
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            truth = jacobian_norm(layer.rerun, layer.entered)
        found = local_lipschitz(layer.rerun, layer.entered, steps=80, tolerance=1e-7)
        # The error of the value is the residual squared over the gap to the next one; Llama's norm
        # works in float32 whatever the model's dtype is.
        slack = 16 * torch.finfo(torch.float32).eps if family == "llama" else 1e-9
        assert found.value == pytest.approx(truth, rel=slack)
        assert local_lipschitz(layer.rerun, layer.entered).value <= truth * (1 + slack)


def test_the_same_seed_gives_the_same_number_and_another_seed_another_start():
    weight, stream = gaussian(8, 8), gaussian(5, 8)
    values = [
        local_lipschitz(lambda x: (x @ weight).tanh(), stream, steps=1, seed=seed).value
        for seed in (3, 3, 4)
    ]
    assert values[0] == values[1] != values[2]


def test_bfloat16_agrees_with_float64_up_to_its_rounding(tiny):
    values = {}
    for dtype in (torch.float64, torch.bfloat16):
        layer = traced(tiny("llama").to(torch.bfloat16).to(dtype))[1]
        assert layer.rerun is not None and layer.entered is not None
        values[dtype] = local_lipschitz(layer.rerun, layer.entered, steps=12).value
    # About sixteen roundings on the way through a block and back.
    slack = 16 * torch.finfo(torch.bfloat16).eps
    assert values[torch.bfloat16] == pytest.approx(values[torch.float64], rel=slack)


class Once(torch.autograd.Function):
    """A doubling kernel whose backward may not be differentiated, but that has a forward mode."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 2 * tangent


class Blind(torch.autograd.Function):
    """A kernel with one derivative only, and no forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Wrong(torch.autograd.Function):
    """A kernel whose gradient is not that of its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.detach() * 1.0


def test_a_kernel_without_second_derivative_is_read_by_forward_mode():
    assert local_lipschitz(Once.apply, gaussian(3, 4)).value == pytest.approx(2, rel=64 * DOUBLE)


@pytest.mark.parametrize("kernel", [Blind, Wrong])
def test_a_kernel_without_usable_derivatives_is_not_applicable_and_says_why(kernel):
    stream = gaussian(3, 4)
    with pytest.raises(NotApplicable):
        local_lipschitz(kernel.apply, stream)
    session = run()
    layer = Layer(
        sequence=0,
        layer=2,
        tokens=torch.arange(3),
        stream=stream,
        entered=stream,
        rerun=kernel.apply,
    )
    (row,) = read(layer, session)
    assert isnan(row["local"]) and isnan(row["residual"])
    assert "layer 2" in session.notes["local"] and "because" in session.notes["local"]


def test_gradient_is_that_of_the_loss_by_hand(tiny):
    model = tiny("gpt2").double()
    layers = traced(model, gradient=True)
    rows = [row for layer in layers for row in read(layer, run(steps=1))]
    ids = layers[0].tokens
    streams: list[Tensor] = []
    hooks = [
        model.transformer.h[0].register_forward_pre_hook(lambda m, a: streams.append(a[0])),
        *(b.register_forward_hook(lambda m, a, o: streams.append(o)) for b in model.transformer.h),
    ]
    loss = model(input_ids=ids[None], labels=ids[None]).loss
    for hook in hooks:
        hook.remove()
    truth = [float(g.norm()) for g in torch.autograd.grad(loss, streams)]
    assert [row["gradient"] for row in rows] == pytest.approx(truth, rel=1e-6)


def test_the_embedding_output_has_a_gradient_and_no_constant(tiny):
    (row,) = read(traced(tiny("gpt2"), gradient=True)[0], run())
    assert row["layer"] == EMBEDDING and row["gradient"] > 0
    assert isnan(row["local"]) and isnan(row["weights"])


def test_weights_of_a_block_are_all_its_matrices(tiny):
    layer = traced(tiny("llama"))[1]
    assert layer.block is not None
    norms = [
        float(torch.linalg.matrix_norm(p.detach(), 2))
        for p in layer.block.parameters()
        if p.dim() == 2
    ]
    (row,) = read(layer, run(steps=1))
    assert len(norms) == 7
    assert row["weights"] == pytest.approx(prod(norms), rel=1e-4)


def test_the_product_of_weight_norms_bounds_nothing():
    """Dot-product attention has no weights here, yet its constant grows with the input squared.

    The token 0 sees 0, a and -a with weight 1/3 each: its output changes by their variance.
    """
    for a in (1.0, 10.0, 100.0):
        stream = torch.tensor([[0.0], [a], [-a]], dtype=torch.float64)
        found = local_lipschitz(lambda x: torch.softmax(x @ x.T, -1) @ x, stream, steps=3)
        assert found.value >= 2 * a**2 / 3


def test_a_graph_that_would_not_fit_is_not_built(tiny):
    session = run(memory_gib=1e-9)
    (row,) = read(traced(tiny("gpt2"))[1], session)
    assert isnan(row["local"]) and not isnan(row["weights"])
    assert "memory_gib" in session.notes["local"]


def test_a_block_that_cannot_be_run_again_still_has_its_weights(tiny):
    session = run()
    (row,) = read(replace(traced(tiny("gpt2"))[1], rerun=None), session)
    assert isnan(row["local"]) and row["weights"] > 0
    assert "cannot be run again" in session.notes["local"]


def test_reading_leaves_the_model_without_gradients(tiny):
    model = tiny("gpt2")
    for layer in traced(model)[1:]:
        list(read(layer, run(steps=2)))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_rows_have_exactly_the_declared_columns(tiny):
    for layer in traced(tiny("llama")):
        for row in read(layer, run(steps=1)):
            assert list(row) == [*MEASURE.per, *MEASURE.columns]


def test_the_first_direction_is_drawn_once_for_layers_that_are_alike(tiny, monkeypatch):
    layers = traced(tiny("llama"))[1:]
    expected = [local_lipschitz(one.rerun, one.entered).value for one in layers]  # type: ignore[arg-type]
    drawn, plain = list[int](), torch.randn

    def counted(*given: Any, **options: Any) -> Tensor:
        drawn.append(options.get("dtype") == torch.float64)
        return plain(*given, **options)

    monkeypatch.setattr(torch, "randn", counted)
    context = run()
    assert [next(iter(read(one, context)))["local"] for one in layers] == expected
    assert len(layers) > 1 and sum(drawn) == 1
