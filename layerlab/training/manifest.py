"""The manifest of a run: everything that must be equal before two runs may be compared."""

from dataclasses import asdict
from typing import Any

from layerlab.model.account import Account
from layerlab.training.batch import Held, Order
from layerlab.training.corpus import Corpus
from layerlab.training.machine import machine, versions
from layerlab.training.plan import Run, account_of

SCHEMA = 1


def manifest(run: Run, corpus: Corpus, order: Order, held: Held, micro: int) -> dict[str, Any]:
    """What a run is made of, as plain JSON values; `micro` sequences make a forward pass."""
    recipe = run.recipe
    block = recipe.data.block or 0
    settings = recipe.run
    return {
        "schema": SCHEMA,
        "run": run.name,
        "arm": run.arm,
        "recipe": recipe.decisive(),
        "data": {
            "digest": run.digest,
            "train_tokens": sum(len(one.tokens) for one in corpus.train),
            "validation_tokens": sum(len(one.tokens) for one in corpus.validation),
            "validation_bytes": corpus.validation_bytes,
            "order": order.digest,
            "evaluation": held.digest,
            "notes": list(corpus.notes),
        },
        "model": _sizes(account_of(recipe)),
        "machine": {
            **machine(settings.device, settings.threads),
            "processes": settings.processes,
            "sharding": settings.sharding,
        },
        "versions": versions(),
        "batch_tokens": recipe.train.batch * block,
        "micro_batch": micro,
        "match": None if run.match is None else run.match.to_json(),
    }


def _sizes(cost: Account) -> dict[str, Any]:
    kept = ("embedding", "head", "blocks", "scalars")
    return {
        "parameters": cost.parameters,
        **{name: value for name, value in asdict(cost).items() if name in kept},
        "forward_flops": cost.forward,
    }
