"""A bound of fused attention that scores cannot break: what is mixed lies among what is mixed from.

Step by step, numerator and sum of the weights count as independent, and where the scores are hardly
known their quotient has no bound; but weights are not negative and are divided by their own sum.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.numerics.emulation.arithmetic import EmulatedArithmetic
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.emulation.unfused_attention import MarkRun, UnfusedAttention
from layerlab.numerics.formats.formats import Format

SINGLE = Format(name="fp32", digits=24, lowest=-126, highest=127, largest=(2 - 2.0**-23) * 2.0**127)


class ConvexBound(UnfusedAttention):
    """Fused attention in a run that carries bounds.

    |out'| <= max_j |v'_j| (1 + excess), as sum_j round(e_j) <= (1 + excess) total and total >= 1,
    e_j being exp(0) = 1 where the score is the highest. So |out' - out| <= |out'| + |out|.

    Args:
        arithmetic: of the emulated run.
        unit: roundoff of the arithmetic that results are made in before they are rounded.
        mark, copies: as of `UnfusedAttention`.
    """

    def __init__(
        self,
        arithmetic: EmulatedArithmetic,
        unit: float,
        mark: MarkRun | None = None,
        copies: int = 2,
    ) -> None:
        super().__init__(mark=mark, copies=copies)
        self.unit = unit
        formats = [one for one in arithmetic.results.values() if isinstance(one, Format)]
        self.formats = (*formats, SINGLE)
        # Sums that are rounded on the way, or values read through a cache, are not followed here.
        self.follows = arithmetic.accumulate is None and arithmetic.cache is None

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        found = super().attend(*args, **kwargs)
        if isinstance(found, EmulatedTensor) and found.spread is not None and self.follows:
            with _disable_current_modes():
                most = self._most(*args, **kwargs)
                if most is not None:
                    found.spread = torch.minimum(found.spread, most + found.held.abs())
        return found

    def _most(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """Return how large each result may be; None where something may overflow on the way."""
        if dropout_p or (attn_mask is not None and attn_mask.dtype != torch.bool):
            return None
        asked, keys, values = _reach(query), _reach(key), _reach(value)
        count = keys.shape[-2]
        most = min(format.largest for format in self.formats) / 2
        factor = query.shape[-1] ** -0.5 if scale is None else abs(scale)
        # No score and no sum on the way to it is larger than this.
        score = asked.norm(dim=-1).amax() * keys.norm(dim=-1).amax() * max(factor, 1.0)
        if not bool(score * 2 < most) or count >= most:
            return None
        reach = values.amax(dim=-2, keepdim=True)
        if enable_gqa:
            reach = reach.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        reach = reach * self._excess(count) + 4 * count * self._tiny()
        return torch.where(reach * count < most, reach, torch.inf)

    def _excess(self, count: int) -> float:
        """Return the factor by which rounding may exceed the bound.

        Roundings of weights, sum, product, quotient and result, in any mode, and two sums.
        """
        once = 2 * max(format.unit for format in self.formats)
        sums = (count + 16) * self.unit
        if once >= 1 or sums >= 0.5:
            return torch.inf
        inside = (1 + once) ** 4 / (1 - once) * ((1 + sums) / (1 - sums)) ** 2
        return inside * (1 + 2 * count * self._tiny() / (1 - once))

    def _tiny(self) -> float:
        """Return the smallest number, which 0 may become where it is rounded up."""
        lowest = [(one.lowest, one.digits) for one in self.formats if one.lowest is not None]
        return max(2.0 ** (low - digits + 1) for low, digits in lowest if low is not None)


def _reach(value: Any) -> Tensor:
    held: Tensor = value.held if isinstance(value, EmulatedTensor) else value.double()
    spread = value.spread if isinstance(value, EmulatedTensor) else None
    return held.abs() if spread is None else held.abs() + spread
