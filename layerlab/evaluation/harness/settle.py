"""Takes anew what rounding could turn, a question by itself: no choice depends on the batch.

The same prompt in another batch gives log-likelihoods that differ by rounding, and where two
options are nearly alike, or two tokens, another of them may win. Such questions are few. They are
asked again by themselves, as with a batch of one, so that every batch leaves the same scores.
Written answers are so in float32 and float64 alone: in 16 bits nearly all of them are near ties.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# How far log-likelihoods of two batches may be apart, as a share of 1 + |log-likelihood|:
# 300 times what trained models were seen to differ by in float32, five times in bfloat16.
APART = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 16 * 2**-11,
    torch.bfloat16: 16 * 2**-8,
}
# In which written answers stay as their batch wrote them.
COARSE = (torch.float16, torch.bfloat16)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding a number to a format.

    Example:
        >>> unit_roundoff(torch.bfloat16) == 2**-8
        True
    """
    return float(torch.finfo(dtype).eps) / 2


def is_close(sums: Sequence[float], texts: Sequence[str], apart: float) -> bool:
    """Return whether rounding could turn which option is likeliest, by itself or for its length.

    Args:
        sums: log-likelihoods of the options.
        texts: the options.
        apart: how far two batches may be apart, as a share of 1 + |log-likelihood|.

    Example:
        >>> is_close([-2.0, -2.00001], [" a", " b"], 1e-4), is_close([-2.0, -3.0], ["a", "b"], 1e-4)
        (True, False)
    """
    lengths = [max(1, len(text.strip())) for text in texts]
    sizes = [max(1, len(text.strip().encode())) for text in texts]
    return any(
        _is_near(
            [one / by for one, by in zip(sums, divided, strict=True)],
            [apart * (1 + abs(one)) / by for one, by in zip(sums, divided, strict=True)],
        )
        for divided in ([1] * len(texts), lengths, sizes)
    )


def is_turnable(sums: Sequence[float], asked: Sequence[tuple[str, str]], apart: float) -> bool:
    """Return whether rounding could turn which option a question is answered with.

    For `acc_mutual_info` every option is asked again without the question: those are compared with
    no other, but taken off.

    Args:
        asked: of each log-likelihood what stands before an option, and the option.
        apart: as for `is_close`.

    Example:
        >>> pairs = [("Q:", " a"), ("Q:", " b"), ("", " a"), ("", " b")]
        >>> is_turnable([-9.0, -9.00001, -2.0, -5.0], pairs, 1e-4)
        True
        >>> is_turnable([-9.0, -8.0, -3.0, -2.00001], pairs, 1e-4)
        True
        >>> is_turnable([-9.0, -8.0, -3.0, -3.00001], pairs, 1e-4)
        False
    """
    half = len(asked) // 2
    texts = [text for _, text in asked]
    before = [bool(context) for context, _ in asked]
    if half < 2 or before != [True] * half + [False] * half:
        return is_close(sums, texts, apart)
    pairs = list(zip(sums[:half], sums[half:], strict=True))
    gains = [own - bare for own, bare in pairs]
    room = [apart * (2 + abs(own) + abs(bare)) for own, bare in pairs]
    return is_close(sums[:half], texts[:half], apart) or _is_near(gains, room)


def _is_near(worth: Sequence[float], room: Sequence[float]) -> bool:
    """Return whether another than the best could be it, each within its own room."""
    best = max(range(len(worth)), key=worth.__getitem__)
    return any(
        one + own >= worth[best] - room[best]
        for index, (one, own) in enumerate(zip(worth, room, strict=True))
        if index != best
    )


def close_rows(logits: Tensor, apart: float) -> Tensor:
    """Return which rows have a token whose two likeliest successors rounding could exchange.

    Args:
        logits: row x token x vocabulary, or row x vocabulary.
        apart: as for `is_close`, of the largest logit.
    """
    best = logits.detach().float().topk(2, dim=-1).values
    close = best[..., 0] - best[..., 1] <= apart * (1 + best[..., 0].abs())
    return close if close.dim() == 1 else close.any(dim=-1)


def trim_row(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a row without the zeros that it may be padded with."""
    length = len(tokens)
    while length and not tokens[length - 1]:
        length -= 1
    return tuple(tokens[:length])
