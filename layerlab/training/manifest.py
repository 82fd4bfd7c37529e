"""The manifest of a run: everything that must be equal before two runs may be compared."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from layerlab.corpus.batches import BatchOrder, EvalBlocks
from layerlab.corpus.corpus import Corpus
from layerlab.model.cost.cost import Account
from layerlab.records.parse import read_json
from layerlab.records.run import SHARED
from layerlab.records.settings import flatten
from layerlab.system.files import write_file
from layerlab.system.hardware import machine, versions
from layerlab.training.run_spec import RunSpec, count_costs, own_files

SCHEMA = 1
FILE = "manifest.json"
# What may change while a run is stopped.
_CHANGING = ("machine", "versions")
Session = dict[str, Any]


def manifest(
    run: RunSpec,
    corpus: Corpus,
    order: BatchOrder,
    eval_blocks: EvalBlocks,
    micro: int,
    *,
    shared: bool,
) -> dict[str, Any]:
    """Describe everything that decides a run, as JSON values.

    Args:
        shared: whether it has computed beside other runs on its device, which decides its speed.
    """
    recipe = run.recipe
    block = recipe.data.block_size or 0
    settings, files = recipe.run, own_files(recipe)
    return {
        "schema": SCHEMA,
        "run": run.name,
        "arm": run.arm,
        "recipe": recipe.decisive(),
        "data": {
            "digest": run.digest,
            "train_tokens": _count_tokens(corpus),
            "validation_tokens": sum(len(one.tokens) for one in corpus.validation),
            "validation_bytes": corpus.validation_bytes,
            "order": order.digest,
            "evaluation": eval_blocks.digest,
            "notes": list(corpus.notes),
        },
        "model": _sizes(count_costs(recipe)) | ({"files": files} if files else {}),
        "machine": {
            **machine(settings.device, settings.threads),
            "processes": settings.num_processes,
            "sharding": settings.sharding,
        },
        "versions": versions(),
        "batch_tokens": recipe.train.batch_size * block,
        "micro_batch": micro,
        SHARED: shared,
        "match": None if run.match is None else run.match.to_dict(),
    }


def _count_tokens(corpus: Corpus) -> int | None:
    """Return the tokens of the training text; None of one in shards, which may not be read yet."""
    if any(stream.shards for stream in corpus.train):
        return None
    return sum(len(one.tokens) for one in corpus.train)


def _sizes(cost: Account) -> dict[str, Any]:
    kept = ("embedding", "head", "blocks", "scalars")
    return {
        "parameters": cost.parameters,
        **{name: value for name, value in asdict(cost).items() if name in kept},
        "forward_flops": cost.forward,
    }


def keep_manifest(
    content: Mapping[str, Any], folder: Path, before: list[Session], update: int
) -> tuple[list[Session], str | None]:
    """Write the manifest of a run that begins or goes on.

    Where it is made with something else than before, the manifest has all its `sittings` in order:
    the update that each began after, its machine and its versions. One that left no checkpoint has
    left nothing in the run.

    Args:
        folder: of the run.
        before: sessions that the checkpoint tells of; a manifest is no witness of itself.
        update: after which this session begins.

    Returns:
        All sessions, and what the user is to be told of a change.
    """
    own = {"update": update, **{part: content[part] for part in _CHANGING}}
    sessions = [one for one in before if one["update"] < update]
    changed = _change(sessions[-1], own) if sessions else []
    if changed or not sessions:
        sessions.append(own)
    kept = {**content, "sittings": sessions} if len(sessions) > 1 else content
    write_file(folder / FILE, json.dumps(kept, indent=1) + "\n")
    return sessions, (
        f"from update {update} on {'; '.join(changed)}: the run is of several makes, and a "
        "comparison refuses it unless compare.allowed_differences declares that"
        if changed
        else None
    )


def _change(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings in which one session of a run differs from the next."""
    old, new = (dict(flatten({part: one[part] for part in _CHANGING})) for one in (before, now))
    return [
        f"{path} was {old.get(path)} and is {new.get(path)}"
        for path in sorted(old | new)
        if old.get(path) != new.get(path)
    ]


def read_sessions(folder: Path) -> list[Session]:
    """Return the sessions that the manifest in a folder lists, for checkpoints that list none.

    A run that was never interrupted is of one.
    """
    try:
        found = read_json(folder / FILE)
        first = {"update": 0, **{part: found[part] for part in _CHANGING}}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(found.get("sittings") or [first])
