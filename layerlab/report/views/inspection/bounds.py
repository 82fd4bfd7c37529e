"""Readings beyond a theorem's bound: one rule for the page and for the findings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

# A reading is a sum of up to about 8192 rounded terms: 8192 u, with a factor of two to spare.
TERMS = 2 * 8192
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}
# What a 16-bit model computes agrees with its own weights to a few units of bfloat16 (u = 2^-8).
COARSE_SLACK = 8 * 2.0**-8
FINE_SLACK = TERMS * 2.0**-24


def excess(rows: pd.DataFrame, bound: Mapping[str, Any]) -> pd.Series:
    """Return how far each reading lies beyond its bound, relative to the bound.

    NaN where either is missing.
    """
    value, limit = finite(rows[bound["column"]]), finite(rows[bound["limit"]])
    sign = 1.0 if bound["side"] == "upper" else -1.0
    return sign * (value - limit) / np.maximum(limit.abs(), FINE_SLACK)


def violations(rows: pd.DataFrame, bound: Mapping[str, Any], dtype: str | None) -> pd.Series:
    """Mark the readings that exceed their bound by more than rounding in the dtype explains.

    A measure that knows the rounding of its own numbers says so in a column `violated`.
    """
    broken = excess(rows, bound) > (FINE_SLACK if dtype in ROUNDOFF else COARSE_SLACK)
    return broken & (rows["violated"] > 0) if "violated" in rows.columns else broken


def is_text(column: pd.Series) -> bool:
    """Return whether a column holds words; what JSON has for an infinite number is none."""
    return any(isinstance(value, str) and value.lstrip("-") != "Infinity" for value in column)


def numbers(column: pd.Series) -> pd.Series:
    """Return a column as floats, infinities among them, with NaN for whatever is no number."""
    return pd.to_numeric(column, errors="coerce").astype(float)


def count_infinite(column: pd.Series) -> dict[str, int] | None:
    """Count the readings of a column and the infinite ones among them; None where none is."""
    readings = numbers(column).dropna()
    endless = int(np.isinf(readings).sum())
    return {"count": endless, "readings": len(readings)} if endless else None


def finite(column: pd.Series) -> pd.Series:
    """Return a column as floats, with NaN for whatever is not a finite number."""
    values = numbers(column).to_numpy()
    return pd.Series(np.where(np.isfinite(values), values, np.nan), column.index, name=column.name)
