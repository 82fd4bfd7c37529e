"""Checks before the start what the runs of a plan must have in common.

Manifests are held against each other again once they are written: only then are machines, versions
and the order of the text known.
"""

import difflib
from collections.abc import Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.plan.equal_terms import Varied, check_equal_terms, matches, settings
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.system.hardware import LIBRARIES
from layerlab.training.run_spec import RunSpec
from layerlab.validation import short_repr

# What a manifest has beside the settings of its recipe, and may so be declared.
PATHS = (
    *("schema", "run", "arm", "match", "batch_tokens", "micro_batch", "sittings"),
    *("data.digest", "data.order", "data.evaluation", "data.notes"),
    *("data.train_tokens", "data.validation_tokens", "data.validation_bytes"),
    *("model.parameters", "model.forward_flops"),
    *("model.embedding", "model.head", "model.blocks", "model.scalars"),
    *("machine.processor", "machine.device", "machine.threads"),
    *("machine.processes", "machine.sharding"),
    *("versions.python", "versions.layerlab", *(f"versions.{name}" for name in LIBRARIES)),
)


def check_comparable(section: CompareSection, runs: Sequence[RunSpec]) -> None:
    """Refuse a plan whose runs could not be compared once they have run.

    Raises:
        UserError: they differ in what was not declared, or what was declared is nothing that a run
            has.
    """
    manifests = [_foreseen(run) for run in runs]
    known = {path for one in manifests for path in settings(one)} | set(PATHS)
    for pattern in section.allowed_differences:
        if not any(matches(path, [pattern]) for path in known):
            raise UserError(_unknown(pattern, sorted(known)))
    check_equal_terms(manifests, Varied.of(section))


def _foreseen(run: RunSpec) -> dict[str, Any]:
    """Return the manifest of a run as far as its plan knows it."""
    recipe = run.recipe
    return {
        "run": run.name,
        "arm": run.arm,
        "recipe": recipe.decisive(),
        "data": {"digest": run.digest},
        "machine": {
            "threads": recipe.run.threads,
            "processes": recipe.run.num_processes,
            "sharding": recipe.run.sharding,
        },
        "batch_tokens": recipe.train.batch_size * (recipe.data.block_size or 0),
    }


def _unknown(pattern: str, known: Sequence[str]) -> str:
    tables = sorted({path.split(".")[0] for path in known if "." in path})
    names = [*known, *tables, *(f"{table}.*" for table in tables)]
    near = difflib.get_close_matches(pattern, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"compare.allowed_differences has {short_repr(pattern)}, which no run has; {hint}expected "
        'a setting by its path, as "train.batch_size", or a whole section: "machine.*"'
    )
