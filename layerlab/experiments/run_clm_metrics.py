"""The metric block that transformers' run_clm.py prints, from the files of a finished run.

Names and formats are its own, so that runs can be laid beside older ones. What it leaves out or
counts otherwise follows below, under names of its own.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.events import read
from layerlab.records.parse import read_json
from layerlab.records.renamed_settings import current_manifest
from layerlab.records.result import read_result
from layerlab.system.files import write_file

Metrics = dict[str, int | float | str]


@dataclass(frozen=True)
class Metrical:
    """The metrics of a run, unformatted.

    Attributes:
        train: as run_clm has them.
        eval: as run_clm has them; loss and what follows from it are of the last evaluation.
        extra: what run_clm does not say.
    """

    train: Metrics
    eval: Metrics
    extra: Metrics

    def __str__(self) -> str:
        parts = {"train": self.train, "eval": self.eval, "extra": self.extra}
        return "\n".join(_format_part(name, part) for name, part in parts.items() if part)


def block(folder: Path, write: bool = True) -> str:
    """Return the block of a run; its numbers are written beside it, as run_clm does.

    That is `train_results.json`, `eval_results.json` and `all_results.json`.

    Raises:
        UserError: the folder holds no finished run.
    """
    found = metrics(folder)
    if write:
        every = {"train": found.train, "eval": found.eval}
        for name, part in every.items():
            write_file(folder / f"{name}_results.json", _json(part))
        write_file(folder / "all_results.json", _json(found.train | found.eval | found.extra))
    return str(found)


def metrics(folder: Path) -> Metrical:
    """Return the metrics of a finished run.

    Raises:
        UserError: the folder holds no finished run.
    """
    result = read_result(folder)
    if result is None:
        raise UserError(
            f"{folder} holds no finished run; give one with a result.json, or finish it by typing "
            "layerlab train again"
        )
    manifest = current_manifest(read_json(folder / "manifest.json"))
    events = [one for one in read(folder) if one["update"] <= result["updates"]]
    # Of a text in shards nobody knows the length.
    total = manifest["data"]["train_tokens"]
    epoch = {} if total is None else {"epoch": result["tokens"] / total}
    return Metrical(
        train={**epoch, **_train(result, manifest)},
        eval={**epoch, **_eval(result, manifest, events)} if result["nats"] else {},
        extra=_extra(result, manifest) | _journal(result, events),
    )


def _train(result: Mapping[str, Any], manifest: Mapping[str, Any]) -> Metrics:
    block = manifest["recipe"]["data"]["block_size"]
    found: Metrics = {"total_flos": 6 * result["tokens"] * _apart(manifest["model"])}
    if result.get("train_loss") is not None:
        found["train_loss"] = result["train_loss"]
    found["train_runtime"] = round(result["seconds"], 4)
    if manifest["data"]["train_tokens"] is not None:
        found["train_samples"] = manifest["data"]["train_tokens"] // block
    return found | _speed("train", result["seconds"], result["tokens"] / block, result["updates"])


def _eval(result: Mapping[str, Any], manifest: Mapping[str, Any], events: list[Any]) -> Metrics:
    settings = manifest["recipe"]
    block, most = settings["data"]["block_size"], settings["evaluate"]["max_eval_blocks"]
    if (blocks := result.get("blocks")) is not None:  # those of every source end by themselves
        samples = len(blocks["tokens"])
    else:
        samples = math.ceil((manifest["data"]["validation_tokens"] - 1) / block)
        samples = samples if most is None else min(samples, most)
    found: Metrics = {
        "eval_accuracy": result["accuracy"],
        "eval_loss": result["nats"],
        "eval_perplexity": _perplexity(result["nats"]),
        "eval_samples": samples,
    }
    last = [one for one in events if one["kind"] == "evaluation"][-1:]
    taken = last[0].get("runtime") if last else None
    if taken is None:  # a run that did not time its evaluations
        return found
    steps = math.ceil(samples / settings["evaluate"]["batch_size"])
    return found | {"eval_runtime": round(taken, 4)} | _speed("eval", taken, samples, steps)


def _extra(result: Mapping[str, Any], manifest: Mapping[str, Any]) -> Metrics:
    """Return metrics that run_clm does not print: tokens, FLOPs and batch."""
    block = manifest["recipe"]["data"]["block_size"]
    found: dict[str, Any] = {
        "batch_sequences": manifest["batch_tokens"] // block,
        "batch_tokens": manifest["batch_tokens"],
        "bits_per_byte": result["bits_per_byte"],
        "flops_with_attention_and_head": result["flops"],
        "micro_batch_sequences": result["micro_batch"],
        "parameters": result["parameters"],
        "resumes": result["resumes"],
        "seed": result["seed"],
        "step0_loss": result.get("step0_nats"),
        "tokens": result["tokens"],
        "tokens_per_second": result.get("tokens_per_second"),
        "updates": result["updates"],
        "diverged": result.get("diverged"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _journal(result: Mapping[str, Any], events: list[Any]) -> Metrics:
    """Return the mean loss of the updates written down, where that of all was not kept."""
    losses = [one["loss"] for one in events if one["kind"] == "train"]
    if not losses or result.get("train_loss") is not None:
        return {}
    return {"train_loss_of_journalled_updates": sum(losses) / len(losses)}


def _apart(model: Mapping[str, int]) -> int:
    """Return parameters as transformers counts them for FLOPs: all but embeddings.

    A head that is tied to the embedding is left out with it.
    """
    return model["head"] + model["blocks"] + model["scalars"]


def _speed(split: str, seconds: int | float, samples: int | float, steps: int) -> Metrics:
    """Return samples and steps per second, as transformers rounds them."""
    if seconds <= 0:
        return {}
    return {
        f"{split}_samples_per_second": round(samples / seconds, 3),
        f"{split}_steps_per_second": round(steps / seconds, 3),
    }


def _perplexity(nats: int | float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return float("inf")


def _format_part(split: str, content: Mapping[str, Any]) -> str:
    """Return a part of the block: names in order, values to the right."""
    texts = {name: str(_format(name, value)) for name, value in content.items()}
    names, width = max(map(len, texts)), max(map(len, texts.values()))
    rows = [f"  {name: <{names}} = {texts[name]:>{width}}" for name in sorted(texts)]
    return "\n".join([f"***** {split} metrics *****", *rows])


def _format(name: str, value: Any) -> Any:
    """Format a value as transformers writes it.

    Example:
        >>> _format("total_flos", 3 << 30), _format("train_runtime", 8712.595)
        ('3GF', '2:25:12.59')
    """
    if "_runtime" in name:
        hundredths = int(abs(value - int(value)) * 100)
        return f"{timedelta(seconds=int(value))}.{hundredths:02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=4, sort_keys=True)
