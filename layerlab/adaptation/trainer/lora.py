"""Adds LoRA adapters to any causal language model, by PEFT."""

import importlib.util
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from layerlab.adaptation.trainer.arguments import check_entries, check_trained
from layerlab.errors import UserError, describe_install
from layerlab.recipes.adaptation_sections import LoraSection
from layerlab.records.parse import one_line
from layerlab.validation import short_repr


def find_trained_whole(model: Any, lora: LoraSection) -> list[tuple[str, Tensor]]:
    """Return the weights of the modules that are trained whole, with their names.

    Raises:
        UserError: PEFT is not installed, or a module is not there.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"LoRA needs PEFT; {describe_install('sft')}")
    names = [name for name, _ in model.named_modules()]
    for name in (*(lora.target_modules or ()), *lora.modules_to_save):
        if not any(_is_called(one, name) for one in names):
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


def check_mergeable(model: Any, lora: LoraSection) -> None:
    """Refuse adapters whose learning does not go into the weights below them.

    Where several modules hold one weight, each has an adapter of its own, and all of them would be
    added to it. Embeddings that are trained whole are untied from the head by PEFT.

    Raises:
        UserError: names such a weight and the modules.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    holders: defaultdict[int, list[str]] = defaultdict(list)
    for path, module in modules.items():
        for one in module.parameters(recurse=False):
            holders[id(one)].append(path)
    ends = {model.get_input_embeddings(), model.get_output_embeddings()}
    for paths in (paths for paths in holders.values() if len(paths) > 1):
        all_ends = ends >= {modules[path] for path in paths}
        for path in paths:
            if _is_adapted(modules[path], path, lora, model.get_output_embeddings()) or (
                not all_ends and _is_within(path, lora.modules_to_save)
            ):
                other, others = next(one for one in paths if one != path), len(paths) - 2
                raise UserError(
                    f"LoRA cannot be merged into the weight of {path}, which {other} "
                    f"{f'and {others} more hold' if others else 'holds'} too: what is learned for "
                    "one would be added to all; leave lora out, or write under target_modules "
                    "which others are to have adapters (in Python, merge=False keeps them apart)"
                )


def check_learner(
    model: Any, tokenizer: PreTrainedTokenizerFast, lora: LoraSection | None, *, merge: bool
) -> None:
    """Refuse a model that cannot be trained, or whose adapters cannot be merged where they are to.

    Raises:
        UserError: as `check_entries`, `check_trained` and `check_mergeable`; all is frozen.
    """
    check_entries(model, tokenizer)
    if not lora and not any(one.requires_grad for one in model.parameters()):
        raise UserError(
            f"all weights of {type(model).__name__} are frozen, so that nothing would be learned; "
            "call model.requires_grad_(True), or give the section lora"
        )
    check_trained(model, find_trained_whole(model, lora) if lora else None)
    if lora and merge:
        check_mergeable(model, lora)


def add_adapters(model: Any, lora: LoraSection, seed: int) -> Any:
    """Return the model with adapters, which are in float32, its own weights frozen.

    What PEFT draws hangs on the seed alone: it is the same in every process of a run.

    Raises:
        UserError: PEFT has no adapter for a module, or each would be trained whole.
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
        try:
            return peft.get_peft_model(model, settings)
        except ValueError as error:
            raise UserError(
                f"PEFT cannot add these adapters: {one_line(error)}; name other modules under "
                f"target_modules, such as {', '.join(_linear(model))}"
            ) from error


def merge_adapters(model: Any) -> Any:
    """Add what the adapters have learned to the weights, and return the plain model."""
    with _calm():
        return model.merge_and_unload()


def merge_and_measure(
    model: Any,
    apart: Mapping[str, float],
    unit: str,
    measure: Callable[[Any], Mapping[str, float]] | None,
) -> tuple[Any, list[str]]:
    """Merge adapters into the weights, and measure again where those round what is added to them.

    Adapters learn in float32. Added to weights of fewer digits they are rounded once more, so that
    the model that is saved is another than the one whose curve was drawn.

    Args:
        apart: what held-out text cost with the adapters apart, by its kind.
        unit: of that.
        measure: gives the same of the merged model; None where no process can run it.

    Returns:
        The plain model, and a note on what rounding did.
    """
    short = _list_short_dtypes(model)
    merged, dtypes = merge_adapters(model), " and ".join(short)
    if not short or not apart:
        return merged, []
    if measure is None:
        return merged, [
            f"adapters in float32 were merged into weights in {dtypes}, which rounds them: the "
            "curve is of the adapters apart, and the saved model, which no process holds alone "
            "while it learns, was not measured here"
        ]
    found = measure(merged)
    moved = ", ".join(f"{one} {apart[one]:.5g} -> {found[one]:.5g} {unit}" for one in found)
    return merged, [
        f"adapters in float32 were merged into weights in {dtypes}, which rounds them: {moved}; "
        "the last are of the merged model, which is saved"
    ]


def _list_short_dtypes(model: Any) -> list[str]:
    """Return the dtypes of fewer digits than float32 among the weights below adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = (one for one in model.modules() if isinstance(one, BaseTunerLayer))
    below: list[Any] = [one.get_base_layer() for one in layers]
    dtypes = {one.weight.dtype for one in below}
    short = (one for one in dtypes if one.itemsize < torch.float32.itemsize)
    return sorted(str(one).removeprefix("torch.") for one in short)


def _is_called(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _is_within(path: str, names: Iterable[str]) -> bool:
    """Return whether a module is called by one of these names, or lies in one that is."""
    parts = path.split(".")
    inside = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(_is_called(one, name) for one in inside for name in names)


def _is_adapted(module: Any, path: str, lora: LoraSection, head: Any) -> bool:
    """Return whether a module is given an adapter: all matrices but the head, or what is named."""
    if lora.target_modules is None:
        return isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    return any(_is_called(path, name) for name in lora.target_modules)


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
