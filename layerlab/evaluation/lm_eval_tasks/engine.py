"""All that is taken of lm-eval, in one place: its model, its loop, its tasks and their metrics."""

import lm_eval
import lm_eval.api.metrics  # fills the registry of metrics
from lm_eval import utils
from lm_eval.api.registry import get_aggregation, get_metric, is_higher_better, metric_registry
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, TaskIndex

__all__ = [
    "ENGINE",
    "HFLM",
    "ConfigurableTask",
    "Entry",
    "TaskIndex",
    "TaskManager",
    "evaluate",
    "get_aggregation",
    "get_metric",
    "is_higher_better",
    "metric_registry",
    "utils",
]

ENGINE = f"lm-eval {lm_eval.__version__}"
