"""How often two runs choose otherwise, as among experts, and how often their margins say so."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Choices on either side of a margin whose errors tell how large its own may be.
BESIDE = 2


@dataclass(kw_only=True)
class ExpertChoices:
    """Choices of two runs among the same values.

    Attributes:
        total: how many, one a token and router.
        changed: those in which the second run alone would have chosen otherwise.
        expected: how many would have changed by chance, from margins and the size of the errors.
    """

    total: int = 0
    changed: int = 0
    expected: float = 0.0

    def add(self, other: "ExpertChoices") -> None:
        """Count another's choices, too."""
        self.total += other.total
        self.changed += other.changed
        self.expected += other.expected


def compare_choices(values: tuple[Tensor, Tensor], chosen: tuple[Tensor, Tensor]) -> ExpertChoices:
    """Compare the best k values of each row in two runs.

    P(changed) = erfc(m / (2 s)) / 2,   m = s_(k) - s_(k+1),   s = standard deviation of b - a

    m is the margin of the first run between the last that it takes and the first that it leaves,
    s that of the errors of the choices beside it, up to two of each, since larger values have
    larger errors. Errors are taken as normal and independent, and other pairs as far apart.

    Source: Own.

    Args:
        values: row x choice, of each run.
        chosen: row x k, which each run has chosen.
    """
    count = chosen[0].shape[-1]
    if not count:  # as where a text is shorter than the blocks of tokens to choose among
        return ExpertChoices()
    mine, theirs = (one.sort(-1).values for one in chosen)
    changed = int((mine != theirs).any(-1).sum())
    found = ExpertChoices(total=chosen[0][..., 0].numel(), changed=changed)
    if count < values[0].shape[-1]:
        first, second = (one.double() for one in values)
        best = first.topk(min(count + BESIDE, first.shape[-1]), -1)
        margin = best.values[..., count - 1] - best.values[..., count]
        # What a mask has taken out is no error.
        apart = (second - first).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        size = apart.gather(-1, best.indices[..., max(count - BESIDE, 0) :]).std(-1)
        likely = torch.erfc(margin / (2 * size)) / 2
        found.expected = float(torch.where(size > 0, likely, 0.0).sum())
    return found
