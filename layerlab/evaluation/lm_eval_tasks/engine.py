"""All that is taken of lm-eval, in one place: its model, its loop, its tasks and their metrics."""

from pathlib import Path

import lm_eval
import lm_eval.api.metrics  # fills the registry of metrics
import lm_eval.tasks

__all__ = [
    *("HFLM", "Entry", "TaskIndex", "TaskManager", "evaluate", "get_aggregation", "get_metric"),
    *("is_higher_better", "metric_registry", "utils"),
]

ENGINE = f"lm-eval {lm_eval.__version__}"
# Where its own tasks lie.
HOME = Path(str(lm_eval.tasks.__file__)).parent
