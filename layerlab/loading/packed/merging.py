"""Merges an adapter of PEFT into its model, in memory."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Set
from pathlib import Path
from typing import Any

import torch

from layerlab.loading.weights.precision import stored_precision
from layerlab.loading.weights.saved import check_changeable, configuration, load_saved
from layerlab.loading.weights.stored_tensors import open_store, read_outlines
from layerlab.loading.weights.weightless import empty
from layerlab.observe.architecture.structure import text_config
from layerlab.records.checkpoint_names import ADAPTER
from layerlab.records.parse import read_json
from layerlab.system.hardware import free_memory
from layerlab.validation import short_repr

PREFIX = "base_model.model."  # of the names of an adapter's weights
KEPT = ".modules_to_save"  # in a second name of weights that are learned as a whole
BANK = ".vblora_vector_bank."  # in the names of weights that each layer has of the model
# Endings of the names of an embedding's weight.
WHOLE = ("weight", "base_layer.weight", "token_adapter.base_layer.weight")
UNKNOWN = "is unknown to the PEFT that is installed (pip install --upgrade peft)"
DRAWN = "pissa_niter"  # begins with a part of the weights that is drawn anew each time


def merge(learned: Path, base: Path) -> tuple[Any, str]:
    """Return a model with an adapter merged into it, and the precision that it had before.

    Args:
        learned: the adapter's weights, with its configuration beside them.

    Raises:
        UserError: the model cannot be read, or is quantized.
        ValueError: the adapter does not fit it, or has nothing that could be merged.
        MemoryError: it would not fit into memory.
    """
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer

    place = str(learned.parent)
    settings = _read_settings(learned.parent)
    outlines = read_outlines(base)
    config = configuration(base)
    wide = any(one.kind == "F64" for one in outlines.values())
    merged_in = torch.float64 if wide else torch.float32
    _check_size(empty(config, str(base), outlines), learned, merged_in)
    kind = config.dtype or stored_precision(outlines) or torch.float32
    # Before PEFT copies any weight, or begins with a part of one.
    model: Any = load_saved(base, merged_in)
    check_changeable(model)
    names = _fit_rows(model, learned)
    ends = _find_ends(model)
    adapted: Any = peft.get_peft_model(model, settings)
    mapping = getattr(model, "_checkpoint_conversion_mapping", {})
    report = adapted.load_adapter(place, "default", torch_device="cpu", key_mapping=mapping)
    layers = {path: one for path, one in adapted.named_modules() if isinstance(one, BaseTunerLayer)}
    leaders = {path: getattr(one, "tied_adapter", None) for path, one in layers.items()}
    leaders = {path: leader for path, leader in leaders.items() if leader is not None}
    _check_read(report, names, leaders, type(model).__name__)
    apart = [
        one for path, one in layers.items() if path not in leaders and one not in leaders.values()
    ]
    _separate(adapted, apart, ends)
    merged = adapted.merge_and_unload(safe_merge=True)
    _untie(merged)
    _narrow(merged, kind)
    return merged, str(kind).removeprefix("torch.")


def _read_settings(folder: Path) -> Any:
    """Read what kind of adapter it is; refuse one that makes no model, or reads otherwise."""
    import peft

    config = read_json(folder / ADAPTER)
    if (kind := config.get("peft_type")) not in peft.PEFT_TYPE_TO_CONFIG_MAPPING:
        raise ValueError(f"peft_type is {short_repr(kind)}, which {UNKNOWN}")
    settings: Any = peft.PeftConfig.from_pretrained(str(folder))
    if settings.is_prompt_learning or settings.is_adaption_prompt:
        raise ValueError(f"{settings.peft_type.value} changes what is read, and no weight")
    unknown = [name for name in config.keys() - vars(settings).keys() if config[name]]
    if unknown:
        raise ValueError(f"its configuration holds {short_repr(min(unknown))}, which {UNKNOWN}")
    if str(begun := getattr(settings, "init_lora_weights", "")).startswith(DRAWN):
        raise ValueError(
            f"{begun} begins with a part of the weights that is drawn anew each time; save it as "
            "plain LoRA (save_pretrained with path_initial_model_for_weight_conversion)"
        )
    return settings


def _check_size(bare: Any, learned: Path, kind: torch.dtype) -> None:
    """Refuse what memory cannot hold: a model, its adapter, and a weight that is being merged.

    Args:
        bare: the model on the meta device, whose weights may be packed on the disk.
        kind: the precision in which it is merged.
    """
    sizes = [one.numel() for one in bare.parameters()]
    with open_store(learned) as store:
        own = [math.prod(store.get_slice(one).get_shape()) for one in store.keys()]
    need = kind.itemsize * (sum(sizes) + sum(own) + 3 * max(sizes))
    if need > (free := free_memory("cpu")):
        raise MemoryError(f"{need / 2**30:.1f} GiB of weights, and {free / 2**30:.1f} are free")


def _fit_rows(model: Any, learned: Path) -> set[str]:
    """Give embedding and head the rows of an adapter, and return the names of its weights."""
    ends = _find_ends(model)
    paths = [f"{PREFIX}{path}." for path, one in model.named_modules() if one in ends]
    with open_store(learned) as store:
        names = set(store.keys())
        whole = names & {f"{path}{last}" for path in paths for last in WHOLE}
        rows = {store.get_slice(one).get_shape()[0] for one in whole}
    if rows and rows != {ends[0].weight.shape[0]}:
        model.resize_token_embeddings(max(rows), mean_resizing=False)
    return names


def _find_ends(model: Any) -> list[Any]:
    """Return the embedding of a model, and its head where there is one."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return [one for one in ends if one is not None]


def _check_read(report: Any, names: Set[str], led: Iterable[str], kind: str) -> None:
    """Refuse an adapter whose weights are not all those of its configuration.

    Args:
        led: paths of the layers that use the weights of another, and may hold them again.
    """
    missing = [one for one in report.missing_keys if not (BANK in one and one.startswith(PREFIX))]
    if missing:
        raise ValueError(f"it lacks {len(missing)} tensors (first: {missing[0]})")
    again = tuple(f"{path}." for path in led)
    unread = [
        one
        for one in report.unexpected_keys
        if one.replace(KEPT, "") not in names - {one} and not one.startswith(again)
    ]
    if unread:
        raise ValueError(
            f"{kind} has no place for {len(unread)} of its tensors (first: {unread[0]})"
        )


def _separate(adapted: Any, layers: Iterable[Any], ends: Collection[Any]) -> None:
    """Give embedding and head a weight each where an adapter changes them apart.

    Raises:
        ValueError: it changes one of other modules that hold one weight, and all would change.
    """
    held = Counter(id(one) for _, one in adapted.named_parameters(remove_duplicate=False))
    for layer in layers:
        base = layer.get_base_layer()
        for name, one in list(base.named_parameters(recurse=False)):
            if held[id(one)] == 1:
                continue
            if base not in ends:
                path = next(path for path, other in adapted.named_parameters() if other is one)
                path = path.removeprefix(PREFIX).replace(".base_layer", "")
                raise ValueError(f"{path} is the weight of {held[id(one)]} modules")
            setattr(base, name, torch.nn.Parameter(one.detach().clone()))


def _untie(model: Any) -> None:
    """Say in a model's configuration that embedding and head are two, where they are."""
    if len({id(one.weight) for one in _find_ends(model)}) > 1:
        for config in (model.config, text_config(model)):
            config.tie_word_embeddings = False
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def _narrow(model: Any, kind: torch.dtype) -> None:
    """Give weights a model's own precision where it holds them, as those that did not change."""
    for one in model.parameters():
        narrow = one.data.to(kind)
        if torch.equal(narrow.to(one.dtype), one.data):
            one.data = narrow
