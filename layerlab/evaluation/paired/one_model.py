"""Check that results which lm-eval wrote into one folder are of one model.

It calls the folder by `pretrained` alone, so that other revisions, adapters and precisions of a
model come to lie beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from layerlab.errors import UserError
from layerlab.records.json_values import Record
from layerlab.validation import short_repr

# What says which numbers a model computes with, among its arguments and in the configuration.
_MODEL = (
    *("pretrained", "model", "path", "base_url", "revision", "subfolder", "gguf_file"),
    *("peft", "delta", "lora_local_path", "dtype", "quantization", "load_in_8bit", "load_in_4bit"),
    *("autogptq", "gptqmodel"),
)
# What lm-eval itself finds out of a model, where it can: without a network it knows no commit.
_FOUND = ("model_dtype", "model_revision", "model_sha")
# What that tells better than the arguments do: one that is left out may be the usual one.
_TOLD = {"dtype": "model_dtype", "revision": "model_revision"}
# What says where it computes, and how fast.
_PLACE = (
    *("device", "device_map", "device_map_option", "parallelize", "max_memory_per_gpu"),
    *("max_cpu_memory", "offload_folder", "batch_size", "max_batch_size"),
    *("tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "swap_space"),
    *("num_concurrent", "max_retries", "timeout", "token", "cache_dir"),
)
# How questions were asked, beside the arguments of the model.
_ASKED = ("system_instruction", "chat_template", "fewshot_as_multiturn")
# What also decides answers, and what is each model's own.
_ASKING = ("max_length", "lm_eval_version")
_OWN = (
    *("pretrained", "path", "base_url", "revision", "subfolder", "gguf_file", "peft", "delta"),
    *("lora_local_path", "tokenizer", "chat_template", "model_revision", "model_sha"),
)


def list_unlike_settings(results: Sequence[tuple[Path, Record]]) -> list[str]:
    """Return how else answers that lie beside each other were asked for, by the names of settings.

    Args:
        results: of lm-eval, with the files that they are from; empty where a file is not there.

    Raises:
        UserError: they are of two models.
    """
    settings = [(path, dict(_list_settings(one))) for path, one in results if one.get("config")]
    unlike: set[str] = set()
    for (first, here), (second, there) in pairwise(settings):
        differ = sorted(_list_unlike(here, there))
        if name := next((one for one in (*_MODEL, *_FOUND) if one in differ), None):
            one, other = (short_repr(each.get(name, "")) for each in (here, there))
            raise UserError(
                f"{second.parent} holds answers of two models: {name} is {one} in {first.name} and "
                f"{other} in {second.name}; move the results and samples of one into a folder of "
                "its own"
            )
        unlike.update(differ)
    return sorted(unlike)


def list_settings(results: Record) -> dict[str, str]:
    """Return what a model was loaded and asked with, by name, as far as results tell it."""
    if not results.get("config"):
        return {}
    asking = {name: results.get(name) for name in _ASKING}
    known = {name: str(one) for name, one in asking.items() if one is not None}
    return {**dict(_list_settings(results)), **known}


def describe_settings(models: Sequence[Mapping[str, str]]) -> list[str]:
    """Describe settings in which models were asked or loaded otherwise, but for each one's own.

    Args:
        models: settings of each; empty where nothing is known.
    """
    loaded = [one for one in models if one.keys() - set(_FOUND)]
    remarks = []
    for name in sorted({name for one in models for name in one} - set(_OWN)):
        known = [one for one in models if one] if name in _FOUND else loaded
        values = dict.fromkeys(one.get(name, "none given") for one in known)
        unknown = name in (*_FOUND, *_ASKING) and not all(name in one for one in known)
        told_better = all(_TOLD.get(name) in one for one in known)
        if len(values) > 1 and not unknown and not told_better:
            remarks.append(f"{name} ({' and '.join(map(short_repr, values))})")
    return remarks


def _list_unlike(here: Mapping[str, str], there: Mapping[str, str]) -> Iterator[str]:
    both = here.keys() & there.keys()
    for name in here.keys() | there.keys():
        unknown = name in _FOUND and name not in both
        if here.get(name) != there.get(name) and not unknown and _TOLD.get(name) not in both:
            yield name


def _list_settings(results: Record) -> Iterator[tuple[str, str]]:
    """Yield what a model was loaded and asked with, by name; what is not told is left out."""
    config = results["config"] if isinstance(results["config"], Mapping) else {}
    given = config.get("model_args")
    if isinstance(given, str):
        pairs = (one.partition("=") for one in given.split(","))
        given = {name.strip(): value.strip() for name, _, value in pairs}
    asked = {name: results.get(name) for name in _ASKED}
    numbers = {name: config.get(name) for name in ("model", *_FOUND)}
    given = given if isinstance(given, Mapping) else {}
    for name, value in {**asked, **numbers, **given}.items():
        if name not in _PLACE and value not in (None, ""):
            yield str(name), str(value)
