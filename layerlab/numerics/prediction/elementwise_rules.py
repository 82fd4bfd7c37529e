"""Functions of one variable: their slopes, and how far they bend."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from layerlab.numerics.prediction.error_state import Algebra, ErrorState, Function, add_variances
from layerlab.numerics.prediction.op_call import OpCall, lacking

ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715


def _silu(x: Tensor, y: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _gelu(x: Tensor, y: Tensor) -> Tensor:
    return torch.special.ndtr(x) + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Tensor, y: Tensor) -> Tensor:
    bent = torch.tanh(ROOT * (x + CUBE * x**3))
    inner = ROOT * (1 + 3 * CUBE * x.square())
    return (1 + bent) / 2 + x / 2 * (1 - bent.square()) * inner


def _mish(x: Tensor, y: Tensor) -> Tensor:
    bent = torch.tanh(torch.nn.functional.softplus(x))
    return bent + x * torch.sigmoid(x) * (1 - bent.square())


FUNCTIONS: dict[str, Function] = {
    "exp": Function(slope=lambda x, y: y),
    "exp2": Function(slope=lambda x, y: y * math.log(2)),
    "expm1": Function(slope=lambda x, y: y + 1),
    "log": Function(slope=lambda x, y: 1 / x),
    "log2": Function(slope=lambda x, y: 1 / (x * math.log(2))),
    "log1p": Function(slope=lambda x, y: 1 / (1 + x)),
    "sqrt": Function(slope=lambda x, y: 0.5 / y, units=1),
    "rsqrt": Function(slope=lambda x, y: y**3 / 2, units=4),
    "tanh": Function(slope=lambda x, y: 1 - y.square()),
    "sigmoid": Function(slope=lambda x, y: y * (1 - y)),
    "erf": Function(slope=lambda x, y: 2 / math.sqrt(math.pi) * torch.exp(-x.square())),
    "relu": Function(slope=lambda x, y: (x > 0).to(x.dtype), units=0),
    "neg": Function(slope=lambda x, y: torch.ones_like(x), units=0),
    "abs": Function(slope=lambda x, y: x.sign(), bend=0.0, steep=1.0, units=0),
    "sin": Function(slope=lambda x, y: torch.cos(x), bend=1.0, steep=1.0),
    "cos": Function(slope=lambda x, y: torch.sin(x), bend=1.0, steep=1.0),
    "softplus": Function(slope=lambda x, y: torch.sigmoid(x)),
    "log_sigmoid_forward": Function(slope=lambda x, y: torch.sigmoid(-x)),
    # Lipschitz constants rounded up; curvatures at 0, where they are largest.
    "silu": Function(slope=_silu, bend=0.5, steep=1.09984, outer=True),
    "mish": Function(slope=_mish, bend=0.65, steep=1.0886, units=16, outer=True),
    "gelu": Function(slope=_gelu, bend=0.79789, steep=1.12891, outer=True),
}
GELU_TANH = Function(slope=_gelu_tanh, bend=0.81, steep=1.129, outer=True)


def function(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of a function of one variable, applied to every element."""
    name = call.name.rstrip("_")
    entry = FUNCTIONS[name]
    if name == "gelu" and call.kwargs.get("approximate", "none") == "tanh":
        entry = GELU_TANH
    x, y = call.value(0), call.results[0]

    def value(z: Tensor) -> Tensor:
        found = call.again(z.clone(), *call.args[1:])
        return found[0] if isinstance(found, tuple) else found

    return _elementwise(call, algebra, entry, x, y, value)


def _elementwise(
    call: OpCall,
    algebra: Algebra,
    entry: Function,
    x: Tensor,
    y: Tensor,
    value: Callable[[Tensor], Tensor],
) -> ErrorState:
    spread = call.spread(0)
    through = None if spread is None else algebra.through(x, y, spread, value, entry)

    def size() -> Tensor:
        total = x.abs() if entry.outer else y.abs()
        reach = spread if entry.outer else through
        return total if reach is None else total + reach

    return add_variances(through, algebra.slack(entry.units, size) if entry.units else None)


def clamp(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of values cut off at limits; also of ReLU with a limit."""
    x, y = call.value(0), call.results[0]
    entry = Function(slope=lambda x, y: (x == y).to(x.dtype), units=0)
    return _elementwise(call, algebra, entry, x, y, lambda z: call.again(z.clone(), *call.args[1:]))


def two_slopes(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of functions with two slopes: leaky ReLU, ELU, threshold."""
    x = call.value(0)
    name = call.name.rstrip("_")

    def slope(x: Tensor, y: Tensor) -> Tensor:
        if name == "leaky_relu":
            return torch.where(x > 0, 1.0, float(call.option(1, 0.01)))
        alpha = float(call.option(1, 1.0))
        return torch.where(x > 0, 1.0, y + alpha)

    entry = Function(slope=slope)
    return _elementwise(
        call, algebra, entry, x, call.results[0], lambda z: call.again(z.clone(), *call.args[1:])
    )


def power(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of x^n, for one n.

    Of whole n >= 0, |(x+e)^n - x^n| <= (|x|+|e|)^n - |x|^n; others are monotone for x > 0.
    """
    x, exponent, spread = call.value(0), call.value(1), call.spread(0)
    if isinstance(exponent, Tensor) and exponent.dim() == 0 and call.spread(1) is None:
        exponent = float(exponent)
    if isinstance(exponent, Tensor) or not isinstance(x, Tensor):
        return _raise(call, algebra)
    y, n = call.results[0], float(exponent)
    through: ErrorState = None
    if call.round_inside is not None:
        through = _by_square(call, algebra, n)
    elif spread is not None and algebra.power == 1 and n >= 0 and n.is_integer():
        size = x.abs()
        through = ((size + spread) ** n - size**n).nan_to_num(math.inf, math.inf)
        # What cancels in float64 is less than this.
        through = torch.where(spread == 0, 0.0, through + size**n * 2.0**-50)
    elif spread is not None:
        entry = Function(slope=lambda x, y: n * x ** (n - 1))
        through = algebra.through(x, y, spread, _positive(n), entry)
    units = {2.0: 1, 0.5: 1, -1.0: 1, 3.0: 2}.get(n, 8)
    return add_variances(through, algebra.slack(units, lambda: _within(y, through)))


def _by_square(call: OpCall, algebra: Algebra, n: float) -> ErrorState:
    """Return the spread of x^3 or x^-2 where x^2 is rounded first, by q.

    dy = y' dx + s q,  s = x for x^3 and -1/x^4 for x^-2; bounds go through both steps, as
    |(x+e)(x^2+f) - x^3| <= |x| f + |e| (x^2 + f) and |1/(x^2+f) - 1/x^2| <= f / (x^2 (x^2 - f)).
    """
    assert call.round_inside is not None
    x, y, spread = call.value(0), call.results[0], call.spread(0)
    e = torch.zeros_like(x) if spread is None else spread
    square = x.square()
    if algebra.power == 2:
        before = 4 * square * e
        own = call.round_inside(square, before if spread is not None else None)
        own = torch.zeros_like(x) if own is None else own - before
        through = n**2 * (y / x).square() * e + (x if n > 0 else y.square()).square() * own
        return torch.where(x == 0, 0.0, through)
    before = 2 * x.abs() * e + e.square()
    before = add_variances(before, algebra.slack(1, lambda: square + before))
    f = call.round_inside(square, before)
    assert f is not None
    if n > 0:
        return x.abs() * f + e * (square + f)
    within = f / (square * (square - f).clamp_min(0))
    return torch.where(f == 0, 0.0, within).nan_to_num(math.inf, math.inf)


def _positive(n: float) -> Callable[[Tensor], Tensor]:
    """Return the function x^n for x that may be moved over 0: unknown there."""
    return lambda z: torch.where(z > 0, z**n, math.nan if n < 0 or not n.is_integer() else z**n)


def _within(y: Tensor, through: ErrorState) -> Tensor:
    return y.abs() if through is None else y.abs() + through


def _raise(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of c^x for a positive number c; of x^y for tensors by both slopes.

    c^x is monotone.
    """
    base, exponent = call.value(0), call.value(1)
    y = call.results[0]
    if call.spread(0) is not None:
        raise lacking(call.name)
    spread = call.spread(1)
    through: ErrorState = None
    if spread is not None:
        entry = Function(slope=lambda x, y: y * torch.as_tensor(base, dtype=y.dtype).log())
        through = algebra.through(
            exponent, y, spread, lambda z: torch.as_tensor(base, dtype=y.dtype) ** z, entry
        )
    return add_variances(through, algebra.slack(8, lambda: _within(y, through)))
