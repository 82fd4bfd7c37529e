"""Notes on errors of the sources, said once in a report, with the number of its readings.

A note appears only where the report holds readings that it speaks about.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from layerlab.report.findings.extremes import figure, percent
from layerlab.report.views.tables import tidy

Frames = Mapping[str, pd.DataFrame]
Note = dict[str, str]
ROW_SUM_SLACK = 1e-3  # sums of softmax rows that were rounded to 16 bit stay within this
NEARLY = 0.99  # of sqrt(n): from here on the bound says no more than sqrt(n) does


def notes(frames: Frames, models: Iterable[Mapping[str, Any]]) -> list[Note]:
    """Return the notes that these readings call for.

    Args:
        frames: the readings by measure.
        models: the cards; `sinks` says that rows of attention do not sum to 1.
    """
    cards = list(models)
    tables = {name: tidy(frame) for name, frame in frames.items()}
    found = [write(tables, cards) for write in _NOTES]
    return [note for note in found if note is not None]


def _readings(frames: Frames, frame: str, *columns: str) -> pd.DataFrame:
    table = frames.get(frame)
    if table is None or table.empty or not set(columns) <= set(table.columns):
        return pd.DataFrame(columns=["model", *columns], dtype=float)
    return table.dropna(subset=list(columns))


def _contraction(frames: Frames, cards: list[Mapping[str, Any]]) -> Note | None:
    rows = _readings(frames, "spectrum", "contraction")
    if rows.empty:
        return None
    above = float((rows["contraction"] >= 1).mean())
    largest = float(rows["contraction"].max())
    return {
        "title": "λ < 1 is not guaranteed for causal attention",
        "text": "PanGu-π takes the largest eigenvalue λ of Aᵀ(I - eeᵀ)A to be below 1, which "
        "doubly stochastic attention guarantees and causal attention does not: uniform causal "
        "attention of 128 tokens already has √λ = 1.33. Here √λ is 1 or more in "
        f"{percent(above)} of the readings, at most {figure(largest)}. The bound with the measured "
        f"λ holds all the same; it just need not contract.{_factor(frames)}",
        "source": "pangu23, Lemma 1 and Theorem 2",
    }


def _factor(frames: Frames) -> str:
    rows = _readings(frames, "gain", "factor")
    if rows.empty:
        return ""
    below = float((rows["factor"] < 1).mean())
    return (
        f" Its factor √(λH) s υ₁, which the source calls usually below 1, is so in "
        f"{percent(below)} of the layers here (median {figure(float(rows['factor'].median()))})."
    )


def _sinks(frames: Frames, cards: list[Mapping[str, Any]]) -> Note | None:
    rows = _readings(frames, "spectrum", "row_sum_min", "norm")
    leaking = rows[rows["row_sum_min"] < 1 - ROW_SUM_SLACK]
    if leaking.empty:
        return None
    lowest = (
        f" Here rows sum to as little as {figure(float(leaking['row_sum_min'].min()))}, and "
        f"{percent(float((leaking['norm'] < 1).mean()))} of those matrices have a norm below 1 "
        f"(lowest {figure(float(leaking['norm'].min()))})."
    )
    return {
        "title": "The norm of attention can fall below 1",
        "text": "The lower bound 1 needs rows that sum to 1. A learned sink takes probability and "
        f"gives no value, so the rows of these models do not.{lowest} PanGu-π's Theorems 1 and 2 "
        "need the same premise and are not applied there; sqrt(c_max) holds.",
        "source": "spectral25, lower bound; pangu23, Theorems 1 and 2",
    }


def _prenorm(frames: Frames, cards: list[Mapping[str, Any]]) -> Note | None:
    rows = _readings(frames, "querykey", "prenorm_bound")
    if rows.empty:
        return None
    return {
        "title": "The pre-norm bound on ‖A‖₂ does not hold under a causal mask",
        "text": "The source's sqrt(n / (1 + (n-1) e^(-2M))) counts n keys in every row, but under "
        "a causal mask row i has i of them: for small scores (M = 0.1, n = 128) it gives 1.104 and "
        f"the norm is 1.646.{_count_violated(frames)} layerlab prints the corrected form, "
        f"sqrt(Σᵢ 1 / (1 + (i-1) e^(-2M))).{_vacuous(rows, cards)} No finding rests on it. It "
        "does not tell pre-norm from post-norm either: from the second block on, post-norm "
        "attention reads a normed stream too.",
        "source": "spectral25, pre-norm bound",
    }


def _count_violated(frames: Frames) -> str:
    """Count the heads that exceed the printed form, which grows with the length."""
    keys = ["model", "layer", "head"]
    printed = _readings(frames, "querykey", *keys, "prenorm_printed")
    norms = _readings(frames, "spectrum", *keys, "norm")
    if printed.empty or norms.empty:
        return ""
    largest = norms.groupby(keys, as_index=False)["norm"].max()
    both = printed[[*keys, "prenorm_printed"]].merge(largest, on=keys)
    above = int((both["norm"] > both["prenorm_printed"] * (1 + ROW_SUM_SLACK)).sum())
    return f" Here {above:,} of {len(both):,} heads exceed it." if above else ""


def _vacuous(rows: pd.DataFrame, cards: list[Mapping[str, Any]]) -> str:
    """Count the heads whose bound says no more than sqrt(n), n being the longest text."""
    lengths = {card["name"]: max(card["tokens"]) for card in cards if card.get("tokens")}
    roots = rows["model"].map(lengths).astype(float) ** 0.5
    known = rows[roots.notna()]
    empty = int((known["prenorm_bound"] >= NEARLY * roots[known.index]).sum())
    if known.empty or not empty:
        return ""
    return (
        f" For {empty:,} of {len(known):,} heads here even that is vacuous: within 1 % of sqrt(n), "
        "which holds for any attention over the longest text that was read."
    )


def _length(frames: Frames, cards: list[Mapping[str, Any]]) -> Note | None:
    rows = _readings(frames, "spectrum", "uniform_ratio", "norm")
    if rows.empty:
        return None
    medians = rows.groupby("model")["uniform_ratio"].median()
    low, high = figure(float(medians.min())), figure(float(medians.max()))
    span = low if low == high else f"{low} to {high}, depending on the model"
    return {
        "title": "Attention norms follow length and sinks, not the place of the norm",
        "text": "The source reads the norm of attention as a difference between pre-norm and "
        "post-norm. A causal attention matrix has a large norm when it is long or when many tokens "
        "attend to one; so every norm is shown beside that of uniform causal attention of the same "
        f"length. Here the median ratio is {span}.{_describe_correlation(frames)} Norms above 1 do "
        "not multiply with depth: a product of attention matrices is again one, and stays below "
        "sqrt(n).",
        "source": "spectral25, figures and section 1",
    }


def _describe_correlation(frames: Frames) -> str:
    keys = ["model", "sequence", "layer", "head"]
    norms = _readings(frames, "spectrum", *keys, "uniform_ratio")
    masses = _readings(frames, "attention", *keys, "sink_mass")
    if norms.empty or masses.empty:
        return ""
    both = norms[[*keys, "uniform_ratio"]].merge(masses[[*keys, "sink_mass"]], on=keys)
    ranks = both[["uniform_ratio", "sink_mass"]].rank().to_numpy(dtype=float)
    if len(ranks) < 3 or not (np.ptp(ranks, axis=0) > 0).all():
        return ""
    correlation = float(np.corrcoef(ranks.T)[0, 1])
    return f" Its rank correlation with the sink mass is {correlation:.2f}."


def _describe_uncovered(frames: Frames, cards: list[Mapping[str, Any]]) -> Note | None:
    rows = _readings(frames, "gain", "measured")
    if rows.empty or not {"sublayer", "bound"} <= set(rows.columns):
        return None
    layers = rows[rows["sublayer"] == "ffn"]
    unbounded = layers[layers["bound"].isna()]
    ranged = layers[layers["bound"].notna() & (layers.get("ranged", 0.0) > 0)]
    if unbounded.empty and ranged.empty:
        return None
    return {
        "title": "Theorems 3 and 7 do not cover every feed-forward layer",
        "text": f"They are for act(Z W₁) W₂.{_describe_ranged(ranged)}{_describe_none(unbounded)}",
        "source": "pangu23, Theorems 3 and 7",
    }


def _describe_ranged(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    median = figure(float((rows["bound"] / rows["measured"]).median()))
    return (
        " A gate multiplies two linear maps, as in SwiGLU, so there is no global Lipschitz "
        "constant: ten times the input gives about ten times the gain, and the bound of Theorem 3 "
        "does not cover it. The bound that stands beside such a layer here is our own: what its "
        f"weights allow on the range that its gate takes in this text, {median} times what is "
        "measured (median)."
    )


def _describe_none(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    measured = rows["measured"][np.isfinite(rows["measured"])]
    spread = (
        f" Measured here: {figure(float(measured.min()))} to {figure(float(measured.max()))}."
        if len(measured) and not math.isclose(measured.min(), measured.max())
        else ""
    )
    return (
        " A mixture of experts, or a layer of a form that is not known, is measured and stands "
        f"without a bound.{spread}"
    )


_NOTES: tuple[Callable[[Frames, list[Mapping[str, Any]]], Note | None], ...] = (
    _contraction,
    _sinks,
    _prenorm,
    _length,
    _describe_uncovered,
)
