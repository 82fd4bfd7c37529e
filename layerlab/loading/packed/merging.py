"""Merges an adapter of PEFT into its model, in memory."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from layerlab.loading.weights.saved import check_changeable, load_saved
from layerlab.loading.weights.stored_tensors import open_store, read_outlines
from layerlab.observe.architecture.structure import text_config
from layerlab.system.hardware import free_memory

PREFIX = "base_model.model."  # of the names of an adapter's weights
# Endings of those of an embedding's that are learned as a whole.
WHOLE = ("weight", "base_layer.weight")


def merge(learned: Path, base: Path) -> tuple[Any, str]:
    """Return a model with an adapter merged into it, and the precision that it had before.

    Args:
        learned: the adapter's weights, with its configuration beside them.

    Raises:
        UserError: the model cannot be read, or is quantised.
        ValueError: the adapter does not fit it, or has nothing that could be merged.
        MemoryError: it would not fit into memory.
    """
    import peft
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    place = str(learned.parent)
    settings = peft.PeftConfig.from_pretrained(place)
    if settings.is_prompt_learning or settings.is_adaption_prompt:
        raise ValueError(f"{settings.peft_type.value} changes what is read, and no weight")
    _check_size(base)
    model: Any = load_saved(base)
    check_changeable(model)
    dtype = str(model.dtype).removeprefix("torch.")
    tied = ("ensure_weight_tying", "trainable_token_indices")
    _fit_ends(model, learned, any(getattr(settings, one, None) for one in tied))
    adapted: Any = peft.get_peft_model(model, settings)
    mapping = getattr(model, "_checkpoint_conversion_mapping", {})
    told = adapted.load_adapter(place, "default", torch_device="cpu", key_mapping=mapping)
    _check_read(told, type(model).__name__)
    layers = [one for one in adapted.modules() if isinstance(one, BaseTunerLayer)]
    # What replaces rows replaces them in all that hold them.
    _check_apart(adapted, [one for one in layers if not isinstance(one, TrainableTokensLayer)])
    for layer in layers:
        layer.get_base_layer().float()
    return adapted.merge_and_unload(safe_merge=True), dtype


def _check_size(base: Path) -> None:
    """Refuse a model that memory cannot hold in float32."""
    need = 4 * sum(math.prod(one.shape) for one in read_outlines(base).values())
    if need > (free := free_memory("cpu")):
        raise MemoryError(f"{need / 2**30:.1f} GiB of weights, and {free / 2**30:.1f} are free")


def _fit_ends(model: Any, learned: Path, tied: bool) -> None:
    """Give embedding and head the rows of an adapter, and a weight each where it changes one.

    Args:
        tied: whether what the adapter changes in one it changes in the other.
    """
    embedding = model.get_input_embeddings()
    head = getattr(model, "get_output_embeddings", lambda: None)()
    ends = [f"{PREFIX}{path}." for path, one in model.named_modules() if one in (embedding, head)]
    with open_store(learned) as store:
        changed = [name for name in store.keys() if name.startswith(tuple(ends))]
        rows = {
            store.get_slice(f"{end}{last}").get_shape()[0]
            for end in ends
            for last in WHOLE
            if f"{end}{last}" in changed
        }
    if rows and rows != {embedding.weight.shape[0]}:
        model.resize_token_embeddings(max(rows), mean_resizing=False)
    if changed and not tied and head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        for config in (model.config, text_config(model)):
            config.tie_word_embeddings = False
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def _check_read(told: Any, kind: str) -> None:
    """Refuse an adapter whose weights are not all those of its configuration."""
    if missing := told.missing_keys:
        raise ValueError(f"it lacks {len(missing)} tensors (first: {missing[0]})")
    if unread := told.unexpected_keys:
        raise ValueError(
            f"{kind} has no place for {len(unread)} of its tensors (first: {unread[0]})"
        )


def _check_apart(adapted: Any, layers: Iterable[Any]) -> None:
    """Refuse an adapter of one of several modules that hold one weight: all would change."""
    held = adapted.named_parameters(remove_duplicate=False)
    modules = Counter(id(one) for _, one in held)
    for layer in layers:
        for one in layer.get_base_layer().parameters(recurse=False):
            if modules[id(one)] > 1:
                path = next(path for path, other in adapted.named_parameters() if other is one)
                path = path.removeprefix(PREFIX).replace(".base_layer", "")
                raise ValueError(f"{path} is the weight of {modules[id(one)]} modules")
