"""Adds LoRA adapters to any causal language model, by PEFT."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import LoraSection
from layerlab.validation import short_repr


def add_adapters(model: Any, lora: LoraSection) -> Any:
    """Return the model with adapters, its own weights frozen.

    Raises:
        UserError: PEFT is not installed, or a module is not there.
    """
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs PEFT; type: pip install 'layerlab[sft]'") from None
    settings = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # a number, whole or not
        lora_dropout=lora.lora_dropout,
        target_modules="all-linear" if lora.target_modules is None else list(lora.target_modules),
        modules_to_save=list(lora.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    known = [name for name, _ in model.named_modules()]
    for name in (*(lora.target_modules or ()), *lora.modules_to_save):
        if not any(one == name or one.endswith(f".{name}") for one in known):
            raise UserError(
                f"the model has no module {short_repr(name)} for LoRA; expected names such as "
                f"{', '.join(_linear(model))}"
            )
    with _calm():
        return peft.get_peft_model(model, settings)


def merge_adapters(model: Any) -> Any:
    """Add what the adapters have learned to the weights, and return the plain model."""
    with _calm():
        return model.merge_and_unload()


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
