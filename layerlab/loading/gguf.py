"""Unpacks a GGUF file of llama.cpp into a folder that is read as any other model's."""

import hashlib
import logging
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from layerlab.console.tables import printable
from layerlab.errors import UserError, describe_install
from layerlab.records.parse import one_line
from layerlab.system.files import check_regular, write_folder
from layerlab.system.locks import lock_folder
from layerlab.system.logs import quiet_libraries
from layerlab.system.untrusted.trust import load_pretrained

ENDING = ".gguf"
HOUR = 3600.0  # seconds for another process that unpacks the same file
FREE = "set LAYERLAB_CACHE to a folder with room that can be written"
_LOG = logging.getLogger("layerlab")


def unpack_gguf(file: Path) -> Path:
    """Return the folder of the cache with the model of a GGUF file, unpacked the first time.

    A weight is the number that its block stands for, in float32, so that the folder takes four
    bytes a parameter. llama.cpp also rounds what it multiplies such weights with; that is not in
    the file.

    Raises:
        UserError: it holds no model that transformers reads, the package gguf is not installed, or
            the cache has no room.
    """
    from layerlab.system.hardware import cache_folder  # late: it needs torch

    check_regular(file)
    found = file.stat()
    state = f"{file.resolve()} {found.st_size} {found.st_mtime_ns}"
    key = hashlib.sha256(state.encode()).hexdigest()[:12]
    folder = cache_folder() / "gguf" / f"{file.stem}-{key}"
    if not folder.is_dir():
        with lock_folder(folder, wait=HOUR, way=FREE):
            if not folder.is_dir():
                _LOG.warning("%s is unpacked once, into %s", printable(str(file)), folder)
                write_folder(folder, partial(_unpack, file), "unpacked model")
    return folder


def _unpack(file: Path, into: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Beside nothing else: transformers reads further settings from the folder.
    with TemporaryDirectory() as alone, quiet_libraries():
        name = f"model{ENDING}"
        (Path(alone) / name).symlink_to(file.resolve())
        load = partial(_load, file, alone, gguf_file=name)
        config = load(AutoConfig)
        model = load(
            AutoModelForCausalLM,
            config=config,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = load(AutoTokenizer)
    model.hf_quantizer = None  # it saves nothing, and has done its work
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _load(file: Path, place: str, kind: Any, **options: Any) -> Any:
    try:
        return load_pretrained(kind, place, **options)
    except (UserError, MemoryError):
        raise
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
