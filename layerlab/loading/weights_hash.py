"""Tells by a hash which weights were looked at."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import torch
from torch import nn

from layerlab.loading.layer_weights import list_files
from layerlab.system.files import check_regular

PIECE = 1 << 22


@contextmanager
def hashing(folder: Path | None, model: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Hash the weights in a folder beside what is done until the context ends.

    Those that are in memory alone are hashed when the result is asked for.
    """
    if folder is None:
        yield partial(weights_hash, folder, model)
        return
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(weights_hash, folder, model, stop.is_set).result
        finally:
            stop.set()


def weights_hash(
    folder: Path | None, model: nn.Module, stopped: Callable[[], bool] = lambda: False
) -> str | None:
    """Return sha256 of the weights: of the index and its files, or of the tensors in memory.

    None where one is not in memory.
    """
    if folder is None:
        return hash_tensors(model.state_dict().items())
    digest = hashlib.sha256()
    for path in list_files(folder):
        check_regular(path)
        with path.open("rb") as file:
            while not stopped() and (block := file.read(PIECE)):
                digest.update(block)
    return f"sha256:files:{digest.hexdigest()}"


def hash_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Return sha256 of named tensors; None where one is not in memory."""
    digest, found = hashlib.sha256(), dict(tensors)
    if any(tensor.is_meta for tensor in found.values()):
        return None
    for name, tensor in sorted(found.items()):
        digest.update(name.encode())
        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(content.numpy().data)
    return f"sha256:tensors:{digest.hexdigest()}"
