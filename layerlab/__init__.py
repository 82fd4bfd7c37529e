"""layerlab, a laboratory for Transformer blocks.

>>> import layerlab
>>> report = layerlab.inspect("pre-norm", progress=False, measures=["diversity"])
>>> report.frame("diversity").columns[:3].tolist()
['model', 'sequence', 'layer']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.model.ecosystem.auto_classes import watch as _watch
from layerlab.version import VERSION

if TYPE_CHECKING:
    from layerlab.api.adapt import adapt, estimate_adaptation
    from layerlab.api.bench_latency import bench_latency
    from layerlab.api.diagnose import diagnose
    from layerlab.api.evaluate import evaluate
    from layerlab.api.gap import gap
    from layerlab.api.inspect import inspect
    from layerlab.api.judge import judge
    from layerlab.api.ledger import add_idea, create_ledger, judge_idea, read_ledger
    from layerlab.api.list_runs import list_runs
    from layerlab.api.precision import precision
    from layerlab.api.retrofit import retrofit
    from layerlab.api.stages.adaptation import (
        change_vocabulary,
        clean_text,
        embed_tokenizer,
        find_contamination,
    )
    from layerlab.api.train import compare, estimate_runs, train
    from layerlab.data.catalog import list_corpora
    from layerlab.evaluation.results.listing import list_benchmarks
    from layerlab.evaluation.tasks.configs import export_tasks
    from layerlab.model.build import build
    from layerlab.model.cost.match import matched
    from layerlab.model.listing.card import list_variants
    from layerlab.numerics.emulation.emulate import emulate
    from layerlab.numerics.emulation.policies.apply import apply_precision
    from layerlab.numerics.emulation.policies.policy import Policy, load_policy
    from layerlab.numerics.profiles.profile import list_profiles
    from layerlab.plugins import load
    from layerlab.report.results.report import Report, load_report
    from layerlab.studies.engine.runner import study
    from layerlab.training.monitor.alerts import Limits
    from layerlab.training.monitor.monitor import Monitor

__version__ = VERSION
__all__ = [
    "Limits",
    "Monitor",
    "Policy",
    "Report",
    "UserError",
    "__version__",
    "adapt",
    "add_idea",
    "apply_precision",
    "bench_latency",
    "build",
    "change_vocabulary",
    "clean_text",
    "compare",
    "create_ledger",
    "diagnose",
    "embed_tokenizer",
    "emulate",
    "estimate_adaptation",
    "estimate_runs",
    "evaluate",
    "export_tasks",
    "find_contamination",
    "gap",
    "inspect",
    "judge",
    "judge_idea",
    "list_benchmarks",
    "list_corpora",
    "list_profiles",
    "list_runs",
    "list_variants",
    "load",
    "load_policy",
    "load_report",
    "matched",
    "precision",
    "read_ledger",
    "retrofit",
    "study",
    "train",
]

_HOMES = {
    "judge": "layerlab.api.judge",
    "gap": "layerlab.api.gap",
    "precision": "layerlab.api.precision",
    "inspect": "layerlab.api.inspect",
    "retrofit": "layerlab.api.retrofit",
    **dict.fromkeys(("adapt", "estimate_adaptation"), "layerlab.api.adapt"),
    **dict.fromkeys(
        ("change_vocabulary", "clean_text", "embed_tokenizer", "find_contamination"),
        "layerlab.api.stages.adaptation",
    ),
    "bench_latency": "layerlab.api.bench_latency",
    "list_corpora": "layerlab.data.catalog",
    "diagnose": "layerlab.api.diagnose",
    "evaluate": "layerlab.api.evaluate",
    "export_tasks": "layerlab.evaluation.tasks.configs",
    "list_benchmarks": "layerlab.evaluation.results.listing",
    **dict.fromkeys(("compare", "estimate_runs", "train"), "layerlab.api.train"),
    "build": "layerlab.model.build",
    **dict.fromkeys(
        ("create_ledger", "add_idea", "judge_idea", "read_ledger"), "layerlab.api.ledger"
    ),
    "list_runs": "layerlab.api.list_runs",
    "list_variants": "layerlab.model.listing.card",
    "list_profiles": "layerlab.numerics.profiles.profile",
    "matched": "layerlab.model.cost.match",
    "apply_precision": "layerlab.numerics.emulation.policies.apply",
    "emulate": "layerlab.numerics.emulation.emulate",
    "Policy": "layerlab.numerics.emulation.policies.policy",
    "load_policy": "layerlab.numerics.emulation.policies.policy",
    "load": "layerlab.plugins",
    "Report": "layerlab.report.results.report",
    "load_report": "layerlab.report.results.report",
    "study": "layerlab.studies.engine.runner",
    "Limits": "layerlab.training.monitor.alerts",
    "Monitor": "layerlab.training.monitor.monitor",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import layerlab` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layerlab' has no attribute {name!r}")
    import random  # late: `import layerlab` imports little

    from layerlab.validation import check_arguments

    before = random.getstate()  # rich draws a number when it is imported
    found = getattr(import_module(_HOMES[name]), name)
    random.setstate(before)
    return found if isinstance(found, type) else check_arguments(found, f"layerlab.{name}")


def __dir__() -> list[str]:
    return __all__


_watch()
