"""Description of a task: one text, and a hash of each part that could be another."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain
from types import FunctionType
from typing import Any

from layerlab.system.untrusted.python_file import hash_definition

# What the settings of a task decide; all that stand in no row decide the prompt.
DECIDING: Mapping[str, tuple[str, ...]] = {
    "description": ("description",),
    "examples": ("fewshot_config", "fewshot_split", "fewshot_delimiter"),
    "answers": ("generation_kwargs",),
    "marking": ("process_results", "filter_list", "output_type", "repeats"),
}
# What the prompt does not depend on, or questions are known by.
BESIDE = (
    *("task", "task_alias", "tag", "group", "metadata", "num_fewshot", "metric_list"),
    *("custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs", "unsafe_code"),
    *("training_split", "validation_split", "test_split"),
    *("should_decontaminate", "doc_to_decontamination_query"),
)


def describe_task(task: Any, limit: int | None = None) -> str:
    """Describe what a task asks, and how, as one text: equal texts mean equal tasks."""
    config = {**task.dump_config(), "metadata": dict(task.config.metadata or {})}
    for key in ("config_source", "folder"):
        config["metadata"].pop(key, None)
    documents = [dict(doc) for _, doc in task.doc_iterator(limit=limit)]
    content = {"config": config, "documents": documents, "examples": _list_examples(task)}
    written: list[FunctionType | type] = [type(task), *_functions(vars(task.config))]
    if code := [found for one in written if (found := hash_definition(one))]:
        content["code"] = code
    return json.dumps(content, sort_keys=True, ensure_ascii=False, default=_name)


def hash_manner(
    task: Any, *, shots: int, seed: int, template: Any, metric: str | None
) -> dict[str, str]:
    """Return a hash of each part of how a task is asked, so that results can tell it apart.

    Args:
        shots: examples before each question.
        seed: of those that are drawn.
        template: the chat template that prompts are put into; None where they are not.
        metric: by which questions are compared.
    """
    config = _settings(task.config)
    parts: dict[str, Any] = {
        part: {name: config.pop(name, None) for name in names} for part, names in DECIDING.items()
    }
    kept = config.get("metric_list") or ()
    parts["marking"]["metric"] = [one for one in kept if _name_metric(one) == metric]
    parts["version"] = str((task.config.metadata or {}).get("version"))
    parts["template"] = template
    for name in BESIDE:
        config.pop(name, None)
    parts["prompt"] = {**config, "class": type(task)}
    examples = _settings(parts["examples"]["fewshot_config"] or {})
    # What examples take over of the questions is told with those.
    own = {name: one for name, one in examples.items() if one != config.get(name)}
    drawn = seed if examples.get("sampler") != "first_n" else None
    parts["examples"] = (
        [parts["examples"] | {"fewshot_config": own}, _list_examples(task), drawn] if shots else []
    )
    return {part: _hash(one) for part, one in sorted(parts.items())}


def _list_examples(task: Any) -> list[dict[str, Any]]:
    """Return the rows that examples are taken from, which no asking changes."""
    sampler = getattr(task, "sampler", None)
    return [dict(doc) for doc in sampler.fewshot_docs()] if sampler is not None else []


def _name_metric(declared: Mapping[str, Any]) -> str:
    """Return what a metric is called, which may be a function."""
    metric = declared.get("metric")
    return str(getattr(metric, "__name__", metric))


def _settings(config: Any) -> dict[str, Any]:
    if is_dataclass(config):
        return {one.name: getattr(config, one.name) for one in fields(config)}
    return dict(config)


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_describe_value)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _describe_value(value: Any) -> Any:
    """Return a function or class by its name and its file, any other value by its kind."""
    code = hash_definition(value) if isinstance(value, FunctionType | type) else {}
    return [_name(value), code]


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that a task's configuration has, in its order."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(_functions(one) for one in value.values())
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_functions, value))


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__name__)
