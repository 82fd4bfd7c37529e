"""Whether what a sublayer gave is seen to join the stream, and by what constant.

A block does not say what it adds up. Its sums show in the tensors that go into its children and in
what it gives: where one of them is the stream before plus a child's output, that output is a branch
of the residual stream. Where none is, the child may hold more than a branch: a sum, a norm behind
the sum, several sublayers.
"""

import math
from collections.abc import Sequence

import torch

from layerlab.observe.tracing.device_schedule import read_host
from layerlab.shapes import Hidden

CHECKED_TOKENS = 8
SLACK = 8


def factor(
    branch: Hidden, sums: Sequence[Hidden], bases: Sequence[Hidden], beside: Sequence[Hidden]
) -> float | None:
    """Return the constant factor by which a branch is multiplied where it joins the stream.

    None where it is not seen.

    sum = base + factor * branch,  factor > 0,   or   sum = base + other + branch

    Only the last tokens are compared, on the host, which reads them at once: up to 8 units in the
    last place of the sum's largest entry.

    Unit: none.

    Args:
        branch: what a sublayer gave.
        sums: what may be a sum.
        bases: what may have been the stream.
        beside: what may join together with the branch.

    Example:
        >>> x, branch = torch.eye(3), torch.ones(3, 3)
        >>> factor(branch, [x + 0.5 * branch], [x], [])
        0.5
        >>> factor(branch, [x - branch.exp().cumsum(0)], [x], []) is None
        True
    """
    exact = torch.promote_types(branch.dtype, torch.float32)
    last = [one[-CHECKED_TOKENS:] for one in (branch, *sums, *bases, *beside)]
    part, *read = (one.to(exact) for one in read_host(last))
    totals, added = read[: len(sums)], read[len(sums) : len(sums) + len(bases)]
    others = read[len(sums) + len(bases) :]
    size = float(part.square().sum())
    if not size or not math.isfinite(size):
        return None
    for total in totals:
        slack = SLACK * torch.finfo(branch.dtype).eps * float(total.abs().max())
        for base in added:
            rest = total - base
            scale = float((rest * part).sum()) / size
            plain = [rest - part, *(rest - other - part for other in others)]
            if any(bool(gap.abs().max() <= slack) for gap in plain):
                return 1.0
            if scale * size**0.5 > slack and bool((rest - scale * part).abs().max() <= slack):
                return scale
    return None
