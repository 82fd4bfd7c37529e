"""Spectral norms of weight matrices, from below, and the product of those of a block.

Matrices of one shape that fit on a device together are multiplied side by side.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import nan

import torch
from torch import Tensor

from layerlab.measures.support.golub_kahan import AnyMatrix, KrylovRun, converge
from layerlab.measures.support.lanczos import Krylov
from layerlab.observe.architecture.weight_matrices import EXPERT
from layerlab.observe.tracing.device_schedule import PROCESSOR, device_schedule, widen
from layerlab.observe.tracing.host_steps import run_steps

WEIGHT_STEPS, WEIGHT_TOLERANCE = 64, 1e-8
"""For weight matrices, whose products are cheap: the error of the squared value.

At 1e-6 one random matrix in 1,500 stopped at its second singular value, up to a quarter short.
"""

FLOAT = 4
"""Bytes of an entry of a weight matrix while products with it are taken."""

UNKNOWN = torch.tensor(nan)


def spectral_norms(matrices: Sequence[AnyMatrix]) -> list[Tensor]:
    """Return the largest singular value of each weight matrix, by products with it.

    It is accurate to six digits, and stays on its device.

    ||W||_2 = max_x |W x| / |x|

    Source: golub13, section 10.4.
    Unit: that of the weights.

    Example:
        >>> [round(float(one), 6) for one in spectral_norms([torch.diag(torch.tensor([1.0, 4.0]))])]
        [4.0]
    """
    found = dict[int, Tensor]()
    for group in _groups(matrices):
        alike: dict[tuple[object, ...], list[int]] = {}
        for number in group:
            matrix = matrices[number]
            alike.setdefault((*sorted(matrix.shape), matrix.dtype), []).append(number)
        runs = [
            _StackedNorms(
                [_tall(matrices[number]) for number in numbers],
                steps=WEIGHT_STEPS,
                tolerance=WEIGHT_TOLERANCE,
            )
            for numbers in alike.values()
        ]
        run_steps(converge(runs))
        for numbers, run in zip(alike.values(), runs, strict=True):
            found |= zip(numbers, run.norms(), strict=True)
    return [found[number] for number in range(len(matrices))]


def _tall(matrix: AnyMatrix) -> AnyMatrix:
    """Return a matrix or its transpose, so that what a run keeps is as short as can be."""
    return matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix


def _groups(matrices: Sequence[AnyMatrix]) -> Iterator[Sequence[int]]:
    """Yield numbers of matrices: one by one on a processor, as many as fit together elsewhere."""
    group: list[int] = []
    room = 0.0
    for number, matrix in enumerate(matrices):
        size = float(matrix.numel() * FLOAT)
        if group and (size > room or matrix.device != matrices[group[0]].device):
            yield group
            group = []
        if not group:
            room = room_for_weights(matrix.device)
        group.append(number)
        room -= size
    if group:
        yield group


def room_for_weights(device: torch.device) -> float:
    """Return the bytes of matrices that are multiplied side by side."""
    schedule = device_schedule(device)
    return 0.0 if schedule is PROCESSOR else schedule.tile_bytes


def weight_products(blocks: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return the product of the spectral norms of each block's matrices; of experts, the largest.

    weights = prod_W ||W||_2

    It bounds the block's Lipschitz constant for no block with dot-product attention, which has
    none; it shows which layers have large weights.

    Source: kim21, section 3 (why it is no bound).
    Unit: none.

    Args:
        blocks: of each its matrices by name; `experts.0.up`, `experts.1.up`, ... and the slices of
            a stack of matrices count as one, with their largest norm.
    """
    roles: list[tuple[int, str]] = []
    parts: list[AnyMatrix] = []
    for number, given in enumerate(blocks):
        for name, tensor in given.items():
            if name.endswith("bias"):  # of stacked experts: one vector each, not a matrix
                continue
            each = tensor.reshape(-1, *tensor.shape[-2:])
            roles += [(number, EXPERT.sub(".*", name))] * len(each)
            parts += each
    largest: list[dict[str, Tensor]] = [{} for _ in blocks]
    for (number, role), norm in zip(roles, spectral_norms(parts), strict=True):
        found = largest[number]
        found[role] = torch.maximum(found[role], norm.to(found[role])) if role in found else norm
    return [reduce(torch.mul, found.values()) if found else UNKNOWN for found in largest]


def weight_bytes(given: Mapping[str, Tensor]) -> int:
    """Return the bytes that matrices take while products with them are taken."""
    return sum(tensor.numel() for tensor in given.values()) * FLOAT


class _StackedNorms(KrylovRun):
    """The largest singular values of matrices of one shape, by a Lanczos run on W^T W of each.

    Args:
        tolerance: the estimated relative error of a squared norm at which to stop.
    """

    def __init__(self, matrices: Sequence[AnyMatrix], *, steps: int, tolerance: float) -> None:
        kind = torch.promote_types(matrices[0].dtype, torch.float32)
        stack = [matrix.detach().to(kind) for matrix in matrices]
        # One matrix is not copied.
        wide = torch.stack(stack) if len(stack) > 1 else stack[0][None]
        start = torch.randn(wide.shape[2], generator=torch.Generator().manual_seed(0)).to(wide)
        self.settled, self.device = False, wide.device
        self._wide = wide
        self._krylov = Krylov(start.expand(len(wide), -1), steps, tolerance / torch.finfo(kind).eps)

    def advance(self) -> None:
        image = self._image()
        product = torch.bmm(self._wide.mT, image[..., None])[..., 0]
        self._krylov.absorb(product, widen(image).square().sum(1))

    def norms(self) -> Tensor:
        """Return ||W x|| at the best vector, which does not square the rounding error."""
        return widen(self._image()).norm(dim=1)

    def _image(self) -> Tensor:
        return torch.bmm(self._wide, self._krylov.vector[..., None])[..., 0]
