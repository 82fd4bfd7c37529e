"""Large matrices of parameters, such as heads: some rows are widened at a time, as they are read.

In float64 the head of Llama 3, 128,256 x 4,096, would take 4.2 GB, more than two of its layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from layerlab.errors import UserError

# Numbers of a matrix above which it is widened a part at a time, and numbers of such a part.
COPIED = 1 << 24
ChangeRows = Callable[[Tensor], Tensor]


class WeightRows(Tensor):
    """A matrix, or its transpose, whose values are computed when something reads them.

    Lookups compute the rows that they ask for, products a part after another; what reads it
    otherwise gets all at once. Views and sizes of it are such matrices again.

    Args:
        stored: the parameter, of any floating dtype.
        wide: dtype of the values.
        changes: are applied to rows that were widened, in their order; they may write into them.
        turned: whether this is the transpose.
        device: where the values are computed.
    """

    @staticmethod
    def __new__(
        cls,
        stored: Tensor,
        wide: torch.dtype,
        device: torch.device,
        changes: Sequence[ChangeRows] = (),
        turned: bool = False,
    ) -> "WeightRows":
        like = stored.t() if turned else stored
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=wide, device=device
        )

    def __init__(
        self,
        stored: Tensor,
        wide: torch.dtype,
        device: torch.device,
        changes: Sequence[ChangeRows] = (),
        turned: bool = False,
    ) -> None:
        self.stored, self.changes, self.turned = stored, tuple(changes), turned

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def read(self, rows: Any) -> Tensor:
        """Return the values of some rows of the parameter."""
        values = self.stored[rows].to(self.device, self.dtype, copy=True)
        for change in self.changes:
            values = change(values)
        return values

    def whole(self) -> Tensor:
        """Return all values."""
        values = self.read(slice(None))
        return values.t() if self.turned else values

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all values, some rows at a time, with where they stand."""
        step = max(1, COPIED // self.stored.shape[1])
        for start in range(0, len(self.stored), step):
            rows = slice(start, start + step)
            yield rows, self.read(rows)

    def change(self, change: ChangeRows | None = None, turn: bool = False) -> "WeightRows":
        """Return the matrix with one more change of its values, or transposed."""
        changes = self.changes if change is None else (*self.changes, change)
        return WeightRows(self.stored, self.dtype, self.device, changes, self.turned ^ turn)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func._opname in RULES:
            found = RULES[func._opname](func, args, kwargs or {})
            if found is not NotImplemented:
                return found
        if func._schema.is_mutable and isinstance(args[0], WeightRows):
            raise UserError(
                f"{func} writes into a parameter of {args[0].numel():,} numbers, which is never in"
                " memory as a whole; use the form of the operation that returns new tensors"
            )
        args, kwargs = tree_map_only(WeightRows, cls.whole, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def _look_up(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    matrix, index = args[:2]
    if matrix.turned:
        return NotImplemented
    rows = matrix.read(index.flatten().to(matrix.stored.device))
    return rows.view(*index.shape, rows.shape[1])


def _multiply(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Multiply by a transpose, and add what is given for its columns, some columns at a time."""
    *added, left, matrix = args
    if not isinstance(matrix, WeightRows) or not matrix.turned or isinstance(left, WeightRows):
        return NotImplemented
    found = left.new_empty(len(left), matrix.shape[1])
    for columns, values in matrix.parts():
        own = [one[..., columns] if one.shape[-1] > 1 else one for one in added]
        found[:, columns] = func(*own, left, values.t(), **options)
    return found


def _apply(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return args[0].change(func)


def _keep(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    return args[0].change(turn=func._opname == "t")


# By name of an operation, what does it without all values; NotImplemented where it cannot.
RULES: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    "t": _keep,
    "detach": _keep,
    "alias": _keep,
    "abs": _apply,
    "square": _apply,
    "embedding": _look_up,
    "mm": _multiply,
    "addmm": _multiply,
}
