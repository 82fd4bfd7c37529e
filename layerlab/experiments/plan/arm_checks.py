"""Checks before the start what the runs of a plan must have in common.

Manifests are held against each other again once they are written: only then are machines, versions
and the order of the text known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerlab.corpus.batches import EvalBlocks
from layerlab.corpus.corpus import Corpus
from layerlab.errors import UserError
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms, settings
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import SHARED
from layerlab.records.settings import matches
from layerlab.system.hardware import LIBRARIES
from layerlab.training.run_spec import RunSpec
from layerlab.validation import short_repr, suggest

# What a manifest has beside the settings of its recipe, and may so be declared.
PATHS = (
    *("schema", "run", "arm", "match", "batch_tokens", "micro_batch", "sittings", SHARED),
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
    manifests = [_predict_manifest(run) for run in runs]
    paths = {path for one in manifests for path in settings(one)} | set(PATHS)
    for pattern in section.allowed_differences:
        if not any(matches(path, [pattern]) for path in paths):
            raise UserError(_unknown(pattern, sorted(paths)))
    check_equal_terms(manifests, VariedSettings.of(section))


def _predict_manifest(run: RunSpec) -> dict[str, Any]:
    """Return the manifest of a run as far as its plan knows it."""
    recipe = run.recipe
    return {
        "run": run.name,
        "arm": run.arm,
        "recipe": recipe.decisive(),
        "data": {"digest": run.digest},
        "machine": {
            "device": recipe.run.device.partition(":")[0],
            "threads": recipe.run.threads,
            "processes": recipe.run.num_processes,
            "sharding": recipe.run.sharding,
        },
        "batch_tokens": recipe.train.batch_size * (recipe.data.block_size or 0),
    }


def _unknown(pattern: str, paths: Sequence[str]) -> str:
    tables = sorted({path.split(".")[0] for path in paths if "." in path})
    names = [*paths, *tables, *(f"{table}.*" for table in tables)]
    hint = suggest(pattern, names)
    return (
        f"compare.allowed_differences has {short_repr(pattern)}, which no run has; {hint}expected "
        'a setting by its path, as "train.batch_size", or a whole section: "machine.*"'
    )


def check_same_eval_text(runs: Iterable[RunSpec], corpora: Mapping[str, Corpus]) -> None:
    """Refuse arms that would be judged on different parts of the held-out text.

    All of it is the same text under every tokenizer. So many blocks of it are not: a block is a
    number of tokens.

    Args:
        corpora: of the arms, by name.

    Raises:
        UserError: arms cut the text into other blocks, and `max_eval_blocks` takes a part of them.
    """
    leads = {run.arm: run for run in runs}
    if len({(corpora[arm].digest, run.recipe.data.block_size) for arm, run in leads.items()}) == 1:
        return
    part = {
        arm: _hold(run, corpora[arm], run.recipe.evaluate.max_eval_blocks)
        for arm, run in leads.items()
    }
    full = {arm: len(_hold(run, corpora[arm])) for arm, run in leads.items()}
    cut = [arm for arm in leads if len(part[arm]) < full[arm]]
    if cut and len({held.digest for held in part.values()}) > 1:
        limit, most = leads[cut[0]].recipe.evaluate.max_eval_blocks, max(full.values())
        raise UserError(
            f"arms cut the held-out text into other blocks, and evaluate.max_eval_blocks = {limit} "
            "would judge each on another part of it; leave it out, or write as many as there are: "
            f"evaluate.max_eval_blocks = {most}"
        )


def _hold(run: RunSpec, corpus: Corpus, limit: int | None = None) -> EvalBlocks:
    return EvalBlocks(corpus, run.recipe.data.block_size or 1, limit)
