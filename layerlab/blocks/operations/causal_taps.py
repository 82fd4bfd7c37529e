"""The sum of a few earlier tokens, weighed channel by channel, and its derivatives.

PyTorch's depthwise convolution moves channels last to channels first and back; here every weight,
or tap, is one multiply-add over rows that stay in the cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.blocks.operations.chunking import rows, worthwhile
from layerlab.blocks.operations.derivative import again, redone
from layerlab.blocks.operations.recompute import write
from layerlab.shapes import Stream


def tap(x: Stream, weight: Tensor, ages: Tensor | None, *, added: bool, place: int = 0) -> Stream:
    """Return y_t = sum over j of w_j x_(t-j), zeros before the first token, plus x_t if added.

    Args:
        weight: a row of w_j for every channel, or one row for all.
        ages: how many tokens of the same document stand before each; None where there is only one.
        added: whether x itself is part of the sum.
        place: a number that no other sum of the layer has.
    """
    if worthwhile(x):
        y: Stream = _Tapped.apply(x, weight, ages, added)
        return y
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        return _tap_compiled(x, weight, ages, added, place)
    return weigh(_reach(x, weight), weight, ages, added=added)


def weigh(past: Tensor, weight: Tensor, ages: Tensor | None, *, added: bool) -> Tensor:
    """Return the same as `tap`, of tokens that have all their earlier tokens before them."""
    reach = weight.shape[1] - 1
    tokens = past.shape[1] - reach
    x, taps = past[:, reach:], weight.unbind(1)
    y = torch.addcmul(x, x, taps[0]) if added else x * taps[0]
    for back in range(1, reach + 1):
        earlier = past[:, reach - back : reach - back + tokens]
        if ages is not None:
            earlier = earlier * (ages >= back).unsqueeze(-1).to(x.dtype)
        y = torch.addcmul(y, earlier, taps[back])
    return y


class _Tapped(torch.autograd.Function):
    """The same bits, and derivatives, over tokens that stay in the cache."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, ages: Tensor | None, added: bool) -> Tensor:
        kind = torch.promote_types(x.dtype, weight.dtype)
        y = torch.empty(x.shape, dtype=kind, device=x.device)
        taps, there = _taps(weight), _there(x, ages, weight.shape[1])
        for sequences, start, end in _spans(x):
            source, target = x[sequences], y[sequences, start:end]
            _present(source[:, start:end], taps[0], target, added=added)
            for back in range(1, min(len(taps), end)):
                low = max(start, back)
                earlier = source[:, low - back : end - back]
                if there:
                    earlier = earlier * there[back][sequences, low:end]
                target[:, low - start :].addcmul_(earlier, taps[back])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ages, ctx.added = inputs
        ctx.save_for_backward(x, weight, ages)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ages = ctx.saved_tensors
        if redone(gradient):

            def plain(x: Tensor, weight: Tensor) -> Tensor:
                return weigh(_reach(x, weight), weight, ages, added=ctx.added)

            return *again(plain, (x, weight), (gradient,)), None, None
        taps, there = _taps(weight), _there(x, ages, weight.shape[1])
        slope = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        exact = torch.promote_types(weight.dtype, torch.float32)
        totals = torch.zeros(len(taps), x.shape[2], dtype=exact, device=x.device)
        for sequences, start, end in _spans(x):
            seen, given = [mask[sequences] for mask in there], gradient[sequences]
            target = slope[sequences, start:end]
            _down(target, given, taps, seen, start, added=ctx.added)
            _along(totals, x[sequences], given[:, start:end], seen, start)
        found = totals.t().sum_to_size(weight.shape).to(weight.dtype)
        return slope, found, None, None


class _Compiled(torch.autograd.Function):
    """The same for a compiler: of autograd's derivatives it would keep the padded tokens."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, ages: Tensor | None, added: bool, place: int) -> Tensor:
        taps = weight.unbind(1)
        y = torch.addcmul(x, x, taps[0]) if added else x * taps[0]
        # A compiler would keep what several places share, and with it what is made of it.
        t = torch.arange(place, place + x.shape[1], device=x.device) - place
        ages = t if ages is None else ages
        for back in range(1, len(taps)):
            # By an index: padding is nothing that a compiler does again on the way back.
            earlier = x[:, (t - back).clamp(min=0)]
            y = torch.addcmul(y, earlier * (ages >= back).unsqueeze(-1).to(x.dtype), taps[back])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ages, ctx.added, _ = inputs
        ctx.save_for_backward(x, weight, ages)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ages = ctx.saved_tensors
        tokens, kernel = x.shape[1], weight.shape[1]
        exact = torch.promote_types(weight.dtype, torch.float32)
        after = _follow(gradient, kernel)
        slope = after[:, :tokens] if ctx.added else torch.zeros_like(gradient)
        totals = []
        for back, tap in enumerate(weight.unbind(1)):
            # Tokens stay where they are: moved as on the way, they would be kept for this.
            later = after[:, back : back + tokens]
            if ages is not None and back:
                old = functional.pad(ages, (0, kernel))[..., back : back + tokens] >= back
                later = later * old.unsqueeze(-1).to(later.dtype)
            totals.append((x * later).sum((0, 1), dtype=exact))
            slope = torch.addcmul(slope, later, tap)
        found = torch.stack(totals, 1).sum_to_size(weight.shape)
        return slope.to(x.dtype), found.to(weight.dtype), None, None, None


def _follow(gradient: Tensor, kernel: int, *, copied: bool | None = None) -> Tensor:
    """Return a gradient with zeros after its last token, which a compiler writes once.

    Args:
        copied: whether padding copies, as it does in code for GPUs: it is what is written then.
    """
    zeros = (0, 0, 0, kernel)
    if copied is None:
        copied = gradient.device.type != "cpu"
    if copied:
        return write(functional.pad(gradient, zeros))
    return functional.pad(write(gradient), zeros)


@torch.compiler.allow_in_graph  # as one operation with derivatives of its own
def _tap_compiled(
    x: Stream, weight: Tensor, ages: Tensor | None, added: bool, place: int
) -> Stream:
    y: Stream = _Compiled.apply(x, weight, ages, added, place)
    return y


def _down(
    slope: Tensor,
    gradient: Tensor,
    taps: Sequence[Tensor],
    there: Sequence[Tensor],
    start: int,
    *,
    added: bool,
) -> None:
    """Write the gradient of some tokens, each seen by the token itself and by those that follow."""
    end, tokens = start + slope.shape[1], gradient.shape[1]
    own = gradient[:, start:end]
    target = slope if slope.dtype == gradient.dtype else torch.empty_like(own)
    _present(own, taps[0], target, added=added)
    for back in range(1, min(len(taps), tokens - start)):
        high = min(end + back, tokens)
        later = gradient[:, start + back : high]
        if there:
            later = later * there[back][:, start + back : high]
        target[:, : high - back - start].addcmul_(later, taps[back])
    if target is not slope:
        slope.copy_(target)


def _along(
    totals: Tensor, x: Tensor, gradient: Tensor, there: Sequence[Tensor], start: int
) -> None:
    """Add what some tokens contribute to the gradients of the weights."""
    end = start + gradient.shape[1]
    for back, total in enumerate(totals[:end]):
        low = max(start, back)
        product = x[:, low - back : end - back] * gradient[:, low - start :]
        if there and back:
            product *= there[back][:, low:end]
        total += product.sum((0, 1), dtype=total.dtype)


def _present(x: Tensor, tap: Tensor, target: Tensor, *, added: bool) -> None:
    """Write what tokens contribute to their own outputs."""
    if added:
        torch.addcmul(x, x, tap, out=target)
    else:
        torch.mul(x, tap, out=target)


def _reach(x: Tensor, weight: Tensor) -> Tensor:
    """Return the tokens, preceded by as many zeros as the weights look back."""
    return functional.pad(x, (0, 0, weight.shape[1] - 1, 0))


def _spans(x: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Yield a few sequences, and where a few of their tokens start and end."""
    batch, tokens, width = x.shape
    several = max(1, rows(width) // tokens)
    step = min(rows(width), tokens)
    for first in range(0, batch, several):
        for start in range(0, tokens, step):
            yield slice(first, first + several), start, min(start + step, tokens)


def _taps(weight: Tensor) -> list[Tensor]:
    """Return, for every token back, a row of weights that lies in one piece."""
    return list(weight.t().contiguous().unbind(0))


def _there(x: Tensor, ages: Tensor | None, kernel: int) -> list[Tensor]:
    """Return, for every distance back, which tokens lie in the same document; empty if all do."""
    if ages is None:
        return []
    ages = ages.expand(x.shape[:2]).unsqueeze(-1)
    return [(ages >= back).to(x.dtype) for back in range(kernel)]
