"""Differing choices of two runs, as among experts, and how often their margins say so."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from layerlab.numerics.profiles.token_differences import SHARE, NamedValue

# Choices on either side of a margin whose errors tell how large its own may be.
BESIDE = 2


class ChangedChoices(NamedTuple):
    """Choices of two runs among the same values, a row each.

    Attributes:
        changed: whether the second run alone would have chosen otherwise.
        likely: how probable that was, by the margin and the size of the errors.
    """

    changed: Tensor
    likely: Tensor


@dataclass(kw_only=True)
class ExpertChoices:
    """Numbers of choices that two runs make differently, and of the tokens they do so at.

    Attributes:
        total: how many, one a token and router.
        changed: those in which the second run alone would have chosen otherwise.
        expected: how many would have changed by chance, from margins and the size of the errors.
        tokens: of which the next one is predicted.
        tokens_changed: those with a changed choice in some layer.
        tokens_expected: how many would have one by chance, if layers did not depend on another.
        share: of the squared difference that lies on tokens with a changed choice.
    """

    total: int = 0
    changed: int = 0
    expected: float = 0.0
    tokens: int = 0
    tokens_changed: int = 0
    tokens_expected: float = 0.0
    share: float = 0.0

    def add(self, choices: Iterable[ChangedChoices], tokens: int) -> Tensor:
        """Count the choices of a text.

        Args:
            choices: of its routers.
            tokens: how many it has; after the last of them nothing is predicted.

        Returns:
            at which tokens some choice changes.
        """
        changed = torch.zeros(tokens, dtype=torch.bool)
        kept, any_kept = torch.ones(tokens, dtype=torch.float64), False
        for one in choices:
            self.total += one.changed.numel()
            self.changed += int(one.changed.sum())
            self.expected += float(one.likely.sum())
            if tokens not in one.changed.shape:  # as where experts choose among tokens
                continue
            any_kept = True
            axis = one.changed.shape.index(tokens)
            moved, likely = (part.movedim(axis, 0).reshape(tokens, -1).cpu() for part in one)
            changed |= moved.any(-1)
            kept *= (1 - likely).prod(-1)
        if any_kept:
            self.tokens += tokens - 1
            self.tokens_changed += int(changed[:-1].sum())
            self.tokens_expected += float((1 - kept[:-1]).sum())
        return changed[:-1]

    @property
    def values(self) -> list[NamedValue]:
        """Return each number with its name and its unit; none where nothing is chosen."""
        tokens, choices, square = (
            SHARE.format(what=one) for one in ("tokens", "choices", "squared difference")
        )
        forecast = "predicted from the margins of the router"
        found = []
        if self.tokens:
            changed, expected = (
                self.tokens_changed / self.tokens,
                self.tokens_expected / self.tokens,
            )
            found = [
                NamedValue("tokens whose experts change", changed, tokens),
                NamedValue(f"such tokens, {forecast}", expected, tokens),
                NamedValue("difference on tokens whose experts change", self.share, square),
            ]
        if self.total:
            changed, expected = self.changed / self.total, self.expected / self.total
            found += [
                NamedValue("choices of experts that change", changed, choices),
                NamedValue(f"such choices, {forecast}", expected, choices),
            ]
        return found


def compare_choices(
    values: tuple[Tensor, Tensor], chosen: tuple[Tensor, Tensor]
) -> ChangedChoices | None:
    """Compare the best k values of each row in two runs; None where there is nothing to choose.

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
        return None
    mine, theirs = (one.sort(-1).values for one in chosen)
    changed = (mine != theirs).any(-1)
    likely = torch.zeros_like(changed, dtype=torch.float64)
    if count < values[0].shape[-1]:
        first, second = (one.double() for one in values)
        best = first.topk(min(count + BESIDE, first.shape[-1]), -1)
        margin = best.values[..., count - 1] - best.values[..., count]
        # What a mask has taken out is no error.
        apart = (second - first).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        size = apart.gather(-1, best.indices[..., max(count - BESIDE, 0) :]).std(-1)
        likely = torch.where(size > 0, torch.erfc(margin / (2 * size)) / 2, 0.0)
    return ChangedChoices(changed, likely)
