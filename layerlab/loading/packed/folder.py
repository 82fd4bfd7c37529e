"""Folders of packed models, and the same models with weights that are numbers."""

import json
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.loading.packed.cache import copy_files, unpack_once
from layerlab.loading.packed.packing import ASIDE, CONFIG, Packing, find_packing
from layerlab.records.parse import one_line
from layerlab.system.untrusted.trust import WEIGHTS
from layerlab.system.write_errors import find_os_error

if TYPE_CHECKING:
    from torch import Tensor

ENDING = ".safetensors"
STACK = ".switch_mlp."
# Families whose experts transformers reads by other names than the tools write.
NUMBERED = ("mixtral", "minimax", "minimax_m2", "phimoe")
NUMBERS = {".gate_proj.": ".w1.", ".down_proj.": ".w2.", ".up_proj.": ".w3."}
SHARD = 1 << 30  # bytes, of what is held before it is written


def unpack_folder(folder: Path, list_read: Callable[[Path], list[Path]]) -> Path:
    """Return the folder with a model's weights as numbers: itself, or one of the cache.

    A weight is the number that the tool computes with: rounded to the precision of its scales by
    GPTQ, AWQ and MLX, and in float32 where these are. What is rounded of activations is not.

    Args:
        list_read: lists the files of a folder that a loader may read.

    Raises:
        UserError: the weights cannot be unpacked, or the cache has no room.
    """
    packing = find_packing(folder)
    if packing is None:
        return folder
    files = [one for one in list_read(folder) if one.suffix not in WEIGHTS]
    return unpack_once(
        folder,
        [*sorted(folder.glob(f"*{ENDING}")), *files],
        partial(_fill, folder, packing, files),
    )


def _fill(folder: Path, packing: Packing, files: Iterable[Path], into: Path) -> None:
    packing.check_known(str(folder))
    try:
        kept = [one for one in files if ENDING not in one.name and one.name != ASIDE]
        copy_files(kept, folder, into)
        precision = _write(_read(folder, packing, _find_inputs_first(folder)), into)
        config = {**packing.config, "dtype": precision, "torch_dtype": precision}
        (into / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # of files that may hold anything
        if find_os_error(error):
            raise
        raise UserError(
            f"the weights of {str(folder)!r} are packed by {packing.tool} in a way that is not "
            f"read: {one_line(error)}; expected the model that they were made from"
        ) from error


def _read(folder: Path, packing: Packing, inputs_first: Set[str]) -> Iterator[tuple[str, "Tensor"]]:
    """Yield each weight of a folder by its name, a module at a time.

    Args:
        inputs_first: the modules whose weight has a row for each input.
    """
    from layerlab.loading.packed.layouts import LAYOUTS
    from layerlab.loading.weights.stored_tensors import list_stored, open_store, read_outlines

    read_outlines(folder)  # looks the files through
    layout = LAYOUTS[packing.layout]
    numbered = packing.config.get("model_type") in NUMBERED
    modules: dict[str, dict[str, Any]] = {}
    with ExitStack() as opened:
        for file in list_stored(folder):
            store = opened.enter_context(open_store(file))
            for name in store.keys():
                module, _, last = name.rpartition(".")
                modules.setdefault(module, {})[last] = store
        if not any(layout.mark in held for held in modules.values()):
            raise ValueError(f"none has a {layout.mark} beside it")
        for module, held in modules.items():
            packed = layout.parts if layout.mark in held else frozenset()
            if packed:
                if "weight" in held.keys() - packed:
                    raise ValueError(f"{module} has a weight beside its {layout.mark}")
                parts = {
                    one: held[one].get_tensor(f"{module}.{one}") for one in packed & held.keys()
                }
                weight = layout.unpack(parts, packing.of(module))
                if not weight.is_floating_point():
                    raise ValueError(f"the scales of {module} are whole numbers")
                weight = weight.T if module in inputs_first else weight
                yield from _split_experts(f"{module}.weight", weight, numbered)
            for one in held.keys() - packed - layout.ranges:
                name = f"{module}.{one}".removeprefix(".")
                yield from _split_experts(name, held[one].get_tensor(name), numbered)


def _split_experts(name: str, weight: "Tensor", numbered: bool) -> Iterator[tuple[str, "Tensor"]]:
    """Yield a weight, or those of the experts that MLX has stacked in it.

    Args:
        numbered: experts have w1, w2 and w3.
    """
    if STACK in name:
        for number, one in enumerate(weight):
            yield from _split_experts(name.replace(STACK, f".experts.{number}."), one, numbered)
        return
    if numbered and ".experts." in name:
        for theirs, own in NUMBERS.items():
            name = name.replace(theirs, own)
    yield name, weight


def _find_inputs_first(folder: Path) -> set[str]:
    """Return the modules whose weight has a row for each input, as GPT-2's have."""
    from transformers import AutoConfig
    from transformers.pytorch_utils import Conv1D

    from layerlab.loading.weights.weightless import check_causal, empty
    from layerlab.system.untrusted.trust import load_pretrained

    config = load_pretrained(AutoConfig, str(folder), local_files_only=True)
    check_causal(config, str(folder))
    bare = empty(config, str(folder))
    return {path for path, module in bare.named_modules() if isinstance(module, Conv1D)}


def _write(weights: Iterable[tuple[str, "Tensor"]], into: Path) -> str:
    """Write weights and their index, and return the precision that holds all of them."""
    import torch
    from safetensors.torch import save_file

    from layerlab.loading.weights.stored_tensors import INDEX

    places: dict[str, str] = {}
    precision: torch.dtype | None = None
    for number, group in enumerate(_group(weights), 1):
        file = f"model-{number:05d}{ENDING}"
        save_file(group, into / file, metadata={"format": "pt"})
        places |= dict.fromkeys(group, file)
        for one in group.values():
            if one.is_floating_point() and one.itemsize > 1:
                precision = torch.promote_types(precision or one.dtype, one.dtype)
    (into / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return str(precision).removeprefix("torch.")


def _group(weights: Iterable[tuple[str, "Tensor"]]) -> Iterator[dict[str, "Tensor"]]:
    """Yield as many weights at once as one file holds."""
    group: dict[str, Tensor] = {}
    for name, weight in weights:
        group[name] = weight.contiguous()
        if sum(one.nbytes for one in group.values()) > SHARD:
            yield group
            group = {}
    yield group
