"""All that is taken of lm-eval, in one place: its model, its loop, its tasks and their metrics."""

# ruff: noqa: E402  (what stands before the import is read before it)
import os

# lm-eval sets them when it is imported, for all of the process.
_UNSET = {"HF_XET_HIGH_PERFORMANCE", "HF_HUB_ENABLE_HF_TRANSFER"} - {*os.environ}

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

for _name in _UNSET:
    os.environ.pop(_name, None)

ENGINE = f"lm-eval {lm_eval.__version__}"
