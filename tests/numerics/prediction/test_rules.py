"""Each rule against the operation's own Jacobian, and against perturbations as bad as allowed."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from layerlab.numerics.emulation.emulated_tensor import leaves
from layerlab.numerics.prediction.error_state import ErrorState, algebra
from layerlab.numerics.prediction.op_call import OpCall, map_nested
from layerlab.numerics.prediction.rules import CHOICES, TABLE, rule
from tests.support.refused import refusal

aten = torch.ops.aten
LONG, SMALL = torch.float64, 1e-9


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=LONG, generator=torch.Generator().manual_seed(seed))


def size(*shape: int, seed: int = 0) -> Tensor:
    return draw(*shape, seed=seed).abs() + 0.3


X, Y, Z = draw(3, 4), draw(4, 5, seed=1), draw(3, 4, seed=2)
MASK = X > 0
INDEX = torch.tensor([2, 0, 1, 1])
# Name, operation, arguments, keywords, and how loose the bound may be where errors are tiny.
CASES: list[tuple[Any, list[Any], dict[str, Any], float]] = [
    (aten.mm.default, [X, Y], {}, 1),
    (aten.addmm.default, [draw(5), X, Y], {"alpha": 0.5, "beta": -2.0}, 1),
    (aten.bmm.default, [draw(2, 3, 4), draw(2, 4, 3, seed=1)], {}, 1),
    (aten.baddbmm.default, [draw(2, 3, 3), draw(2, 3, 4), draw(2, 4, 3, seed=1)], {}, 1),
    (aten.mv.default, [X, draw(4)], {}, 1),
    (aten.mul.Tensor, [X, Z], {}, 1),
    (aten.mul.Tensor, [X, 3.0], {}, 1),
    (aten.addcmul.default, [X, Z, draw(3, 4, seed=3)], {"value": -0.5}, 1),
    (aten.add.Tensor, [X, Z], {"alpha": -2.0}, 1),
    (aten.add.Tensor, [X, draw(4)], {}, 1),
    (aten.sub.Tensor, [X, Z], {}, 1),
    (aten.rsub.Scalar, [X, 1.0, 2.0], {}, 1),
    (aten.div.Tensor, [X, size(3, 4)], {}, 1),
    (aten.div.Tensor, [X, 7.0], {}, 1),
    (aten.reciprocal.default, [size(3, 4)], {}, 1),
    (aten.neg.default, [X], {}, 1),
    (aten.abs.default, [X], {}, 1),
    (aten.pow.Tensor_Scalar, [X, 2], {}, 1),
    (aten.pow.Tensor_Scalar, [X, 3], {}, 1),
    (aten.pow.Tensor_Scalar, [size(3, 4), 0.5], {}, 1),
    (aten.pow.Tensor_Scalar, [size(3, 4), -1.5], {}, 1),
    (aten.pow.Scalar, [2.5, X], {}, 1),
    (aten.sqrt.default, [size(3, 4)], {}, 1),
    (aten.rsqrt.default, [size(3, 4)], {}, 1),
    (aten.exp.default, [X], {}, 1),
    (aten.exp2.default, [X], {}, 1),
    (aten.expm1.default, [X], {}, 1),
    (aten.log.default, [size(3, 4)], {}, 1),
    (aten.log2.default, [size(3, 4)], {}, 1),
    (aten.log1p.default, [size(3, 4)], {}, 1),
    (aten.tanh.default, [X], {}, 1),
    (aten.sigmoid.default, [X], {}, 1),
    (aten.erf.default, [X], {}, 1),
    (aten.sin.default, [X], {}, 1),
    (aten.cos.default, [X], {}, 1),
    (aten.silu.default, [X], {}, 1),
    (aten.mish.default, [X], {}, 1),
    (aten.gelu.default, [X], {}, 1),
    (aten.gelu.default, [X], {"approximate": "tanh"}, 1),
    (aten.relu.default, [X], {}, 1),
    (aten.softplus.default, [X], {}, 1),
    (aten.leaky_relu.default, [X, 0.1], {}, 1),
    (aten.elu.default, [X, 1.5], {}, 1),
    (aten.clamp.default, [X, -0.5, 0.5], {}, 1e9),
    (aten._softmax.default, [X, -1, False], {}, 1),
    (aten._log_softmax.default, [X, -1, False], {}, 2),
    (aten.logsumexp.default, [X, [1]], {}, 1),
    (aten.native_layer_norm.default, [X, [4], size(4), draw(4), 1e-5], {}, 8),
    (aten._fused_rms_norm.default, [X, [4], size(4), 1e-5], {}, 8),
    (aten.linalg_vector_norm.default, [X, 2.0, [1]], {}, 4),
    (aten.var.correction, [X, [1]], {"correction": 1}, 4),
    (aten.mean.dim, [X, [1], True], {}, 1),
    (aten.sum.dim_IntList, [X, [0]], {}, 1),
    (aten.cumsum.default, [X, 1], {}, 1),
    (aten.amax.default, [X, [1], True], {}, 1e9),
    (aten.amax.default, [X, [1]], {}, 1e9),
    (aten.max.dim, [X, 1], {}, 1e9),
    (aten.maximum.default, [X, Z], {}, 1e9),
    (aten.minimum.default, [X, Z], {}, 1e9),
    (aten.topk.default, [X, 2], {}, 1e9),
    (aten.sort.default, [X, 0], {}, 1e9),
    (aten.where.self, [MASK, X, Z], {}, 1),
    (aten.masked_fill.Scalar, [X, MASK, -1e30], {}, 1),
    (aten.cat.default, [[X, Z], 1], {}, 1),
    (aten.stack.default, [[X, Z]], {}, 1),
    (aten.gather.default, [X, 1, INDEX.view(1, 4)], {}, 1),
    (aten.index_select.default, [Y, 0, INDEX], {}, 1),
    (aten.index.Tensor, [Y, [INDEX]], {}, 1),
    (aten.embedding.default, [Y, INDEX], {}, 1),
    (aten.transpose.int, [X, 0, 1], {}, 1),
    (aten.view.default, [X, [2, 6]], {}, 1),
    (aten.expand.default, [draw(3, 1), [3, 4]], {}, 1),
    (aten.constant_pad_nd.default, [X, [1, 1], 5.0], {}, 1),
    (aten.scatter_add.default, [X, 1, INDEX.view(1, 4), draw(1, 4)], {}, 1),
    (aten.index_put.default, [Y, [torch.tensor([1, 2])], draw(2, 5), True], {}, 1),
    (
        aten.convolution.default,
        [draw(1, 2, 6), draw(4, 2, 3), draw(4), [1], [1], [1], False, [0], 1],
        {},
        1,
    ),
    (
        aten.convolution.default,
        [draw(1, 4, 6), draw(4, 1, 3), None, [1], [2], [1], False, [0], 4],
        {},
        1,
    ),
]


def named(case: Any) -> str:
    return str(case[0]) if isinstance(case, tuple) else ""


def floats(values: Any) -> list[Tensor]:
    return [x for x in leaves(values) if isinstance(x, Tensor) and x.is_floating_point()]


def swapped(args: list[Any], new: list[Tensor]) -> list[Any]:
    """The arguments with other tensors for the floating ones, in order."""
    rest = iter(new)

    def pick(value: Any) -> Any:
        return next(rest) if isinstance(value, Tensor) and value.is_floating_point() else value

    return map_nested(args, pick)


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def ruled(kind: Any, func: Any, args: list[Any], spreads: list[Tensor], kwargs: Any) -> ErrorState:
    found = func(*args, **kwargs)
    results = floats([found])
    call = OpCall(func._opname, func, args, swapped(args, spreads), kwargs, results)
    spread = rule(func)(call, algebra(kind, LONG))
    return spread[0] if isinstance(spread, list) else spread


@pytest.mark.parametrize("case", CASES, ids=named)
def test_variance_goes_through_the_squared_jacobian(case):
    func, args, kwargs, _ = case
    inputs = floats(args)
    spreads = [SMALL**2 * size(*x.shape, seed=9) for x in inputs]

    def run(*values: Tensor) -> Tensor:
        return first(func(*swapped(args, list(values)), **kwargs))

    jacobians = torch.autograd.functional.jacobian(run, tuple(x.clone() for x in inputs))
    result = run(*inputs)
    expected = torch.zeros_like(result)
    for jacobian, spread in zip(jacobians, spreads, strict=True):
        square = jacobian.square().reshape(result.numel(), -1)
        expected += (square @ spread.reshape(-1)).reshape(result.shape)
    found = ruled("variance", func, args, spreads, kwargs)
    # Second order is SMALL of the first; the sums themselves round in the sixteenth digit.
    torch.testing.assert_close(
        found.expand(result.shape), expected, rtol=1e-7, atol=1e-10 * SMALL**2
    )


@pytest.mark.few(40)
@pytest.mark.parametrize("scale", [1e-6, 0.3])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_bound_holds_at_the_corners(case, scale):
    func, args, kwargs, loose = case
    inputs = floats(args)
    spreads = [scale * size(*x.shape, seed=9) for x in inputs]
    bound = ruled("bound", func, args, spreads, kwargs)
    result = first(func(*args, **kwargs))
    assert not bound.isnan().any()
    generator = torch.Generator().manual_seed(0)
    worst = torch.zeros_like(result)
    for trial in range(60):
        moved = []
        for x, spread in zip(inputs, spreads, strict=True):
            sign = torch.rand(x.shape, dtype=LONG, generator=generator) * 2 - 1
            moved.append(x + spread * (sign.sign() if trial % 2 else sign))
        error = (first(func(*swapped(args, moved), **kwargs)) - result).abs()
        # Here x + e and the operation itself are rounded.
        assert (~(error > bound + 1e-14)).all(), (error / bound).max()
        worst = torch.maximum(worst, error.nan_to_num(nan=0.0))
    if scale == 1e-6:
        # Of four terms and more, sixty trials see a third of the worst.
        assert (bound <= 6 * loose * worst + 1e-12).all()


def test_one_tensor_twice_is_a_square():
    """x * x errs by 2 x e, which is twice the variance of a product of strangers."""
    spread = 1e-8 * size(3, 4)
    for func, factor in ((aten.mul.Tensor, 4 * X.square()), (aten.add.Tensor, torch.tensor(4.0))):
        call = OpCall(func._opname, func, [X, X], [spread, spread], {}, [func(X, X)], twins=True)
        found = rule(func)(call, algebra("variance", LONG))
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, factor * spread, rtol=1e-12, atol=0.0, check_dtype=False)


@pytest.mark.parametrize("kind", ["variance", "bound"])
def test_exact_arguments_have_exact_moves(kind):
    call = OpCall("cat", aten.cat.default, [[X, Z]], [[None, None]], {}, [torch.cat([X, Z])])
    assert rule(aten.cat.default)(call, algebra(kind, LONG)) == [None]


def test_functions_on_the_wrong_side_of_a_pole_have_no_bound():
    for func in (aten.reciprocal.default, aten.rsqrt.default, aten.log.default):
        found = ruled("bound", func, [torch.full((2,), 0.1, dtype=LONG)], [size(2)], {})
        assert (found == torch.inf).all()


@pytest.mark.parametrize("value", [-3.4e38, -torch.inf])
def test_masks_stay_masks_in_softmax(value):
    scores = torch.tensor([1.0, 2.0, value], dtype=LONG)
    spread = torch.tensor([0.5, 0.1, 1e30], dtype=LONG)
    bound = ruled("bound", aten._softmax.default, [scores, 0, False], [spread], {})
    assert bound[2] < 1e-12
    assert (bound[:2] < 0.5).all()


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_choices_are_decided_by_what_is_far_apart(name):
    two = name in ("eq", "ne", "lt", "le", "gt", "ge")
    values = torch.tensor([1.0, 3.0, 7.0], dtype=LONG)
    args = (values, values + 2.0) if two else (values, 1)
    near = (torch.full((3,), 1.5, dtype=LONG), None if two else 1)
    assert not CHOICES[name](args, (near[0], near[0]) if two else near)
    assert CHOICES[name](args, (None, None if two else 1))


def on_gpu(values: Any) -> Any:
    """The arguments as a GPU would hold them: with a shape, a place, and no numbers."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")

    return map_nested(values, move)


@pytest.mark.parametrize("kind", ["variance", "bound"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_rules_stay_on_the_device_of_their_values(case, kind):
    func, args, kwargs, _ = case
    with FakeTensorMode():
        given = on_gpu(args)
        try:
            found = ruled(kind, func, given, on_gpu(floats(args)), kwargs)
        except RuntimeError as error:
            # A build without CUDA cannot index there, nor read a number.
            assert isinstance(error, DataDependentOutputException) or "not linked" in str(error)
            return
    assert found is None or found.device.type == "cuda"


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_choices_are_decided_on_the_device_of_their_values(name):
    two = name in ("eq", "ne", "lt", "le", "gt", "ge")
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        values = torch.empty(3, dtype=LONG, device="cuda")
        args = (values, values + 2.0) if two else (values, 1)
        CHOICES[name](args, (values, values) if two else (values, 1))


def test_an_operation_without_a_rule_is_named():
    caught = refusal(rule, aten.fmod.Tensor)
    assert "errors cannot be followed through aten.fmod.Tensor" in caught
    assert "no rule is known for its derivative; observe the error instead" in caught


def test_every_rule_is_that_of_an_operation():
    def known(name: str) -> bool:
        return hasattr(aten, name) or hasattr(aten, name + "_")

    assert [name for name in TABLE if not known(name)] == []
