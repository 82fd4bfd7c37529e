"""Translates settings of older versions to today's names, and back.

Recipes of 0.1 named them otherwise. They are read under either name; what is hashed has the old
ones, so that a run of 0.1 keeps its folder.
"""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError

_TRAINER = {
    "batch": "batch_size",
    "micro_batch": "micro_batch_size",
    "rate": "learning_rate",
    "schedule": "lr_scheduler_type",
    "decay": "weight_decay",
    "beta2": "adam_beta2",
    "precision": "mixed_precision",
}
_STAGE = _TRAINER | {
    "block": "block_size",
    "warmup": "warmup_ratio",
    "recompute": "gradient_checkpointing",
    "every": "eval_steps",
    "checkpoint": "save_steps",
    "held": "max_eval_blocks",
    "resample": "resample_fraction",
}
# By the table that they stand in; the first name is that of 0.1.
NAMES: Mapping[str, Mapping[str, str]] = {
    "": {"tune": "sft"},
    "data": {
        "block": "block_size",
        "documents": "document_masking",
        "held": "eval_sources",
        "validation": "validation_fraction",
        "vocab": "vocab_size",
    },
    "train": _TRAINER
    | {
        "updates": "max_steps",
        "epochs": "num_train_epochs",
        "warmup": "warmup_steps",
        "final": "min_lr_ratio",
        "cooldown": "decay_ratio",
        "beta1": "adam_beta1",
        "epsilon": "adam_epsilon",
        "clip": "max_grad_norm",
        "compile": "torch_compile",
        "attention": "attn_implementation",
    },
    "evaluate": {
        "every": "eval_steps",
        "blocks": "max_eval_blocks",
        "batch": "batch_size",
        "length": "max_new_tokens",
        "shots": "num_fewshot",
        "text": "text_bytes",
    },
    "monitor": {"every": "interval"},
    "control": {
        "spectral": "spectral_penalty",
        "condition": "condition_penalty",
        "clip": "qk_clip",
        "reparametrise": "sigma_reparam",
    },
    "compare": {"rates": "learning_rates", "differ": "allowed_differences", "by": "match_by"},
    "compare.claims": {"says": "statement"},
    "run": {
        "slots": "max_parallel",
        "runner": "executor",
        "processes": "num_processes",
        "keep": "save_total_limit",
        "points": "log_points",
        "track": "report_to",
        "attempts": "max_attempts",
        "timeout": "timeout_minutes",
        "model": "save_model",
        "checkpoint": "save_steps",
    },
    "clean": {
        "form": "unicode_form",
        "shortest": "min_chars",
        "longest": "max_chars",
        "broken": "max_broken_ratio",
        "symbols": "max_symbol_ratio",
        "words": "min_word_ratio",
        "bullets": "max_bullet_ratio",
        "ellipses": "max_ellipsis_ratio",
        "characters": "max_repeated_ratio",
        "exact": "exact_dedup",
        "near": "near_duplicate_threshold",
    },
    "pretrain": _STAGE,
    "sft": _STAGE
    | {"epochs": "num_train_epochs", "held": "validation_fraction", "pack": "packing"},
    "sft.sources": {"rows": "path"},
    "sft.lora": {"alpha": "lora_alpha", "dropout": "lora_dropout", "whole": "modules_to_save"},
}
# Settings that came after 0.1, with what runs did before there was a choice.
ADDED: Mapping[str, Mapping[str, Any]] = {
    "train": {"optimizer": "adamw", "parametrization": "standard"}
}
_OLD = {table: {new: old for old, new in names.items()} for table, names in NAMES.items()}
# Settings that name others by their paths, and a table that is a recipe of its own.
_PATHS = frozenset({"compare.allowed_differences"})
_SET = frozenset({"compare.arms.set", "base.set", "arm.set"})
_RECIPE = "base.recipe"


def current_settings(recipe: Mapping[str, Any], renamed: list[str] | None = None) -> dict[str, Any]:
    """Return a recipe's settings under the names of today.

    Args:
        renamed: takes what was found under an older name, as `train.rate = train.learning_rate`.

    Raises:
        UserError: a setting stands there under both of its names.

    Example:
        >>> current_settings({"train": {"rate": 0.1}, "compare": {"differ": ["train.*"]}})
        {'train': {'learning_rate': 0.1}, 'compare': {'allowed_differences': ['train.*']}}
    """
    return _Renaming(NAMES, renamed if renamed is not None else []).table(recipe)


def current_changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of settings with paths and values under today's names.

    Example:
        >>> current_changes({"tune": {"pack": True}, "train.rate": 0.1})
        {'sft': {'packing': True}, 'train.learning_rate': 0.1}
    """
    names = _Renaming(NAMES, [])
    return {path: names.value(one, path) for path, one in names.paths(settings).items()}


def current_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run, its recipe under the names and with the settings of today."""
    recipe = manifest.get("recipe")
    if not isinstance(recipe, Mapping):
        return dict(manifest)
    found = current_settings(recipe)
    for table, settings in ADDED.items():
        if isinstance(found.get(table), Mapping):
            found[table] = {**settings, **found[table]}
    return {**manifest, "recipe": found}


def settings_of_0_1(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings under the names of layerlab 0.1, which the hashes use.

    Args:
        prefix: the table that they are, by its name of today; a whole recipe where it is left out.

    Example:
        >>> settings_of_0_1({"max_steps": 3}, "train")
        {'updates': 3}
    """
    return _Renaming(_OLD, []).table(recipe, prefix)


class _Renaming:
    """Renames the keys of nested tables; paths are given by today's names."""

    def __init__(self, names: Mapping[str, Mapping[str, str]], renamed: list[str]) -> None:
        self.names, self.renamed = names, renamed

    def table(self, table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return a table with its keys renamed, and those of all tables inside."""
        found: dict[str, Any] = {}
        for name, value in table.items():
            new = self.names.get(prefix, {}).get(name, name)
            if new in found or (new != name and new in table):
                raise _refuse_both(_join(prefix, new), name)
            if new != name:
                self.renamed.append(f"{_join(prefix, name)} = {_join(prefix, new)}")
            where = _join(prefix, new if self.names is NAMES else name)
            found[new] = self.value(value, where)
        return found

    def paths(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings that are given by their paths, with these renamed."""
        found: dict[str, Any] = {}
        for path, value in settings.items():
            new = self.path(path)
            if new in found or (new != path and new in settings):
                raise _refuse_both(new, path)
            found[new] = value
        return found

    def path(self, path: str) -> str:
        """Return a path with each of its names renamed."""
        prefix, found = "", []
        for name in path.split("."):
            new = self.names.get(prefix, {}).get(name, name)
            found.append(new)
            prefix = _join(prefix, new if self.names is NAMES else name)
        return ".".join(found)

    def value(self, value: Any, where: str) -> Any:
        """Return a setting's value with the names in it renamed."""
        if where in _PATHS and isinstance(value, list | tuple):
            return [self.path(one) if isinstance(one, str) else one for one in value]
        if where in _SET and isinstance(value, Mapping):
            return self.paths(value)
        if isinstance(value, Mapping):
            return self.table(value, "" if where == _RECIPE else where)
        if isinstance(value, list):
            return [self.table(one, where) if isinstance(one, Mapping) else one for one in value]
        return value


def _refuse_both(path: str, older: str) -> UserError:
    return UserError(f"{path} is given under its older name {older!r} too; leave one out")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
