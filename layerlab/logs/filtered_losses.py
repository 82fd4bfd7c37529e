"""Losses in training that were no number, and that a trainer left out of the means that it logs."""

import re
from typing import TYPE_CHECKING

import numpy as np

from layerlab.logs.loss_names import HELD_OUT, may_be_held_out

if TYPE_CHECKING:
    import pyarrow as pa

_NORM = re.compile(r"(.*[/_.])?grad(ient)?s?[/_]?norm", re.I)


def find_filtered(table: "pa.Table", loss: str, losses: np.ndarray) -> int | None:
    """Return the row from which gradients are no number to the end; None where there is none.

    Trainer of Hugging Face logs zeros there, and in the first of these rows the sum of what was
    finite (`logging_nan_inf_filter`, which is on). A step that a scaler of gradients skips has an
    infinite gradient, and others behind it.

    Args:
        table: the rows of a run, in the order of their steps.
        loss: column of the losses; held-out text has no gradients.
    """
    named = [
        one.name
        for one in table.schema
        if _NORM.fullmatch(one.name) and str(one.type) in ("double", "float", "int64")
    ]
    if not named or loss.lower() in HELD_OUT or may_be_held_out(loss):
        return None
    known = table[named[0]].is_valid().to_numpy()
    norms = table[named[0]].to_numpy().astype(float)
    zero = losses == 0
    # Tables leave empty what is no number.
    lost = np.where(known, np.isnan(norms), zero)
    last = np.flatnonzero(known & ~lost)
    begin = int(last[-1]) + 1 if len(last) else 0
    if not lost[begin:].any():
        return None
    first = begin + int(np.argmax(lost[begin:]))
    # A column that never had a number says nothing.
    return first if len(last) or (zero[first + 1 :].all() and zero[-1]) else None
