"""Every formula once more, one scalar operation after another, each result handed to `rounded`.

Sums run from the first term to the last. `rounded(value, kind)` either rounds to so many digits, or
multiplies with 1 + delta where every delta is a variable of its own: then gradients say what all
roundings together can do at worst.
"""

import math

import torch

from layerlab.numerics.theory.roundoff_model import Arithmetic

DOUBLE = torch.float64


def round_digits(x, unit):
    """To the nearest number of t digits, ties to even, unlimited exponent; unit = 2^-t, or 0."""
    if unit == 0:
        return x
    digits = round(-math.log2(unit))
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(digits))), exponent - digits)


class Rounded:
    """Rounds each operation with its own unit."""

    def __init__(self, arithmetic: Arithmetic):
        self.units = arithmetic.units()

    def __call__(self, x, kind):
        return round_digits(x, self.units[kind])


class Disturbed:
    """Multiplies each result with 1 + delta; `deltas`, where given, are those of an earlier run."""

    def __init__(self, arithmetic: Arithmetic, deltas=()):
        self.units, self.given, self.made, self.sizes = arithmetic.units(), list(deltas), [], []

    def __call__(self, x, kind):
        if self.units[kind] == 0:
            return x
        if self.given:
            return x * (1 + self.given.pop(0))
        delta = torch.zeros_like(x, requires_grad=True)
        self.made.append(delta)
        self.sizes.append(self.units[kind])
        return x * (1 + delta)


class Literal:
    """The modules, in the order of operations that the bounds count."""

    def __init__(self, rounded):
        self.rounded = rounded

    def add(self, a, b, kind):
        """Exact where a term is 0."""
        total = a + b
        return torch.where((a == 0) | (b == 0), total, self.rounded(total, kind))

    def total(self, x, kind):
        found = x[..., 0]
        for index in range(1, x.shape[-1]):
            found = self.add(found, x[..., index], kind)
        return found

    def product(self, x, weight, bias=None):
        """x W^T + b, stored."""
        terms = self.rounded(x[..., :, None, :] * weight, "product")
        found = self.total(terms, "sum")
        if bias is not None:
            found = self.add(found, bias, "sum")
        return self.rounded(found, "store")

    def centre(self, x):
        mean = self.rounded(self.total(x, "norm") / x.shape[-1], "norm")
        return self.rounded(x - mean[..., None], "norm")

    def norm(self, x, parts):
        width = x.shape[-1]
        if parts.kind == "layer":
            x = self.centre(x)
        square = self.total(self.rounded(x * x, "norm"), "norm")
        if parts.eps:
            mean = self.rounded(self.rounded(square / width, "norm") + parts.eps, "norm")
            if parts.extra:
                mean = self.rounded(mean.sqrt(), "norm").square()
            inverse = self.rounded(mean.rsqrt(), "norm")
            found = self.rounded(x * inverse[..., None], "norm")
        else:
            length = self.rounded(square.sqrt(), "norm")[..., None]
            root = self.rounded(torch.tensor(width, dtype=DOUBLE).sqrt(), "constant")
            safe = torch.where(length > 0, length, 1.0)
            found = self.rounded(self.rounded(x / safe, "norm") * root, "norm")
        if parts.gain is not None:
            gain = parts.gain
            if parts.offset:
                gain = self.rounded(1 + (gain - 1), "gain")
            found = self.rounded(found * gain, "gain")
        if parts.shift is not None:
            found = self.rounded(found + parts.shift, "gain")
        return self.rounded(found, "store")

    def elementwise(self, z, name):
        def op(x):
            return self.rounded(x, "activation")

        if name == "relu":
            found = z.clamp_min(0)
        elif name == "silu":
            found = op(z / op(1 + op(torch.exp(-z))))
        elif name == "silu-product":
            found = op(z * op(1 / op(1 + op(torch.exp(-z)))))
        elif name == "gelu":
            root = op(torch.full_like(z, math.sqrt(0.5)))
            found = op(z / 2 * op(1 + op(torch.erf(op(z * root)))))
        else:
            cube = op(op(z * z) * z)
            inner = op(z + op(cube * op(torch.full_like(z, 0.044715))))
            root = op(torch.full_like(z, math.sqrt(2 / math.pi)))
            found = op(z / 2 * op(1 + op(torch.tanh(op(inner * root)))))
        return self.rounded(found, "store")

    def mlp(self, x, parts):
        inner = self.product(x, parts.inward, parts.inward_bias)
        if parts.gate is None:
            hidden = self.elementwise(inner, parts.activation)
        else:
            gate = self.product(x, parts.gate, parts.gate_bias)
            hidden = self.rounded(self.elementwise(gate, parts.activation) * inner, "gate")
        return self.product(hidden, parts.outward, parts.outward_bias)

    def rotate(self, x, parts):
        if parts.cosine is None:
            return x
        first, second = x.chunk(2, -1)
        cosine = self.rounded(parts.cosine, "constant")
        sine = self.rounded(parts.sine, "constant")
        swapped = torch.cat([-second, first], -1)
        one, other = self.rounded(x * cosine, "rotary"), self.rounded(swapped * sine, "rotary")
        return self.rounded(one + other, "rotary")

    def scores(self, x, parts, index=0):
        head = parts.head(index)
        query = self.rotate(self.product(x, head.query, head.query_bias), parts)
        key = self.rotate(self.product(x, head.key, head.key_bias), parts)
        terms = self.rounded(query[..., :, None, :] * key[..., None, :, :], "product")
        factor = self.rounded(torch.tensor(parts.scale, dtype=DOUBLE), "constant")
        found = self.rounded(self.total(terms, "sum") * factor, "scale")
        return self.rounded(found, "store")

    def softmax(self, s, allowed, shifted=True):
        if shifted:
            top = s.masked_fill(~allowed, -torch.inf).amax(-1, keepdim=True)
            s = torch.where(s == top, 0.0, self.rounded(s - top, "softmax"))
        power = self.rounded(torch.exp(s), "softmax").masked_fill(~allowed, 0.0)
        chance = self.rounded(power / self.total(power, "softmax")[..., None], "softmax")
        return self.rounded(chance, "store")

    def attention(self, x, parts):
        sides = []
        for index in range(parts.heads):
            head = parts.head(index)
            chance = self.softmax(self.scores(x, parts, index), parts.mask(x), parts.shifted)
            value = self.product(x, head.value, head.value_bias)
            terms = self.rounded(chance[..., :, None, :] * value.mT[..., None, :, :], "product")
            sides.append(self.rounded(self.total(terms, "sum"), "store"))
        side, joined = torch.cat(sides, -1), parts.joined_output()
        return side if joined is None else self.product(side, joined, parts.output_bias)

    def block(self, x, parts):
        attended = self.attention(self.norm(x, parts.attention_norm), parts.attention)
        middle = self.rounded(x + attended, "residual")
        left = self.mlp(self.norm(middle, parts.feedforward_norm), parts.feedforward)
        return self.rounded(middle + left, "residual")


def worst(run, arithmetic, outputs=None):
    """First order: the largest |error| of every output entry over all |delta| <= u, exactly.

    `run(literal)` gives the output. With `outputs`, a number, only the first so many entries.
    """
    disturbed = Disturbed(arithmetic)
    out = run(Literal(disturbed)).flatten()
    found = []
    if not disturbed.made:
        return torch.zeros_like(out[:outputs])
    for entry in out[:outputs]:
        grads = torch.autograd.grad(entry, disturbed.made, retain_graph=True, allow_unused=True)
        pairs = zip(grads, disturbed.sizes, strict=True)
        found.append(sum((u * g.abs().sum() for g, u in pairs if g is not None), torch.zeros(())))
    return torch.stack(found).double()


def pushed(run, arithmetic, index):
    """The true error of every entry when all deltas take the sign that hurts one entry most."""
    disturbed = Disturbed(arithmetic)
    out = run(Literal(disturbed))
    entry = out.flatten()[index]
    grads = torch.autograd.grad(entry, disturbed.made, allow_unused=True)
    found = []
    for sign in (1.0, -1.0):
        deltas = [
            torch.zeros_like(delta) if g is None else sign * u * g.sign()
            for g, u, delta in zip(grads, disturbed.sizes, disturbed.made, strict=True)
        ]
        found.append((run(Literal(Disturbed(arithmetic, deltas))) - out.detach()).abs())
    return torch.maximum(*found).detach()


def observed(run, arithmetic, exact):
    """|computed - exact| with every result rounded to nearest."""
    return (run(Literal(Rounded(arithmetic))) - exact).abs()
