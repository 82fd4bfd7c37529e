"""By how much a map enlarges small relative changes of its input: said, derived, and tried."""

from dataclasses import dataclass

import torch
from torch import Tensor

from layerlab.numerics.theory import condition_numbers
from layerlab.shapes import Map

# A relative perturbation that is small enough for first order and large beside float64.
STEP = 2.0**-30
SIGNS = 16
FORM, UNIFORM, EXACT, WORST, TYPICAL = range(5)
COLUMNS = (
    "condition number, closed form",
    "uniform form",
    "condition number, by Jacobian",
    "worst perturbation",
    "random perturbation",
)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A map at an input, with what is said of its condition there.

    Attributes:
        form: its condition number in closed form, or the closest bound on it.
        uniform: the weaker form that knows less of the input; NaN: there is none.
        normwise: whether it is about lengths, and not about entries.
    """

    name: str
    f: Map
    x: Tensor
    form: Tensor
    uniform: Tensor
    normwise: bool = False


def measure(module: Module, generator: torch.Generator) -> Tensor:
    """Measure the numbers of one module, in the order of `COLUMNS`."""
    f, x = module.f, module.x
    value = f(x)
    jacobian = torch.func.jacrev(f)(x).reshape(len(value), -1)
    flat = x.flatten()
    if module.normwise:
        # The last token alone is mapped: lengths of the others would only dilute it.
        width = len(value)
        exact = condition_numbers.normwise(jacobian[:, -width:], flat[-width:], value)
        along = torch.linalg.svd(jacobian[:, -width:]).Vh[0] * flat[-width:].norm()
        shifts = torch.zeros_like(x)
        shifts[-1] = along
    else:
        exact = condition_numbers.componentwise(jacobian, flat, value)
        reach = condition_numbers.quotient(jacobian.abs() @ flat.abs(), value)
        shifts = (jacobian[reach.argmax()].sign() * flat.abs()).view_as(x)
    worst = amplify(module, shifts)
    drawn = []
    for _ in range(SIGNS):
        # Drawn where the generator is, so that each device has the same.
        signs = torch.randint(0, 2, x.shape, generator=generator) * 2.0 - 1
        drawn.append(amplify(module, x * signs.to(x.device)))
    typical = torch.stack(drawn).median()
    return torch.stack([one.cpu() for one in (module.form, module.uniform, exact, worst, typical)])


def amplify(module: Module, shift: Tensor) -> Tensor:
    """Return by how much a module enlarges a relative change of its input of size `STEP`.

    The change is taken from both sides, so that effects of second order cancel.
    """
    f, x = module.f, module.x
    change = (f(x + STEP * shift) - f(x - STEP * shift)) / (2 * STEP)
    value = f(x)
    if module.normwise:
        return change.norm() / value.norm()
    return condition_numbers.quotient(change, value).max()
