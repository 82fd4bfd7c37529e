"""Refuse tasks of lm-eval that would run code until `--trust-tasks` is typed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.engine import metric_registry
from layerlab.evaluation.lm_eval_tasks.files import Code, values
from layerlab.system.files import check_regular
from layerlab.system.untrusted.trust import allows_tasks
from layerlab.validation import expand_home, short_repr

# What datasets reads without unpickling anything; a folder or a name of the Hub has the same kinds.
BUILDERS = ("json", "csv", "parquet", "arrow", "text")
SCHEMES = ("http", "https", "hf")
# What generating takes that runs nothing; transformers would fetch code for custom_generate.
GENERATION = {
    *("until", "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "num_beams"),
    *("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens", "max_length"),
    *("min_length", "min_new_tokens", "repetition_penalty", "no_repeat_ngram_size", "seed"),
    *("length_penalty", "early_stopping"),
}


def check_trusted(config: Mapping[str, Any], what: str, *, installed: bool = False) -> None:
    """Refuse a task that would run code, unless that was asked for.

    Args:
        what: is refused, in words.
        installed: it is one of lm-eval's own, whose functions were installed with it.

    Raises:
        UserError: it runs code and nobody has asked for that, or reads something unreadable.
    """
    for _, value in values(config):
        if isinstance(value, Mapping):
            check_data(value)
    if allows_tasks():
        return
    for why in _reasons(config, installed):
        raise UserError(
            f"{what} runs code ({why}), and nothing runs unasked; read it, and where you trust it "
            "type --trust-tasks (in Python trust_tasks=True), or --trust-recipe where a recipe "
            "names the task"
        )


def _reasons(config: Mapping[str, Any], installed: bool) -> Iterator[str]:
    """Yield what in a configuration, or in one inside of it, would run code."""
    for path, value in values(config):
        if isinstance(value, Code) and not installed:
            yield f"{path}: !function {value}"
        if isinstance(value, Mapping):
            yield from _reasons_of(value, installed)


def _reasons_of(config: Mapping[str, Any], installed: bool) -> Iterator[str]:
    if "class" in config and not installed:
        yield f"class: {config['class']}"
    if config.get("unsafe_code"):
        yield "unsafe_code: what the model writes is run"
    if config.get("trust_remote_code"):
        yield "trust_remote_code"
    prompt = config.get("use_prompt")
    if prompt is not None and not str(prompt).startswith("qa-basic:"):
        yield f"use_prompt: {prompt}"
    if "metric" in config and _is_foreign(config):
        yield f"metric: {config['metric']}, which is loaded from the Hub"
    options = config.get("generation_kwargs")
    for name in options if isinstance(options, Mapping) else ():
        if name not in GENERATION:
            yield f"generation_kwargs.{name}"
    if (source := config.get("dataset_path")) is not None and _is_unknown(source):
        yield f"dataset_path: {source}"


def _is_foreign(config: Mapping[str, Any]) -> bool:
    """Return whether a metric is none of lm-eval's own: it would look for code of that name."""
    name = config["metric"]
    if isinstance(name, Code) or not isinstance(name, str):
        return False  # a function is one by itself
    return bool(config.get("hf_evaluate")) or name not in metric_registry


def _is_unknown(source: Any) -> bool:
    """Return whether a data set is read by neither a plain reader nor from the Hub or a folder."""
    from datasets import packaged_modules

    if not isinstance(source, str) or source.endswith(".py"):
        return True
    if source in packaged_modules._PACKAGED_DATASETS_MODULES:
        return source not in BUILDERS
    return not (re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or Path(source).is_dir())


def check_data(config: Mapping[str, Any]) -> None:
    """Refuse files of a data set that are none: pipes, devices, chains of other protocols.

    Raises:
        UserError: says which.
    """
    for path, value in values(config.get("dataset_kwargs") or {}):
        if not isinstance(value, str) or path.split(".")[0] not in ("data_files", "data_dir"):
            continue
        scheme, sign, _ = value.partition("://")
        if "::" in value or (sign and scheme not in SCHEMES):
            raise UserError(
                f"a task reads {short_repr(value)}; expected files here, or an https address"
            )
        if not sign:
            check_regular(expand_home(value))


def is_local(config: Mapping[str, Any]) -> bool:
    """Return whether the questions of a task are read here, without the Hub."""
    source = str(config.get("dataset_path"))
    return "custom_dataset" in config or source in BUILDERS or Path(source).is_dir()
