"""The commonest mistakes by which two runs of one model differ, each tried on a record."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import exp, inf, log

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.recorded_gap import Cause

# Rotations are tried with these times their base, and at positions divided by these.
BASES = (0.5, 2.0, 50.0, 100.0)
FACTORS = (0.5, 2.0, 4.0, 8.0)
COLDEST, HOTTEST = 0.05, 20.0
PRECISE = 1e-4  # of the logarithm of a temperature
FREQUENCIES = "inv_freq"
# Log-probabilities of all tokens but the first of each text, in float32.
Read = Callable[[Sequence[Tensor]], list[Tensor]]


def try_shifts(recorded: Sequence[Tensor], exact: Sequence[Tensor]) -> list[Cause]:
    """Compare what was recorded of each token with its neighbours.

    Args:
        recorded: by text; NaN where nothing was.
        exact: the same in float32.
    """
    pairs = list(zip(recorded, exact, strict=True))
    later = [one[:-1] - other[1:] for one, other in pairs]
    earlier = [one[1:] - other[:-1] for one, other in pairs]
    return [
        Cause(name="each recorded a token too early", left=measure(later)),
        Cause(name="each recorded a token too late", left=measure(earlier)),
    ]


def try_temperature(
    recorded: Sequence[Tensor], logits: Sequence[Tensor], ids: Sequence[Tensor]
) -> Cause:
    """Fit the temperature that logits were divided by.

    T = argmin sum (recorded - log softmax(logits / T))^2

    Source: Own.

    Args:
        recorded: by text; NaN where nothing was.
        logits: in float32, one row for each token but the last.
        ids: the tokens.
    """

    def measure_left(power: float) -> float:
        found = []
        for one, rows, tokens in zip(recorded, logits, ids, strict=True):
            scaled = (rows.double() / exp(power)).log_softmax(-1)
            found.append(one - scaled.gather(-1, tokens[1:, None])[:, 0])
        return measure(found)

    limits = log(COLDEST), log(HOTTEST)
    best = minimize_scalar(
        measure_left, bounds=limits, method="bounded", options={"xatol": PRECISE}
    )
    return Cause(name=f"temperature {exp(best.x):.4g} applied", left=float(best.fun))


def try_beginning(
    recorded: Sequence[Tensor], pieces: Sequence[Tensor], token: int | None, read: Read
) -> list[Cause]:
    """Leave the token of the beginning away, or put it there.

    Args:
        recorded: by text; NaN where nothing was.
        pieces: token ids of each text.
        token: that models begin with; None where there is none.
        read: gives log-probabilities in float32.
    """
    if token is None:
        return []
    have = [bool(ids[0] == token) for ids in pieces]
    found = []
    if any(have) and all(len(ids) > 2 for ids in pieces):
        shorter = read([ids[had:] for ids, had in zip(pieces, have, strict=True)])
        rows = [one[had:] - other for one, other, had in zip(recorded, shorter, have, strict=True)]
        found.append(Cause(name="the token of the beginning missing", left=measure(rows)))
    if not all(have):
        # As long as before, so that no model runs out of places: the last token is not compared.
        ahead = [ids if had else _put(token, ids) for ids, had in zip(pieces, have, strict=True)]
        rows = [
            one - other if had else one[:-1] - other[1:]
            for one, other, had in zip(recorded, read(ahead), have, strict=True)
        ]
        found.append(Cause(name="the token of the beginning added", left=measure(rows)))
    return found


def try_rotations(
    recorded: Sequence[Tensor], pieces: Sequence[Tensor], model: nn.Module, read: Read
) -> list[Cause]:
    """Rotate queries and keys by other angles; nothing for a model that does not rotate.

    Args:
        recorded: by text; NaN where nothing was.
        pieces: token ids of each text.
        model: it is as before when this returns.
        read: gives log-probabilities in float32.
    """
    if not any(name.endswith(FREQUENCIES) for name, _ in model.named_buffers()):
        return []
    tried = [(f"rotations with {base:g} times the base", base, 1.0) for base in BASES]
    tried += [(f"rotations at positions divided by {factor:g}", 1.0, factor) for factor in FACTORS]
    found = []
    for name, base, factor in tried:
        with turning(model, base, factor):
            exact = read(pieces)
        rows = [one - other for one, other in zip(recorded, exact, strict=True)]
        found.append(Cause(name=name, left=measure(rows)))
    return found


@contextmanager
def turning(model: nn.Module, base: float, factor: float) -> Iterator[None]:
    """Change the frequencies of rotations until the block ends.

    f_i = f_i base^(-i / n) / factor,   i = 0 .. n - 1

    Args:
        base: what theirs is multiplied with.
        factor: what positions are divided by.
    """
    kept = [
        (buffer, buffer.clone())
        for name, buffer in model.named_buffers()
        if name.endswith(FREQUENCIES)
    ]
    try:
        for buffer, before in kept:
            steps = torch.arange(len(before), device=before.device) / len(before)
            buffer.copy_(before * base**-steps / factor)
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)


def measure(rows: Sequence[Tensor]) -> float:
    """Return the RMS of all differences that are known."""
    whole = torch.cat(list(rows))
    known = whole[~whole.isnan()]
    return rms(known) if len(known) else inf


def _put(token: int, ids: Tensor) -> Tensor:
    return torch.cat([ids.new_tensor([token]), ids[:-1]])
