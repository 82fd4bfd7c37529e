"""Runs whose numbers are given or drawn instead of trained: everything else of them is real."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.renamed_settings import settings_of_0_1
from layerlab.records.run import RunRecord
from layerlab.training.run_spec import RunSpec

EXTENT = CorpusSize(vocab=300, tokens=4096, digest="d1")
MODEL = {"width": 16, "layers": 2, "heads": 2, "kv_heads": 2, "inner": 32, "context": 16}


def recipe(*arms: Any, train: Mapping[str, Any] | None = None, **compare: Any) -> TrainingRecipe:
    """A comparison of tiny arms."""
    return make_recipe(
        {
            "name": "drawn",
            "model": MODEL,
            "train": {"max_steps": 20, "batch_size": 4, **(train or {})},
            "compare": {"arms": list(arms) or ["llama", "gpt2"], **compare},
        }
    )


def manifest(run: RunSpec) -> dict[str, Any]:
    """The manifest that a run on this machine would have, apart from what is on the disk."""
    single = run.recipe
    block = single.data.block_size or 0
    return {
        "schema": 1,
        "run": run.name,
        "arm": run.arm,
        "recipe": single.decisive(),
        "data": {
            "digest": run.digest,
            "train_tokens": 4096,
            "validation_tokens": 512,
            "validation_bytes": 2000,
            "order": f"order-{run.seed}-{block}",
            "evaluation": f"blocks-of-{block}",
        },
        "model": {"parameters": 1000, "forward_flops": 2000},
        "machine": {"processor": "one", "device": "cpu", "threads": 1},
        "versions": {"torch": "2.13.0"},
        "batch_tokens": single.train.batch_size * block,
        "micro_batch": single.train.batch_size,
    }


def record(run: RunSpec, nats: float | None, **result: Any) -> RunRecord:
    """A run that ended at a loss; with None one that has not ended."""
    if nats is None:
        return RunRecord(manifest=manifest(run))
    ended = {
        "schema": 1,
        "run": run.name,
        "arm": run.arm,
        "seed": run.seed,
        "rate": run.rate,
        "nats": nats,
        "bits_per_byte": nats / 2,
        "accuracy": 0.5,
        "step0_nats": 5.7,
        "updates": 30,
        "tokens": 1920,
        "seconds": 10.0,
        "tokens_per_second": 100.0,
        "peak_memory_bytes": 2**20,
        "parameters": 1000,
        "flops": 1e6,
        "diverged": None,
        "weights": "0" * 32,
    }
    lost = None if math.isfinite(nats) else "the loss is not finite"
    ended["diverged"] = result.setdefault("diverged", lost)
    if ended["diverged"]:
        ended |= dict.fromkeys(("nats", "bits_per_byte", "accuracy"))
    told = [{"kind": "note", "update": 30, "text": ended["diverged"]}] if ended["diverged"] else []
    journal = (*events(nats), *told)
    return RunRecord(manifest=manifest(run), events=journal, result={**ended, **result})


def events(nats: float) -> list[dict[str, Any]]:
    """Three evaluations that come down to the last loss, and a line of training before each."""
    found: list[dict[str, Any]] = []
    for step in (1, 2, 3):
        axes = {
            "update": 10 * step,
            "tokens": 640 * step,
            "flops": 2.5e5 * 2 ** (step - 1),
            "seconds": step,
        }
        loss = nats + (3 - step)
        found.append({"kind": "train", **axes, "loss": loss, "rate": 0.001, "norm": 1.0})
        losses = {"nats": loss, "bits_per_byte": loss / 2, "accuracy": 0.5}
        found.append({"kind": "evaluation", **axes, **losses})
    return found


def runs(given: TrainingRecipe) -> list[RunSpec]:
    """The plan of a recipe."""
    return plan(given, EXTENT)


def records(
    given: TrainingRecipe, losses: Mapping[str, Mapping[int, float | None]]
) -> list[RunRecord]:
    """Every run of a plan, with its loss by arm and seed; those without a loss are left out."""
    return [
        record(run, losses[run.arm][run.seed])
        for run in runs(given)
        if run.seed in losses.get(run.arm, {})
    ]


def write(folder: Path, one: RunRecord) -> Path:
    """The folder that a run of 0.1 left: its settings by their names of then, and no digest."""
    place = folder / one.name
    place.mkdir(parents=True)
    manifest = {**one.manifest, "recipe": settings_of_0_1(one.manifest["recipe"])}
    (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    lines = "".join(json.dumps(event) + "\n" for event in one.events)
    (place / "events.jsonl").write_text(lines, encoding="utf-8")
    if one.result is not None:
        (place / "result.json").write_text(json.dumps(one.result), encoding="utf-8")
    return place
