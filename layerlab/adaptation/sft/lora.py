"""Adds LoRA adapters to any causal language model, by PEFT."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from layerlab.errors import UserError
from layerlab.validation import short_repr


@dataclass(frozen=True, kw_only=True)
class Lora:
    """W x becomes W x + (alpha / r) B A x, where only A and B learn and B starts at zero.

    Attributes:
        r: rank of B A.
        alpha: scale.
        target: names of linear modules; None takes all of them but the head.
        whole: names of modules that learn without an adapter, such as the embedding of a vocabulary
            that has grown.
        merged: at the end, W + (alpha / r) B A takes the place of W.
    """

    r: int = 16
    alpha: int | float = 32
    dropout: float = 0.0
    target: tuple[str, ...] | None = None
    whole: tuple[str, ...] = ()
    merged: bool = False


def add_adapters(model: Any, lora: Lora) -> Any:
    """Return the model with adapters, its own weights frozen.

    Raises:
        UserError: PEFT is not installed, or a module is not there.
    """
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs PEFT; type: pip install 'layerlab[sft]'") from None
    if lora.r < 1:
        raise UserError(f"r of LoRA is {short_repr(lora.r)}; expected at least 1")
    settings = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a number, whole or not
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.target is None else list(lora.target),
        modules_to_save=list(lora.whole) or None,
        task_type="CAUSAL_LM",
    )
    known = [name for name, _ in model.named_modules()]
    for name in (*(lora.target or ()), *lora.whole):
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
