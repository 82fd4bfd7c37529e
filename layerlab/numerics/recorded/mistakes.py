"""The commonest mistakes by which two runs of one model differ, each tried on a record."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

import torch
from torch import Tensor, nn

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.recorded_gap import Cause

# Rotations are tried with these times their base, and at positions divided by these.
BASES = (0.5, 2.0, 50.0, 100.0)
FACTORS = (0.5, 2.0, 4.0, 8.0)
# Places that learned positions are tried to be off by.
OFFSETS = (-1, 1, 2, 3, 4, 8, 16)
FREQUENCIES = "inv_freq"
# What tables of learned positions are called.
POSITIONS = re.compile(r"wpe$|pos[^.]*$")
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


def try_offsets(
    recorded: Sequence[Tensor], pieces: Sequence[Tensor], model: nn.Module, read: Read
) -> list[Cause]:
    """Count positions from elsewhere; nothing for a model that has not learned them.

    Args:
        recorded: by text; NaN where nothing was.
        pieces: token ids of each text.
        model: it is as before when this returns.
        read: gives log-probabilities in float32.
    """
    tables = _find_positions(model, max(map(len, pieces)))
    if not tables:
        return []
    padding = [max(map(len, pieces)) - len(ids) for ids in pieces]
    tried = [(f"learned positions off by {by:+d}", [by] * len(pieces)) for by in OFFSETS]
    if any(padding):
        tried.append(("learned positions that count padding on the left", padding))
    found = []
    for name, offsets in tried:
        rows = []
        for one, ids, by in zip(recorded, pieces, offsets, strict=True):
            with moving(tables, by):
                rows.append(one - read([ids])[0])
        found.append(Cause(name=name, left=measure(rows)))
    return found


def _find_positions(model: nn.Module, places: int) -> list[Tensor]:
    """Return tables of learned positions; none where they are elsewhere."""
    found = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and POSITIONS.search(name)
    ]
    return [one for one in found if len(one) >= places and not one.is_meta]


@contextmanager
def moving(tables: Sequence[Tensor], by: int) -> Iterator[None]:
    """Have tables of positions begin at another row until the block ends."""
    kept = [(one, one.detach().clone()) for one in tables]
    with torch.no_grad():
        try:
            for table, before in kept:
                table.copy_(before.roll(-by, 0))
            yield
        finally:
            for table, before in kept:
                table.copy_(before)


def try_context(
    recorded: Sequence[Tensor],
    pieces: Sequence[Tensor],
    padding: int | None,
    most: int,
    read: Read,
) -> list[Cause]:
    """Have each text attend to what should have been hidden: its padding, or the texts before it.

    Args:
        recorded: by text; NaN where nothing was.
        pieces: token ids of each text.
        padding: token that short texts are filled up with on the left; None where there is none.
        most: tokens that the model can read at once.
        read: gives log-probabilities in float32.
    """
    longest = max(map(len, pieces))
    tried = []
    if padding is not None and any(len(ids) < longest for ids in pieces):
        ahead = [ids.new_full((longest - len(ids),), padding) for ids in pieces]
        tried.append(("padding on the left attended to", ahead))
    if 1 < len(pieces) and sum(map(len, pieces)) <= most:
        before = [torch.cat([ids[:0], *pieces[:number]]) for number, ids in enumerate(pieces)]
        tried.append(("the texts before each attended to", before))
    found = []
    for name, ahead in tried:
        whole = read([torch.cat(both) for both in zip(ahead, pieces, strict=True)])
        rows = [one - other[-len(one) :] for one, other in zip(recorded, whole, strict=True)]
        found.append(Cause(name=name, left=measure(rows)))
    return found


def measure(rows: Sequence[Tensor]) -> float:
    """Return the RMS of all differences that are known."""
    whole = torch.cat(list(rows))
    known = whole[~whole.isnan()]
    return rms(known) if len(known) else inf


def _put(token: int, ids: Tensor) -> Tensor:
    return torch.cat([ids.new_tensor([token]), ids[:-1]])
