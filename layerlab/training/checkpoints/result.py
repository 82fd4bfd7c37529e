"""The end of a run: its model as a Hugging Face folder, its result, written last."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import (
    CHECKPOINTS,
    remedy,
    remove_checkpoints,
    remove_partials,
)
from layerlab.records.result import FILE, seal
from layerlab.system.files import (
    OnlyOwn,
    force_folder_to_disk,
    force_to_disk,
    write_file,
    write_folder,
)
from layerlab.system.logs import quiet_libraries
from layerlab.system.write_errors import WriteError

MODEL = "model"


def write_result(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write the result, which marks the run as finished, and remove its checkpoints.

    Returns:
        The result with its digest.

    Raises:
        UserError: it cannot be written; it names what the run then goes on from.
    """
    remove_partials(folder, "*.json")
    sealed = seal(folder, result)
    with _remedy(folder):
        write_file(folder / FILE, _text(sealed))
    force_to_disk(folder / FILE)
    force_to_disk(folder)
    remove_checkpoints(folder / CHECKPOINTS)
    return sealed


def _text(result: Mapping[str, Any]) -> str:
    """Format a result with one line per value; the losses of blocks share a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def keep_model(folder: Path, model: Any, tokenizer: Any, weights: Mapping[str, Tensor]) -> None:
    """Save the trained model with its tokenizer, replacing an earlier attempt.

    Args:
        weights: of the model, of which this process may hold a part alone.

    Raises:
        UserError: it cannot be written; it names what the run then goes on from.
    """

    def fill(empty: Path) -> None:
        model.save_pretrained(empty, state_dict=dict(weights))
        tokenizer.save_pretrained(empty)
        force_folder_to_disk(empty)

    remove_partials(folder, MODEL)
    with _remedy(folder), quiet_libraries():
        write_folder(folder / MODEL, fill, "model", like=OnlyOwn())


@contextmanager
def _remedy(folder: Path) -> Iterator[None]:
    """Say how to make room: in another folder the run would begin anew."""
    try:
        yield
    except WriteError as error:
        raise UserError(f"{error.reason}; {remedy(folder / CHECKPOINTS)}") from error


@torch.no_grad()
def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of all weights: equal only where every bit is."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        digest.update(name.encode())
        flat = weights[name].detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
