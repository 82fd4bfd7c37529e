"""Limits on how often a task may have each question asked and answered.

lm-eval makes a request for each repetition before the first is answered, and a model keeps an
answer in memory for each beam.
"""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.files import values
from layerlab.validation import short_repr

MOST = {"repeats": 1024, "num_beams": 64, "num_fewshot": 1024}


def check_counts(config: Mapping[str, Any], what: str) -> None:
    """Refuse a task that has everything done more often than any real one.

    Args:
        what: is refused, in words.

    Raises:
        UserError: names the setting.
    """
    for _, value in values(config):
        for name, most in MOST.items():
            count = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(count, int | float) and not count <= most:
                raise UserError(
                    f"{what} has {name} = {short_repr(count)}; expected at most {most:,}"
                )
