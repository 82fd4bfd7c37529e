"""Limits on how often a task may have each question asked and answered.

lm-eval makes a request for each repetition before the first is answered, and a model keeps an
answer in memory for each beam.
"""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.files import values
from layerlab.validation import short_repr

RANGES = {"repeats": (1, 1024), "num_beams": (1, 64), "num_fewshot": (0, 1024)}


def check_counts(config: Mapping[str, Any], what: str) -> None:
    """Refuse a task that has everything done more often than any real one, or less than once.

    Args:
        what: is refused, in words.

    Raises:
        UserError: names the setting.
    """
    for _, value in values(config):
        for name, (least, most) in RANGES.items():
            count = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(count, int | float) and not (least <= count <= most and count % 1 == 0):
                raise UserError(
                    f"{what} has {name} = {short_repr(count)}; expected a whole number from "
                    f"{least} to {most:,}"
                )
