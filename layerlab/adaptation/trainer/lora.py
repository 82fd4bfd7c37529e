"""Adds LoRA adapters to any causal language model, by PEFT."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import LoraSection
from layerlab.validation import short_repr


def find_trained_whole(model: Any, lora: LoraSection) -> list[tuple[str, Tensor]]:
    """Return the weights of the modules that are trained whole, with their names.

    Raises:
        UserError: PEFT is not installed, or a module is not there.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError("LoRA needs PEFT; type: pip install 'layerlab[sft]'")
    known = [name for name, _ in model.named_modules()]
    for name in (*(lora.target_modules or ()), *lora.modules_to_save):
        if not any(_is_called(one, name) for one in known):
            raise UserError(
                f"the model has no module {short_repr(name)} for LoRA; expected names such as "
                f"{', '.join(_linear(model))}"
            )
    return [
        (f"{path}.{name}", weight)
        for path, module in model.named_modules()
        if any(_is_called(path, one) for one in lora.modules_to_save)
        for name, weight in module.named_parameters()
    ]


def add_adapters(model: Any, lora: LoraSection, seed: int) -> Any:
    """Return the model with adapters, which are in float32, its own weights frozen.

    What PEFT draws hangs on the seed alone: it is the same in every process of a run.
    """
    import peft

    settings = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # a number, whole or not
        lora_dropout=lora.lora_dropout,
        target_modules="all-linear" if lora.target_modules is None else list(lora.target_modules),
        modules_to_save=list(lora.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    with _calm(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings)


def merge_adapters(model: Any) -> Any:
    """Add what the adapters have learned to the weights, and return the plain model."""
    with _calm():
        return model.merge_and_unload()


def _is_called(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _linear(model: Any) -> list[str]:
    """Return the last part of the names of the matrices in the blocks."""
    names = {
        name.rpartition(".")[2]
        for name, one in model.named_modules()
        if getattr(getattr(one, "weight", None), "ndim", 0) == 2 and "." in name
    }
    return sorted(names)[:8]


@contextmanager
def _calm() -> Iterator[None]:
    """Silence the warnings of PEFT.

    It asks for gradient checkpointing by its old name, and tells of every Conv1D.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
