"""layerlab, a laboratory for Transformer blocks.

>>> import layerlab
>>> report = layerlab.inspect("pre-norm", progress=False, measures=["diversity"])
>>> report.frame("diversity").columns[:3].tolist()
['model', 'sequence', 'layer']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.model.enrolment import watch as _watch
from layerlab.version import VERSION

if TYPE_CHECKING:
    from layerlab.advice import precision
    from layerlab.api import inspect, retrofit
    from layerlab.curriculum import adapt
    from layerlab.doctor import diagnose
    from layerlab.examination import evaluate
    from layerlab.experiment import compare, train
    from layerlab.model.build import build
    from layerlab.model.card import list_variants
    from layerlab.model.match import matched
    from layerlab.numerics.casting import apply_precision
    from layerlab.numerics.emulate import emulate
    from layerlab.numerics.policy import Policy, load_policy
    from layerlab.registry import load
    from layerlab.report.report import Report, load_report
    from layerlab.studies.runner import study
    from layerlab.training.monitor import Monitor

__version__ = VERSION
__all__ = [
    "Monitor",
    "Policy",
    "Report",
    "UserError",
    "__version__",
    "adapt",
    "apply_precision",
    "build",
    "compare",
    "diagnose",
    "emulate",
    "evaluate",
    "inspect",
    "list_variants",
    "load",
    "load_policy",
    "load_report",
    "matched",
    "precision",
    "retrofit",
    "study",
    "train",
]

_HOMES = {
    "precision": "layerlab.advice",
    "inspect": "layerlab.api",
    "retrofit": "layerlab.api",
    "adapt": "layerlab.curriculum",
    "diagnose": "layerlab.doctor",
    "evaluate": "layerlab.examination",
    "compare": "layerlab.experiment",
    "train": "layerlab.experiment",
    "build": "layerlab.model.build",
    "list_variants": "layerlab.model.card",
    "matched": "layerlab.model.match",
    "apply_precision": "layerlab.numerics.casting",
    "emulate": "layerlab.numerics.emulate",
    "Policy": "layerlab.numerics.policy",
    "load_policy": "layerlab.numerics.policy",
    "load": "layerlab.registry",
    "Report": "layerlab.report.report",
    "load_report": "layerlab.report.report",
    "study": "layerlab.studies.runner",
    "Monitor": "layerlab.training.monitor",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import layerlab` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layerlab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


_watch()
