"""Detect that a sublayer's output joins the stream, and its constant factor.

A block does not say what it adds up. Its sums show in the tensors that go into its children and in
what it gives: where one of them is the stream before plus a child's output, that output is a branch
of the residual stream. Where none is, the child may hold more than a branch: a sum, a norm behind
the sum, several sublayers.
"""

import math
from collections.abc import Sequence
from itertools import product

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

    Only the last tokens are compared, on the host, which reads them at once: each entry up to 8
    units in the last place of the largest that is added there. The factor is read off the entries
    where the branch is larger than that, and is 1 where rounding explains the difference.

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
    last = [one[-CHECKED_TOKENS:] for one in (branch, *sums, *bases, *beside)]
    part, *read = read_host(last)
    totals, added = read[: len(sums)], read[len(sums) : len(sums) + len(bases)]
    others = read[len(sums) + len(bases) :]
    size = float(part.square().sum())
    if not size or not math.isfinite(size):
        return None
    for given, total in zip(sums, totals, strict=True):
        unit = SLACK * max(torch.finfo(one.dtype).eps for one in (branch, given))
        for base, other in product(added, (None, *others)):
            met = [total, base] if other is None else [total, base, other]
            rest, slack = total - sum(met[1:]), unit * torch.stack(met).abs().amax(0)
            plain = _is_within(rest - part, slack)
            if not plain and other is not None:
                continue
            scale, error = _fit(part, rest, slack)
            if plain and abs(scale - 1) <= error:
                return 1.0
            if other is None and scale > error and _is_within(rest - scale * part, slack):
                return scale
    return None


def _fit(part: Hidden, rest: Hidden, slack: Hidden) -> tuple[float, float]:
    """Return which multiple of a branch is left of a sum, and how far rounding may move that.

    Entries count by their accuracy, and not at all where rounding may hide the branch; where it may
    everywhere, nothing is known of the factor.
    """
    known = (part.abs() >= slack) & (slack > 0)
    shares, seen = (torch.where(known, one / slack, 0.0) for one in (part, rest))
    size = float(shares.square().sum())
    if not size:
        return 1.0, math.inf
    # Of the SLACK units that are allowed, two sums and a product each round by half a one.
    return float((shares * seen).sum()) / size, 1.5 / SLACK * float(shares.abs().sum()) / size


def _is_within(gap: Hidden, slack: Hidden) -> bool:
    return bool((gap.abs() <= slack).all())
