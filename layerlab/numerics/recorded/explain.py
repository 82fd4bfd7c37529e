"""A record held against the runs that could have made it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.profile import KEPT, NumericsProfile, list_profiles, load_profile
from layerlab.numerics.profiles.real_runs import read_real
from layerlab.numerics.profiles.token_differences import compare_tokens, rms
from layerlab.numerics.profiles.token_scores import NoteRun, RunModel, TokenScores, ignore
from layerlab.numerics.recorded.logit_mistakes import LogitSample, try_logits
from layerlab.numerics.recorded.mistakes import (
    RecordedTexts,
    try_beginning,
    try_context,
    try_offsets,
    try_rotations,
    try_shifts,
)
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import SEEN, Cause, ProfileFit, RecordedGap

EXACT = NumericsProfile(name="float32", format=KEPT)
# Rounding makes no more than so many times the RMS, or the bias, of the profile that makes most,
# be it asked for or the usual one; and the mean of n tokens strays by its standard error.
USUAL = "torch-eager"
MULTIPLE = 2.0
# What float32 makes of what bf16 does: by their digits, and as sums in it are rounded at each
# term, which those of bf16 are but at the end.
TERMS = 8.0
FEWER = TERMS * torch.finfo(torch.float32).eps / torch.finfo(torch.bfloat16).eps
DIGITS = 17  # what a float64 is written with at the most
STRAYING = 4.0
# What lies so many times further away than that is run by no profile for real.
FAR = 10.0
# What a profile explains to this share is rounding, however large.
FITTING = 0.5
# What a real run explains to this share is what was recorded: the rest are digits left out.
SAME = 0.99
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
    sample = LogitSample(sum(map(len, recorded)))
    lanes = [Lane(profile=one) for one in (EXACT, a, *candidates, load_profile(USUAL))]
    exact, mine, *emulated, usual = scores.read(lanes, sample.add)
    known = ~torch.cat(recorded).isnan()
    whole = torch.cat(recorded)[known]
    error = whole - exact[known]
    rows = [
        ProfileFit(
            name=profile.name,
            emulated=_explain(whole, read[known], exact[known]),
            rms=rms(read[known] - exact[known]),
        )
        for profile, read in zip(candidates, emulated, strict=True)
    ]
    errors = [(read - exact)[known] for read in (*emulated, usual)]
    floor = FEWER * rms(errors[-1]) + _find_step(whole)
    size = max(*map(rms, errors), floor)
    most_rms = MULTIPLE * size
    most_bias = MULTIPLE * max(abs(float(one.mean())) for one in errors)
    most_bias += STRAYING * size / len(whole) ** 0.5
    if real and rms(error) <= FAR * most_rms:
        starts = [one.start for one in records]

        def run(profile: NumericsProfile) -> float:
            step(f"{profile.name} by torch itself")
            own = read_real(model, pieces, profile, call, starts)
            return _explain(whole, own[known], exact[known])

        rows = _run_all(rows, candidates, run)
    rows.sort(key=lambda one: (not _may_be(one, rms(error), floor), -one.share))
    bias = float(error.mean())
    beyond = rms(error) > most_rms or abs(bias) > most_bias
    is_bug = beyond and rows[0].share < FITTING
    causes: list[Cause] = []
    if is_bug:
        causes = try_logits(sample.select(torch.cat(recorded)))
        causes += _try_mistakes(scores, recorded, exact)
    return RecordedGap(
        a=a,
        difference=compare_tokens(mine[known], whole),
        rms=rms(error),
        bias=bias,
        candidates=tuple(rows),
        floor=floor,
        most_rms=most_rms,
        most_bias=most_bias,
        is_bug=is_bug,
        fits=_may_be(rows[0], rms(error), floor),
        causes=tuple(sorted(causes, key=lambda one: one.part)),
        left_out=left_out,
        forwards=scores.forwards,
    )


def _values(record: TokenRecord, device: torch.device) -> Tensor:
    """Return what was recorded of each token but the first; NaN where nothing was."""
    values = [float("nan") if one is None else one for one in record.logprobs[1:]]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _find_step(recorded: Tensor) -> float:
    """Return the size of the error by which a record is cut to so many digits behind the point."""
    for digits in range(DIGITS):
        if recorded.equal(recorded.round(decimals=digits)):
            return float(10.0**-digits / 12**0.5)
    return 0.0


def _may_be(row: ProfileFit, size: float, floor: float) -> bool:
    """Return whether a profile can have made a record, by its digits or its error's size.

    Args:
        size: of the recorded error.
        floor: what float32 makes, and the digits of the record: no smaller error is seen.
    """
    least = row.rms / MULTIPLE if row.rms > floor else 0.0
    return row.share > SEEN or least <= size <= MULTIPLE * max(row.rms, floor)


def _run_all(
    rows: Sequence[ProfileFit],
    profiles: Sequence[NumericsProfile],
    run: Callable[[NumericsProfile], float],
) -> list[ProfileFit]:
    """Run profiles for real, those that fit best first, until one is what was recorded."""
    found, same = [], ""
    for row, profile in sorted(zip(rows, profiles, strict=True), key=lambda one: -one[0].emulated):
        if same and profile.runs:
            found.append(replace(row, missing=f"{same} is what was recorded"))
            continue
        try:
            found.append(replace(row, real=run(profile)))
        except NotApplicable as reason:
            found.append(replace(row, missing=str(reason)))
        else:
            same = row.name if found[-1].share > SAME else ""
    return found


def _try_mistakes(scores: TokenScores, recorded: Sequence[Tensor], exact: Tensor) -> list[Cause]:
    model, pieces = scores.model, scores.pieces[:MISTAKEN]
    read_exactly = exact.split([len(one) for one in recorded])
    texts = RecordedTexts(recorded[:MISTAKEN], read_exactly[:MISTAKEN])
    entries = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    config = getattr(model, "config", None)
    padding = _find_token(config, ("pad_token_id", "eos_token_id"), entries)
    most = getattr(config, "max_position_embeddings", 0) or 0

    def read(given: Sequence[Tensor]) -> list[Tensor]:
        own = scores.take_texts(given)
        found = own.read([Lane(profile=EXACT)] * 2)[0]
        scores.forwards += own.forwards * len(given) / len(scores.pieces)
        return list(found.split([len(ids) - 1 for ids in given]))

    return [
        *try_shifts(texts),
        *try_beginning(texts, pieces, _find_token(config, ("bos_token_id",), entries), read),
        *try_context(texts, pieces, padding, most, read),
        *try_rotations(texts, pieces, model, read),
        *try_offsets(texts, pieces, model, read),
    ]


def _find_token(config: Any, names: Sequence[str], entries: int) -> int | None:
    """Return the first token that a model's settings name and its table has."""
    found = [getattr(config, name, None) for name in names]
    return next((one for one in found if isinstance(one, int) and 0 <= one < entries), None)


def _explain(recorded: Tensor, read: Tensor, exact: Tensor) -> float:
    """Return the share of a recorded difference that a run explains; all of no difference."""
    whole = float((recorded - exact).square().sum())
    left = float((recorded - read).square().sum())
    return 1 - left / whole if whole else float(not left)
