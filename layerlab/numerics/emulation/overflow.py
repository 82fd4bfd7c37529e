"""An emulation that is watched for the first number beyond the range of its format."""

from collections.abc import Sequence
from math import inf
from typing import Any

from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.emulation.weight_rows import WeightRows


class WatchedEmulation(Emulation):
    """An emulation that remembers the first place whose results are infinite or NaN.

    Masks are -inf as well, so that only +inf counts: what overflows is rarely negative alone.

    Attributes:
        watching: whether results are looked at.
        overflow: the place, once there is one.
    """

    watching = True
    overflow: OpSite | None = None

    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        super().settle(func, inputs, outputs)
        if not self.watching or self.overflow is not None:
            return
        made = [one.held for one in outputs if not isinstance(one.held, WeightRows)]
        if not all(bool((one < inf).all()) for one in made):
            self.overflow = self._place
