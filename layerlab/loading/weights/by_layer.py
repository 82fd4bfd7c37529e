"""Reads one layer's weights at a time from safetensors, for models larger than memory.

The architecture is built without weights (on the meta device); one block gets its tensors from the
files, is cut into heads, and gives them up again. Only checkpoints that store a layer's attention
under the names of the model work: others are renamed while they are loaded, and are refused here.
Pickle files are never opened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    dot_natural_key,
    rename_source_key,
)

from layerlab.errors import NotApplicable, UserError
from layerlab.loading.folder_checks import check_weights
from layerlab.loading.weights.saved import check_plain, configuration, refuse_tied
from layerlab.loading.weights.stored_tensors import list_stored, open_store, read_outlines
from layerlab.loading.weights.weightless import Outline, empty
from layerlab.observe.architecture.head_weights import HeadWeights, project
from layerlab.observe.architecture.norms import front_norm
from layerlab.observe.architecture.structure import (
    AttentionPart,
    ModelStructure,
    anatomy,
    find_rotary,
    text_config,
)
from layerlab.system.untrusted.trust import allows_unused
from layerlab.validation import short_repr


def layer_tensors(folder: str | PathLike[str], prefix: str) -> dict[str, Tensor]:
    """Return stored tensors whose names begin with `prefix.`, without it; nothing else is read.

    Raises:
        UserError: the folder has no safetensors, or they cannot be read.
    """
    found: dict[str, Tensor] = {}
    for file, names in list_stored(Path(folder)).items():
        wanted = [name for name in names if name.startswith(f"{prefix}.")]
        if wanted:
            with open_store(file) as store:
                found |= {
                    name[len(prefix) + 1 :]: _widen(store.get_tensor(name)) for name in wanted
                }
    return found


def read_stored_tensors(folder: Path, key: Callable[[str], Any]) -> Iterator[tuple[str, Tensor]]:
    """Read every tensor of a checkpoint by its stored name, one at a time, sorted by a key.

    Raises:
        UserError: the folder has no safetensors, or they cannot be read.
    """
    read_outlines(folder)  # looks the files through
    places = {name: file for file, names in list_stored(folder).items() for name in names}
    for name in sorted(places, key=key):
        with open_store(places[name]) as store:
            yield name, _widen(store.get_tensor(name))


def _widen(tensor: Tensor) -> Tensor:
    """Return numbers of eight bits as float32, in which torch can compute, and others as they are.

    So does transformers, where no method of quantization is named.
    """
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def read_layers(folder: str | PathLike[str]) -> Iterator[HeadWeights]:
    """Read every attention layer of a checkpoint, cut into heads; only one block is ever in memory.

    The tensors of a layer stay valid for as long as the caller keeps them.

    Raises:
        UserError: the folder has no config.json, or no safetensors.
        NotApplicable: the model has no stack of blocks, or its stored names are not its own.
    """
    inventory = list_stored(Path(folder))
    model = skeleton(Path(folder))
    stack = anatomy(model)
    names = {name for stored in inventory.values() for name in stored}
    for part in stack.attentions:
        block = stack.blocks[part.block]
        tensors = layer_tensors(folder, _stored_path(model, stack, part, names))
        _fill(block, part, tensors)
        yield _project(model, stack, part)
        block.to("meta")


def project_layers(model: Any) -> Iterator[HeadWeights]:
    """Cut every attention layer of a model in memory into heads.

    Raises:
        NotApplicable: the model has no stack of blocks.
    """
    stack = anatomy(model)
    for part in stack.attentions:
        yield _project(model, stack, part)


def _project(model: Any, stack: ModelStructure, part: AttentionPart) -> HeadWeights:
    block = stack.blocks[part.block]
    return project(block, part, config=text_config(model), rotary=find_rotary(model))


def skeleton(folder: Path) -> Any:
    """Return the model without weights, on the meta device.

    Raises:
        UserError: the folder has no config.json, or one that is not that of the weights, or they
            are quantized, or hold one weight twice, or a tied one in two that differ.
    """
    check_weights(folder)
    config = configuration(folder)
    check_plain(config, str(folder))
    outlines = read_outlines(folder)
    bare = empty(config, str(folder), outlines)
    check_stored_once(bare, folder, outlines)
    check_stored_tied(bare, folder, outlines)
    return bare


def check_stored_once(bare: Any, folder: Path, stored: Mapping[str, Outline]) -> None:
    """Refuse two stored tensors that differ and are one weight of the model under two names.

    transformers takes the first of them, and says nothing of the other.

    Args:
        bare: the model without weights, on the meta device.

    Raises:
        UserError: there are some, and nobody has asked for weights to be left out.
    """
    if allows_unused():
        return
    places = {name: file for file, names in list_stored(folder).items() for name in names}
    pairs = [
        pair
        for pair in _find_pairs(bare, stored)
        if stored[pair[0]] != stored[pair[1]] or not _is_same(*pair, places)
    ]
    if pairs:
        first, other = pairs[0]
        raise UserError(
            f"the weights of {str(folder)!r} hold {short_repr(first)} and {short_repr(other)}, "
            f"which differ and are one weight of {type(bare).__name__} ({len(pairs)} such pairs); "
            "only the first would be used: take those out that are not meant, or type "
            "--allow-unused (in Python allow_unused=True)"
        )


def check_stored_tied(bare: Any, folder: Path, stored: Mapping[str, Outline]) -> None:
    """Refuse two stored weights that differ where the configuration says that they are one.

    Args:
        bare: the model without weights, on the meta device.

    Raises:
        UserError: there are some.
    """
    places = {name: file for file, names in list_stored(folder).items() for name in names}
    held = {target: name for name, target, part in find_targets(bare, stored) if part is None}
    for one, other in bare.get_expanded_tied_weights_keys(all_submodels=True).items():
        both = one in held and other in held
        if both and not _is_equal(held[one], held[other], places):
            raise refuse_tied(one, other, str(folder))


def _find_pairs(bare: Any, stored: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names of stored tensors that transformers puts into one place of a model.

    Several of them may be joined to one weight, as those of experts are: each has its place in it.
    """
    undivided: dict[str, str] = {}
    parts: dict[str, str] = {}
    joined: dict[str, str] = {}
    for name, target, part in find_targets(bare, stored):
        taken, key = (undivided, target) if part is None else (parts, part)
        if part is not None:
            joined.setdefault(target, name)
        if key in taken:
            yield taken[key], name
        taken.setdefault(key, name)
    yield from ((joined[target], undivided[target]) for target in joined.keys() & undivided.keys())


def find_targets(bare: Any, stored: Iterable[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield names of stored tensors with those of the weights that transformers makes of them.

    The third is the place in that weight, where it is joined of several; else None.
    """
    changes = get_model_conversion_mapping(bare)
    renamings = [one for one in changes if isinstance(one, WeightRenaming)]
    converters = [one for one in changes if isinstance(one, WeightConverter)]
    own, prefix = bare.state_dict(), bare.base_model_prefix
    for name in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if target not in own and name in own:
            target, pattern = rename_source_key(name, [], [], prefix, own)
        if target not in own:
            continue
        if pattern is None:
            yield name, target, None
            continue
        renamed = apply_renamings(name, renamings)
        while prefix and renamed.startswith(f"{prefix}."):
            renamed = renamed.removeprefix(f"{prefix}.")
        yield name, target, renamed


def _is_equal(one: str, other: str, places: Mapping[str, Path]) -> bool:
    """Return whether two stored tensors hold the same numbers, in the narrower of their precisions.

    transformers brings both to one precision before it compares them.
    """
    found = []
    for name in (one, other):
        with open_store(places[name]) as store:
            found.append(store.get_tensor(name))
    narrow = min((tensor.dtype for tensor in found), key=lambda kind: kind.itemsize)
    return torch.equal(*(tensor.to(narrow) for tensor in found))


def _is_same(one: str, other: str, places: Mapping[str, Path]) -> bool:
    """Return whether two stored tensors of one kind and shape are the same, bit for bit."""
    found = []
    for name in (one, other):
        with open_store(places[name]) as store:
            found.append(store.get_tensor(name).flatten().view(torch.uint8))
    return torch.equal(*found)


def _stored_path(model: Any, stack: ModelStructure, part: AttentionPart, names: set[str]) -> str:
    """Return a block's path in a checkpoint, with or without the base model's prefix."""
    path = stack.path(part.block)
    short = path.removeprefix(f"{getattr(model, 'base_model_prefix', '')}.")
    for candidate in (path, short):
        if any(name.startswith(f"{candidate}.") for name in names):
            return candidate
    raise NotApplicable(
        f"the checkpoint has no tensors named {path}.*: they are renamed while it is loaded"
    )


def _fill(block: nn.Module, part: AttentionPart, tensors: Mapping[str, Tensor]) -> None:
    """Give a block its stored tensors; only attention and the norm in front of it need them all.

    Experts are often stored one by one and stacked while they are loaded.
    """
    front = front_norm(block, part.module)
    modules = (part.module,) if front is None else (part.module, front)
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    shapes = {name: parameter.shape for name, parameter in block.named_parameters()}
    needed = [name for name, parameter in block.named_parameters() if id(parameter) in own]
    for name in needed:
        if name not in tensors:
            raise NotApplicable(
                f"the checkpoint has no {name} in block {part.block}: it is renamed while loaded"
            )
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            raise NotApplicable(
                f"{name} in block {part.block} is stored as {tuple(tensors[name].shape)}, "
                f"the configuration asks for {tuple(shape)}"
            )
    fitting = {name: tensors[name] for name in shapes if name in tensors}
    block.load_state_dict(fitting, strict=False, assign=True)
