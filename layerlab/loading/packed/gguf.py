"""Unpacks a GGUF file of llama.cpp into a folder that is read as any other model's."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError, describe_install
from layerlab.loading.packed.cache import unpack_once
from layerlab.records.parse import one_line
from layerlab.system.files import check_regular
from layerlab.system.logs import quiet_libraries
from layerlab.system.untrusted.trust import load_pretrained
from layerlab.system.write_errors import temporary_folder

if TYPE_CHECKING:
    from layerlab.loading.packed.gguf_header import GgufHeader

ENDING = ".gguf"
NAME = f"model{ENDING}"  # for transformers
_CONFIG = re.compile(r"(the model of )?config\.json in ''")  # which a file of this kind has not


def unpack_gguf(file: Path) -> Path:
    """Return the folder of the cache with the model of a GGUF file, unpacked the first time.

    A weight is the number that its block stands for, in float32, so that the folder takes four
    bytes a parameter. llama.cpp also rounds what it multiplies such weights with; that is not in
    the file.

    Raises:
        UserError: it holds no model that transformers reads, the package gguf is not installed, or
            the cache has no room.
    """
    check_regular(file)
    return unpack_once(file, [file], partial(_unpack, file))


def _unpack(file: Path, into: Path) -> None:
    # transformers' bars are no part of its logs.
    with quiet_libraries(), redirect_stderr(io.StringIO()):
        # Beside nothing else: transformers reads further settings from the folder.
        with temporary_folder() as alone, _explain(file, alone):
            (Path(alone) / NAME).symlink_to(file.resolve())
            read = _read(file, alone)
        for one in read:
            one.save_pretrained(into)


def _read(file: Path, alone: str) -> list[Any]:
    """Return the model of a file, and its tokenizer where transformers reads that.

    Args:
        alone: the folder of a link to it, by `NAME`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from layerlab.loading.packed.gguf_header import GgufHeader

    header = GgufHeader(file)
    load = partial(load_pretrained, source=alone, gguf_file=NAME)
    config = load(AutoConfig)
    header.complete(config)
    _check_size(config, header)
    model, report = load(
        AutoModelForCausalLM,
        config=config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    _check_read(model, report, header)
    model.hf_quantizer = None  # it saves nothing, and has done its work
    vars(model.config).pop("quantization_config", None)
    return [model, *([load(AutoTokenizer)] if header.has_tokenizer() else [])]


def _check_size(config: Any, header: "GgufHeader") -> None:
    """Refuse what the weights in the file cannot be those of, or what memory cannot hold.

    It holds all weights and, of the one that is read, its numbers in blocks and in rows.
    """
    from layerlab.loading.weights.weightless import empty
    from layerlab.system.hardware import free_memory

    try:
        bare = empty(config, "", header.list_outlines())
    except UserError as error:
        raise ValueError(_CONFIG.sub("it", str(error).partition(";")[0])) from error
    sizes, free = [one.numel() for one in bare.parameters()], free_memory("cpu")
    need = 4 * (sum(sizes) + 2 * max(sizes))
    if need > free:
        raise MemoryError(f"{need / 2**30:.1f} GiB of weights, and {free / 2**30:.1f} are free")


def _check_read(model: Any, report: Mapping[str, Any], header: "GgufHeader") -> None:
    """Refuse a model whose weights are not all those of the file."""
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"{len(missing)} tensors of {type(model).__name__} are not in it (first: {missing[0]})"
        )
    if differ := sorted(report["mismatched_keys"]):
        name, stored, asked = differ[0]
        raise ValueError(f"{name} is stored as {tuple(stored)}, and {tuple(asked)} is asked for")
    if unread := header.list_unread(model):
        raise ValueError(
            f"{type(model).__name__} has no place for {len(unread)} of its tensors (first: "
            f"{unread[0]})"
        )


@contextmanager
def _explain(file: Path, place: str) -> Iterator[None]:
    """Say in one line why a file cannot be read."""
    try:
        yield
    except (UserError, OSError):
        raise
    except MemoryError as error:
        raise UserError(
            f"{file} does not fit into memory: {error or 'there is too little'}; take a machine "
            "with more"
        ) from error
    except ImportError as error:
        raise UserError(
            f"{file} is read with the package gguf, which is not installed; "
            f"{describe_install('gguf')}, or pip install gguf"
        ) from error
    except Exception as error:  # of a file that may hold anything
        reason = one_line(error).replace(f"{place}/", "").rstrip(".")
        raise UserError(
            f"{file} is no GGUF model that transformers reads: {reason}; expected one whole file "
            "of a language model, or the folder that it was made from"
        ) from error
