"""Sizes at which a variant has as many parameters, or costs as much, as another: equal terms.

Only the account's formulas are asked; no model is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec
from layerlab.console.units import difference
from layerlab.errors import UserError
from layerlab.model.cost.cost import Account, account
from layerlab.model.design import SIZES, Design, design, find_model

WAYS = ("ffn", "depth", "width", "none")
MEASURES = ("parameters", "flops")
_SET: dict[str, str] = {"ffn": "inner", "depth": "layers", "width": "width"}
_MOST: dict[str, int] = {"ffn": 2**24, "depth": 2**8, "width": 2**20}


@dataclass(frozen=True, kw_only=True)
class Match:
    """A shape that was sought, and what is left between the two.

    Attributes:
        shape: at which the spec comes nearest to the target.
        by: the size that was changed.
        on: what was to be equal: parameters, or FLOPs of one token's forward pass.
        found: how many it has at this shape.
        wanted: how many the target has.
    """

    shape: Shape
    by: str
    on: str
    found: int
    wanted: int

    @property
    def mismatch(self) -> int:
        """Return the difference that is left: positive where the matched model has more."""
        return self.found - self.wanted

    @property
    def percent(self) -> float:
        """Return the difference that is left, in percent of what was wanted."""
        return 100 * self.mismatch / self.wanted

    @property
    def brief(self) -> str:
        """Return what was changed, to what, and the difference left, as `inner 344, +0.04 %`."""
        size = _SET.get(self.by)
        setting = f"{size} {getattr(self.shape, size)}" if size else "no size changed"
        return f"{setting}, {difference(self.percent, 2)} %"

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the shape as `build` takes it."""
        return {name: getattr(self.shape, name) for name in SIZES}

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, numbers and texts."""
        counts = {"found": self.found, "wanted": self.wanted, "mismatch": self.mismatch}
        return {"by": self.by, "on": self.on, **counts, "percent": self.percent} | {
            "sizes": self.sizes
        }

    def __str__(self) -> str:
        size = _SET.get(self.by)
        setting = f"{size}={getattr(self.shape, size)}" if size else "no size changed"
        return (
            f"{setting}: {self.found:,} {_unit(self.on)} against {self.wanted:,}, "
            f"{self.mismatch:+,} ({difference(self.percent, 3)} %)"
        )


def matched(
    name: str,
    against: str | None = None,
    *,
    by: str = "ffn",
    on: str = "parameters",
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Match:
    """Find the sizes at which a variant costs as much as another, which keeps the sizes given.

    Args:
        name: the variant that is resized.
        against: the one that keeps its sizes; its baseline if left out; a preset brings its own.
        by: what is resized: "ffn", "depth", "width", or "none" to learn the mismatch as it is.
        on: what is to be equal, "parameters" or "flops" of one token's forward pass.
        preset: whose sizes to start from.
        options: of the variant that is resized.
        sizes: as `build` takes them.

    Raises:
        UserError: an unknown name or size, or no size makes them equal.

    Example:
        >>> found = matched("llama", "gpt2", by="ffn")
        >>> abs(found.percent) < 0.1
        True
        >>> from layerlab.model.build import build
        >>> build("llama", **found.sizes, device="meta").num_parameters() == found.found
        True
    """
    for size in sizes:
        if size not in SIZES:
            raise UserError(f"{size!r} is not a size; expected {', '.join(SIZES)}: type width=64")
    own = design(name, preset=preset, sizes=sizes, options=options)
    other = design_baseline(own, against, sizes)
    return match(own.spec, own.shape, account(other.spec, other.shape), by=by, on=on)


def design_baseline(own: Design, against: str | None, sizes: Mapping[str, Any]) -> Design:
    """Return the other side of a comparison: at the sizes of the first, unless it is a preset.

    Raises:
        UserError: nothing has this name.
    """
    against = own.variant.baseline if against is None else against
    chosen, _ = find_model(against)
    return design(against, sizes=own.asked if chosen is None else sizes)


def match(
    spec: Spec,
    shape: Shape,
    target: Account,
    *,
    by: str = "ffn",
    on: str = "parameters",
) -> Match:
    """Find the shape, changed in one size, at which a spec comes nearest to an account.

    A width keeps the number of heads and the feed-forward's share of the width, and that of a head
    where all heads together are not as wide as the model.

    Raises:
        UserError: the size changes nothing, or even the smallest is too large.
    """
    if by not in WAYS or on not in MEASURES:
        raise UserError(
            f"cannot match by {by!r} on {on!r}; expected by {', '.join(WAYS)} and on "
            f'{" or ".join(MEASURES)}: type by="ffn"'
        )
    wanted = _count(target, on)
    if by == "none":
        found = _count(account(spec, shape), on)
        return Match(shape=shape, by=by, on=on, found=found, wanted=wanted)
    best = _nearest(lambda step: _count(account(spec, _resize(shape, by, step)), on), wanted, by)
    near = _resize(shape, by, best)
    found = _count(account(spec, near), on)
    return Match(shape=near, by=by, on=on, found=found, wanted=wanted)


def _resize(shape: Shape, by: str, step: int) -> Shape:
    if by == "ffn":
        return replace(shape, inner=step)
    if by == "depth":
        return replace(shape, layers=step)
    head_width = 2 * step  # rotary positions need an even one
    width = head_width * shape.heads
    if shape.head_width * shape.heads != shape.width:
        head_width = shape.head_width
    inner = max(1, round(width * shape.inner / shape.width))
    return replace(shape, width=width, head_width=head_width, inner=inner)


def _others(by: str) -> str:
    """Return what to type in place of a size that cannot be matched by."""
    first, second = (way for way in ("ffn", "depth", "width") if way != by)
    return (
        f"match by {first} or {second}: type --match {first} with layerlab variants, or write "
        f'compare.match_by = "{first}" in a recipe'
    )


def _nearest(count: Callable[[int], int], wanted: int, by: str) -> int:
    """Return the step at which a growing count is nearest to the wanted one."""
    if count(1) == count(64):
        raise UserError(
            f"matching by {by} changes nothing here: this variant costs the same at every size; "
            f"{_others(by)}"
        )
    if count(1) > wanted:
        raise UserError(
            f"the smallest {by} already gives {count(1):,} where {wanted:,} are wanted; "
            f"{_others(by)}"
        )
    low, high = 1, 2
    while count(high) < wanted:
        low, high = high, 2 * high
        if high > _MOST[by]:
            raise UserError(
                f"no {by} up to {low} reaches the {wanted:,} that are wanted; {_others(by)}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    return min((low, high), key=lambda step: abs(count(step) - wanted))


def _count(cost: Account, on: str) -> int:
    return cost.parameters if on == "parameters" else cost.forward


def _unit(on: str) -> str:
    return "parameters" if on == "parameters" else "FLOPs per token"
