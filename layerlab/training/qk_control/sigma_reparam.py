"""Sigma-reparametrisation: a matrix whose spectral norm is a parameter of its own.

W = (gamma / sigma(V)) V, where V and gamma are learnt and sigma(V) = u^T V v is followed by one
step of power iteration after each update of V. The step is made between updates, not in the forward
pass: V stands still in between, so that the vectors are what they would be, and neither the number
of micro-batches nor a layer that is run again for its gradient moves them. They are buffers, and so
part of every checkpoint.

Source: zhai23, section 3.2. It starts gamma at 1; its authors' code, and ours if nothing is said,
at the norm of the first weights.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from layerlab.training.qk_control.heads import ProjectionRows, QKHead


class Sigma(nn.Module):
    """The matrix of a module from its free form: some of its rows have a norm of their own.

    Attributes:
        gamma: the norms, one for each part.
    """

    def __init__(
        self, weight: Tensor, parts: Sequence[ProjectionRows], start: Literal["norm", "one"]
    ) -> None:
        super().__init__()
        self.parts = [(part.rows, part.turned) for part in parts]
        for number, part in enumerate(parts):
            left, right = _leading(part.of(weight.detach()))
            self.register_buffer(f"left{number}", left)
            self.register_buffer(f"right{number}", right)
        first = torch.ones(len(parts), dtype=weight.dtype, device=weight.device)
        self.gamma = nn.Parameter(
            self._norms(weight.detach()).to(weight) if start == "norm" else first
        )

    def forward(self, weight: Tensor) -> Tensor:
        """Return the matrix that the module multiplies with."""
        factors = self.gamma / self._norms(weight)
        rows, turned = self.parts[0]
        if rows is None:
            return weight * factors.to(weight.dtype)
        each = torch.ones(weight.shape[int(turned)], dtype=factors.dtype, device=weight.device)
        for number, (rows, _) in enumerate(self.parts):
            assert rows is not None
            one = factors[number].expand(len(rows))
            each = each.index_put((rows.to(weight.device),), one)
        return weight * (each if turned else each[:, None]).to(weight.dtype)

    def _norms(self, weight: Tensor) -> Tensor:
        """Return u^T V v of each part.

        Elementwise and in float32, whatever autocast does to products.
        """
        found = []
        for number, part in enumerate(self._matrices(weight)):
            left, right = self._vectors(number)
            wide = part.to(torch.promote_types(part.dtype, torch.float32))
            found.append((wide * left.to(wide)[:, None] * right.to(wide)).sum())
        return torch.stack(found)

    @torch.no_grad()
    def iterate(self, weight: Tensor) -> None:
        """Do one step of power iteration: u = V v, v = V^T u, each of length 1."""
        for number, part in enumerate(self._matrices(weight)):
            left, right = self._vectors(number)
            left.copy_(nn.functional.normalize(part @ right, dim=0))
            right.copy_(nn.functional.normalize(part.T @ left, dim=0))

    def _vectors(self, number: int) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"left{number}"), self.get_buffer(f"right{number}")

    def _matrices(self, weight: Tensor) -> list[Tensor]:
        found = []
        for rows, turned in self.parts:
            matrix = weight.T if turned else weight
            found.append(matrix if rows is None else matrix[rows.to(weight.device)])
        return found


def _leading(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular vectors of the largest singular value."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, 0].clone(), right[0].clone()


class Reparametrisation:
    """The query and key matrices of a model under `Sigma`, until `finish`.

    Args:
        heads: where the matrices are.
        start: of gamma.
    """

    def __init__(self, heads: Sequence[QKHead], start: Literal["norm", "one"]) -> None:
        self._wrapped: list[tuple[nn.Module, Sigma]] = []
        self._order: list[list[str]] = []
        sigmas: dict[int, Sigma] = {}
        for head in heads:
            together = head.query.module is head.key.module
            parts = [[head.query, head.key]] if together else [[head.query], [head.key]]
            for part in parts:
                self._wrap(part, start, sigmas)

    def _wrap(
        self,
        parts: Sequence[ProjectionRows],
        start: Literal["norm", "one"],
        sigmas: dict[int, Sigma],
    ) -> None:
        module = parts[0].module
        weight: Tensor = module.weight  # type: ignore[assignment]
        # Layers may share a matrix; they then share its norm.
        sigma = sigmas.get(id(weight)) or Sigma(weight, parts, start)
        sigmas[id(weight)] = sigma
        self._order.append(list(module._parameters))
        parametrize.register_parametrization(module, "weight", sigma)
        self._wrapped.append((module, sigma))

    def after_update(self) -> None:
        """Follow the matrices with one step of power iteration each."""
        seen: set[int] = set()
        for module, sigma in self._wrapped:
            if id(sigma) not in seen:
                seen.add(id(sigma))
                sigma.iterate(_original(module).detach())

    @torch.no_grad()
    def finish(self) -> None:
        """Leave plain matrices that hold what the model multiplied with."""
        plain = [module.weight.clone() for module, _ in self._wrapped]  # type: ignore[operator]
        for module, _ in self._wrapped:
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        for (module, _), weight, names in zip(self._wrapped, plain, self._order, strict=True):
            module.weight.copy_(weight)  # type: ignore[operator]
            for name in names:  # a state dict then lists them as it did
                module._parameters[name] = module._parameters.pop(name)
        self._wrapped.clear()


def _original(module: nn.Module) -> Tensor:
    found: Tensor = module.parametrizations.weight.original  # type: ignore[union-attr,assignment]
    return found
