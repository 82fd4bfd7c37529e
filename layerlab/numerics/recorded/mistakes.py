"""The commonest mistakes by which two runs of one model differ, each tried on a record."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, nan

import torch
from torch import Tensor, nn

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.recorded_gap import Cause
from layerlab.numerics.recorded.rotary_scaling import FREQUENCIES, scale_rotations

# Rotations are tried with these times their base, and at positions divided by these.
BASES = (0.5, 2.0, 50.0, 100.0)
FACTORS = (0.5, 2.0, 4.0, 8.0)
# Places that learned positions are tried to be off by.
OFFSETS = (-1, 1, 2, 3, 4, 8, 16)
# What `from_pretrained` leaves in float32 in a model that it loads in bf16.
ROUNDED = "were rounded to bf16, as by model.to(torch.bfloat16) on a module built in float32"
# What tables of learned positions are called.
POSITIONS = re.compile(r"wpe$|pos[^.]*$")
# Log-probabilities of all tokens but the first of each text, in float32.
Read = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class RecordedTexts:
    """Recorded values of each text beside what is right.

    Attributes:
        values: of all tokens but the first, as recorded; NaN where nothing was.
        exact: the same in float32.
        pieces: token ids.
        read: gives log-probabilities of texts in float32.
    """

    values: Sequence[Tensor]
    exact: Sequence[Tensor]
    pieces: Sequence[Tensor]
    read: Read

    def judge(self, name: str, wrong: Sequence[Tensor]) -> Cause:
        """Measure what a mistake leaves, and what was wrong without it on the same tokens.

        Args:
            name: of the mistake.
            wrong: what it makes of each token; NaN where that is not known.
        """
        values, other = torch.cat(list(self.values)), torch.cat(list(wrong))
        mask = ~(values - other).isnan()
        if not mask.any():
            return Cause(name=name, left=inf, whole=0.0)
        error = values - torch.cat(list(self.exact))
        return Cause(name=name, left=rms((values - other)[mask]), whole=rms(error[mask]))


def try_shifts(recorded: RecordedTexts) -> list[Cause]:
    """Compare what was recorded of each token with its neighbours."""
    later = [_drop_first(one) for one in recorded.exact]
    earlier = [_wait(one[:-1]) for one in recorded.exact]
    return [
        recorded.judge("each recorded a token too early", later),
        recorded.judge("each recorded a token too late", earlier),
    ]


def try_zeros(recorded: RecordedTexts) -> list[Cause]:
    """Take zeros for what was written where nothing was recorded; nothing without any."""
    if not any(bool((one == 0).any()) for one in recorded.values):
        return []
    pairs = zip(recorded.values, recorded.exact, strict=True)
    rows = [right.masked_fill(given == 0, 0.0) for given, right in pairs]
    return [recorded.judge("0 recorded of masked tokens or padding (write null there)", rows)]


def try_beginning(recorded: RecordedTexts, token: int | None) -> list[Cause]:
    """Leave the token of the beginning away, or put it there, once more where it is.

    Args:
        token: that models begin with; None where there is none.
    """
    if token is None:
        return []
    pieces, read = recorded.pieces, recorded.read
    have = [bool(ids[0] == token) for ids in pieces]
    found = []
    if any(have) and all(len(ids) > 2 for ids in pieces):
        shorter = read([ids[had:] for ids, had in zip(pieces, have, strict=True)])
        rows = [_wait(one) if had else one for one, had in zip(shorter, have, strict=True)]
        found.append(recorded.judge("the token of the beginning missing", rows))
    # As long as before, so that no model runs out of places: the last token is not compared.
    if not all(have):
        ahead = [ids if had else _put(token, ids) for ids, had in zip(pieces, have, strict=True)]
        longer = read(ahead)
        rows = [one if had else _drop_first(one) for one, had in zip(longer, have, strict=True)]
        found.append(recorded.judge("the token of the beginning added", rows))
    else:
        twice = [_drop_first(one) for one in read([_put(token, ids) for ids in pieces])]
        found.append(recorded.judge("the token of the beginning twice", twice))
    return found


def try_rotations(recorded: RecordedTexts, model: nn.Module) -> list[Cause]:
    """Rotate queries and keys by other angles; nothing for a model that does not rotate.

    The model is as before when this returns.
    """
    buffers = [one for name, one in model.named_buffers() if name.endswith(FREQUENCIES)]
    if not buffers:
        return []
    tried = [(f"rotations with {base:g} times the base", base, 1.0) for base in BASES]
    tried += [(f"rotations at positions divided by {factor:g}", 1.0, factor) for factor in FACTORS]
    found = []
    for name, base, factor in tried:
        with changing(buffers, partial(turn, base=base, factor=factor)):
            found.append(recorded.judge(name, recorded.read(recorded.pieces)))
    found += [
        recorded.judge(name, recorded.read(recorded.pieces)) for name in scale_rotations(model)
    ]
    return found


@contextmanager
def changing(tensors: Sequence[Tensor], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change tensors of a model until the block ends.

    Args:
        tensors: buffers or parameters.
        change: gives what stands in one in the meantime.
    """
    kept = [(one, one.detach().clone()) for one in tensors]
    with torch.no_grad():
        try:
            for one, before in kept:
                one.copy_(change(before))
            yield
        finally:
            for one, before in kept:
                one.copy_(before)


def turn(frequencies: Tensor, base: float, factor: float) -> Tensor:
    """Return frequencies of rotations with another base, and at other positions.

    f_i base^(-i / n) / factor,   i = 0 .. n - 1

    Args:
        frequencies: those of a model.
        base: what theirs is multiplied with.
        factor: what positions are divided by.
    """
    steps = torch.arange(len(frequencies), device=frequencies.device) / len(frequencies)
    return frequencies * base**-steps / factor


def find_rounded(model: nn.Module) -> tuple[str, list[Tensor]]:
    """Return buffers that a cast of the whole model rounds, and what that is called.

    Weights and buffers that are stored with them are loaded in the model's dtype; others are
    computed as the model is built, in float32, and stay so.
    """
    found = {
        f"{name}.{key}": buffer
        for name, module in model.named_modules()
        for key, buffer in module.named_buffers(recurse=False)
        if key in module._non_persistent_buffers_set and buffer.is_floating_point()
    }
    found = {name: one for name, one in found.items() if not one.equal(round_down(one))}
    rotary = all(name.endswith(FREQUENCIES) for name in found)
    what = "rotary frequencies" if rotary else f"buffers ({', '.join(found)})"
    return f"{what} {ROUNDED}", list(found.values())


def round_down(values: Tensor) -> Tensor:
    """Return values of bf16, in the dtype that they had."""
    return values.to(torch.bfloat16).to(values.dtype)


def try_rounded(recorded: RecordedTexts, model: nn.Module) -> list[Cause]:
    """Round what a model computes in float32 as it is built; nothing for one without.

    The model is as before when this returns.
    """
    name, buffers = find_rounded(model)
    if not buffers:
        return []
    with changing(buffers, round_down):
        return [recorded.judge(name, recorded.read(recorded.pieces))]


def try_offsets(recorded: RecordedTexts, model: nn.Module) -> list[Cause]:
    """Count positions from elsewhere; nothing for a model that has not learned them.

    The model is as before when this returns.
    """
    pieces = recorded.pieces
    tables = _find_positions(model, max(map(len, pieces)))
    if not tables:
        return []
    padding = [max(map(len, pieces)) - len(ids) for ids in pieces]
    tried = [(f"learned positions off by {by:+d}", [by] * len(pieces)) for by in OFFSETS]
    if any(padding):
        tried.append(("learned positions that count padding on the left", padding))
    found = []
    for name, offsets in tried:
        rows: dict[int, Tensor] = {}
        for by in set(offsets):
            alike = [at for at, one in enumerate(offsets) if one == by]
            with changing(tables, partial(torch.roll, shifts=-by, dims=0)):
                rows |= zip(alike, recorded.read([pieces[at] for at in alike]), strict=True)
        found.append(recorded.judge(name, [rows[at] for at in range(len(pieces))]))
    return found


def _find_positions(model: nn.Module, places: int) -> list[Tensor]:
    """Return tables of learned positions; none where they are elsewhere."""
    found = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and POSITIONS.search(name)
    ]
    return [one for one in found if len(one) >= places and not one.is_meta]


def try_context(recorded: RecordedTexts, padding: int | None, most: int) -> list[Cause]:
    """Have each text attend to what should have been hidden: its padding, or the texts before it.

    Args:
        padding: token that short texts are filled up with on the left; None where there is none.
        most: tokens that the model can read at once.
    """
    pieces = recorded.pieces
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
        longer = recorded.read([torch.cat(both) for both in zip(ahead, pieces, strict=True)])
        rows = [one[1 - len(ids) :] for one, ids in zip(longer, pieces, strict=True)]
        found.append(recorded.judge(name, rows))
    return found


def _drop_first(values: Tensor) -> Tensor:
    return torch.cat([values[1:], values.new_tensor([nan])])


def _wait(values: Tensor) -> Tensor:
    return torch.cat([values.new_tensor([nan]), values])


def _put(token: int, ids: Tensor) -> Tensor:
    return torch.cat([ids.new_tensor([token]), ids[:-1]])
