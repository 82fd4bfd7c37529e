"""A record held against the runs that could have made it."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.profile import NumericsProfile, list_profiles, load_profile
from layerlab.numerics.profiles.token_differences import compare_tokens, rms
from layerlab.numerics.profiles.token_scores import NoteRun, RunModel, TokenScores, ignore
from layerlab.numerics.recorded.held_record import EXACT, SAME, HeldRecord
from layerlab.numerics.recorded.logit_mistakes import LogitSample, find_cap, try_logits
from layerlab.numerics.recorded.mistakes import (
    RecordedTexts,
    try_beginning,
    try_context,
    try_offsets,
    try_rotations,
    try_rounded,
    try_shifts,
    try_zeros,
)
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import (
    SEEN,
    Cause,
    ProfileFit,
    RecordedGap,
    RecordedToken,
    TemperatureFit,
)
from layerlab.numerics.recorded.rounding_limits import MULTIPLE, find_limits
from layerlab.numerics.recorded.slight_mistakes import LogitSlopes, fit_temperature

USUAL = "torch-eager"
# What lies so many times further away than that is run by no profile for real.
FAR = 10.0
# What a profile explains to this share is rounding, however large.
FITTING = 0.5
# Texts that are read: more of them tell no more, and short ones take as long as those of a page.
TEXTS = 64
MISTAKEN = 16  # texts that mistakes are tried on


def explain_record(
    model: nn.Module,
    records: Sequence[TokenRecord],
    a: NumericsProfile,
    profiles: Sequence[NumericsProfile] = (),
    *,
    call: RunModel,
    step: NoteRun = ignore,
    real: bool = True,
) -> RecordedGap:
    """Find which profile made a record, or which mistake.

    explained = 1 - |recorded - p|^2 / |recorded - exact|^2

    for the log-probabilities p of each profile, emulated and, where torch itself runs it here, for
    real. The exact ones are those of a float32 run. Where no profile fits and the recorded
    difference is larger than rounding makes it, it is called a bug, and the commonest are tried.

    Source: Own.

    Args:
        model: the model; it is not changed.
        records: what the engine recorded of each text; the first `TEXTS` are read.
        a: profile of what computes the loss.
        profiles: candidates; all that layerlab knows if left out.
        call: runs the model on the ids of one text, and gives logits of 1 x token x vocabulary.
        step: is told of each run.
        real: whether profiles are also run for real.
    """
    left_out = len(records[TEXTS:])
    records = records[:TEXTS]
    candidates = list(profiles) or [load_profile(name) for name in list_profiles()]
    device = next(model.parameters()).device
    pieces = [torch.tensor(one.token_ids, device=device) for one in records]
    recorded = [_values(one, device) for one in records]
    scores = TokenScores(model, pieces, call, step)
    sample, slopes = LogitSample(sum(map(len, recorded))), LogitSlopes()

    def look(targets: Tensor, logits: Sequence[Tensor]) -> None:
        sample.add(targets, logits)
        slopes.add(targets, logits)

    profiles = (EXACT, a, *candidates, load_profile(USUAL))
    exact, mine, *emulated, usual = scores.read_each(profiles, look)
    given = torch.cat(recorded)
    every = ~given.isnan()
    limits = find_limits([(one - exact)[every] for one in (*emulated, usual)], given[every])
    outliers = limits.find_outliers(given - exact)
    held = HeldRecord(scores, candidates, given.masked_fill(outliers, nan), exact)
    starts = [one.start for one in records] if real else []
    starts = starts if rms(held.error) <= FAR * limits.rms else []
    rows = held.fit(emulated, starts)
    made = outliers & held.find_made(given, MULTIPLE * limits.largest)
    if bool(made.any()):
        outliers = outliers & ~made
        held = replace(held, whole=given.masked_fill(outliers, nan))
        rows = held.fit(emulated, starts)
    values, error = held.whole, held.error
    difference = compare_tokens(mine[every], given[every])
    far = _list_outliers(records, recorded, exact, outliers)
    recorded = list(values.split(list(map(len, recorded))))
    rows.sort(key=lambda one: (not _may_be(one, rms(error), limits.floor), -one.share))
    best = max(one.share for one in rows)
    is_beyond = limits.are_passed(error) and best < FITTING
    mask = held.known
    read = [one[mask] for one in (*emulated, usual)]
    temperature = fit_temperature(values[mask], exact[mask], read, slopes.select(mask))
    if temperature and (best > SAME or limits.is_passed(temperature.left, temperature.bias)):
        temperature = None
    causes = _tell_temperature(temperature)
    if temperature is not None and causes:
        if cap := find_cap(sample.select(values), temperature.value):
            temperature, causes = None, [cap]
    if not causes and (is_beyond or (best < FITTING and rms(error) > limits.floor)):
        known = max(best, 0.0)
        stored = held.try_quantized(known, load_profile(USUAL))
        if is_beyond:
            causes = [*stored, *try_logits(sample.select(values))]
            causes += _try_mistakes(scores, recorded, exact)
        elif any(one.sure for one in stored):
            causes = stored
        else:
            causes = held.try_rounded(known, [*emulated, usual], starts)
    causes.sort(key=lambda one: one.part)
    found = RecordedGap(
        a=a,
        difference=difference,
        rms=rms(error),
        bias=float(error.mean()),
        candidates=tuple(rows),
        floor=limits.floor,
        most_rms=limits.rms,
        most_bias=limits.bias,
        is_beyond=is_beyond,
        fits=_may_be(rows[0], rms(error), limits.floor),
        causes=tuple(causes),
        temperature=temperature,
        outliers=far,
        left_out=left_out,
        forwards=scores.forwards,
    )
    return replace(found, excess=_find_excess(found, limits.size))


def _tell_temperature(found: TemperatureFit | None) -> list[Cause]:
    if found is None or not found.is_applied:
        return []
    # Who changes weights, as by an adapter, changes the scale of logits, too.
    name = (
        f"temperature {found} applied"
        if found.is_typed
        else f"logits of another scale, as weights that differ have them (by the size of a "
        f"temperature of {found}, which nobody types)"
    )
    return [Cause(name=name, left=found.left, whole=found.whole, sure=True)]


def _list_outliers(
    records: Sequence[TokenRecord], recorded: Sequence[Tensor], exact: Tensor, outliers: Tensor
) -> tuple[RecordedToken, ...]:
    """Return the tokens that are far out, those first that are furthest."""
    parts = [one.split(list(map(len, recorded))) for one in (exact, outliers)]
    found = [
        RecordedToken(
            text=number,
            place=at + 1,
            token=record.token_ids[at + 1],
            error=float(values[at] - right[at]),
        )
        for number, (record, values, right, far) in enumerate(
            zip(records, recorded, *parts, strict=True), 1
        )
        for at in far.nonzero()[:, 0].tolist()
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.error)))


def _find_excess(found: RecordedGap, size: float) -> float:
    """Return the share of the squared recorded difference that no rounding explains.

    Args:
        size: the largest RMS that rounding makes.
    """
    tokens = found.difference.tokens - len(found.outliers)
    inside = tokens * found.rms**2
    total = inside + sum(one.error**2 for one in found.outliers)
    left = total - inside
    if found.is_beyond:
        share = max(found.candidates[0].share, min(size / found.rms, 1.0) ** 2)
        biased = tokens * found.bias**2 if abs(found.bias) > found.most_bias else 0.0
        left += max(inside * (1 - share), biased)
    elif found.cause is not None:
        left += tokens * (found.cause.whole**2 - found.cause.left**2)
    return left / total if total else 0.0


def _values(record: TokenRecord, device: torch.device) -> Tensor:
    """Return what was recorded of each token but the first; NaN where nothing was."""
    values = [float("nan") if one is None else one for one in record.logprobs[1:]]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _may_be(row: ProfileFit, size: float, floor: float) -> bool:
    """Return whether a profile can have made a record, by its digits or its error's size.

    Args:
        size: of the recorded error.
        floor: what float32 makes, and the digits of the record: no smaller error is seen.
    """
    least = row.rms / MULTIPLE if row.rms > floor else 0.0
    return row.share > SEEN or least <= size <= MULTIPLE * max(row.rms, floor)


def _try_mistakes(scores: TokenScores, recorded: Sequence[Tensor], exact: Tensor) -> list[Cause]:
    model = scores.model
    entries = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    config = getattr(model, "config", None)
    padding = _find_token(config, ("pad_token_id", "eos_token_id"), entries)
    most = getattr(config, "max_position_embeddings", 0) or 0

    def read(given: Sequence[Tensor]) -> list[Tensor]:
        own = scores.take_texts(given)
        found = own.read([Lane(profile=EXACT)] * 2)[0]
        scores.forwards += own.forwards * len(given) / len(scores.pieces)
        return list(found.split([len(ids) - 1 for ids in given]))

    exactly = exact.split([len(one) for one in recorded])
    few = slice(MISTAKEN)
    texts = RecordedTexts(recorded[few], exactly[few], scores.pieces[few], read)
    return [
        *try_shifts(texts),
        *try_zeros(texts),
        *try_beginning(texts, _find_token(config, ("bos_token_id",), entries)),
        *try_context(texts, padding, most),
        *try_rotations(texts, model),
        *try_rounded(texts, model),
        *try_offsets(texts, model),
    ]


def _find_token(config: Any, names: Sequence[str], entries: int) -> int | None:
    """Return the first token that a model's settings name and its table has."""
    found = [getattr(config, name, None) for name in names]
    return next((one for one in found if isinstance(one, int) and 0 <= one < entries), None)
