"""Tells by a hash which weights, configuration and tokenizer were looked at."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import nn

from layerlab.loading.weights.stored_tensors import list_files
from layerlab.records.file_digests import hash_file
from layerlab.records.parse import digest_of
from layerlab.system.files import check_regular
from layerlab.system.logs import quiet_libraries
from layerlab.system.offload import list_parts
from layerlab.system.write_errors import temporary_folder

PIECE = 1 << 22
# Entries of a configuration that say where a model came from, or what its tensors say already.
NEUTRAL = ("_name_or_path", "architectures", "dtype", "transformers_version", "torch_dtype")


@contextmanager
def hashing(folder: Path | None, model: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Hash the weights beside what is done until the context ends.

    Those in memory that were written to meanwhile are hashed when the result is asked for.
    """
    stop = Event()
    # Asked for here: a pass may move the weights of a model, but not those that this holds.
    held = None if folder is not None else model.state_dict()
    with ThreadPoolExecutor(1) as pool:
        try:
            if held is None:
                yield pool.submit(weights_hash, folder, model, stop.is_set).result
            else:
                before = _count_writes(held)
                found = pool.submit(hash_tensors, held.items(), stop.is_set)
                yield (
                    lambda: (
                        found.result()
                        if before is not None and _count_writes(held) == before
                        else weights_hash(None, model)
                    )
                )
        finally:
            stop.set()


def _count_writes(tensors: Mapping[str, torch.Tensor]) -> list[int] | None:
    """Return how often each tensor was written to; None where torch does not count it."""
    if any(tensor.is_inference() for tensor in tensors.values()):
        return None
    return [tensor._version for tensor in tensors.values()]


def weights_hash(
    folder: Path | None, model: nn.Module, stopped: Callable[[], bool] = lambda: False
) -> str | None:
    """Return sha256 of the weights: of the index and its files, or of the tensors in memory.

    None where one is not in memory.
    """
    if folder is None:
        return hash_tensors(model.state_dict().items(), stopped)
    digest = hashlib.sha256()
    for path in list_files(folder):
        check_regular(path)
        with path.open("rb") as file:
            while not stopped() and (block := file.read(PIECE)):
                digest.update(block)
    return f"sha256:files:{digest.hexdigest()}"


def hash_tensors(
    tensors: Iterable[tuple[str, torch.Tensor]], stopped: Callable[[], bool] = lambda: False
) -> str | None:
    """Return sha256 of named tensors; None where one is not in memory."""
    digest, found = hashlib.sha256(), dict(tensors)
    if any(tensor.is_meta for tensor in found.values()):
        return None
    for name, tensor in sorted(found.items()):
        digest.update(name.encode())
        for part in list_parts(tensor):
            content = part.detach().cpu().contiguous().view(-1).view(torch.uint8)
            for start in range(0, len(content), PIECE):
                if stopped():
                    return None
                digest.update(content[start : start + PIECE].numpy().data)
    return f"sha256:tensors:{digest.hexdigest()}"


def hash_settings(config: Any) -> str:
    """Return a hash of a configuration, without what its model's tensors say already."""
    found: dict[str, Any] = json.loads(config.to_json_string())
    return digest_of({name: value for name, value in found.items() if name not in NEUTRAL})


def hash_tokenizer(tokenizer: Any) -> str:
    """Return a hash of the rules of a tokenizer, without those that each call sets."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = describe_rules(tokenizer) if backend is None else json.loads(backend.to_str())
    return digest_of(
        {
            **{
                name: value
                for name, value in rules.items()
                if name not in ("padding", "truncation")
            },
            "special": {name: str(value) for name, value in tokenizer.special_tokens_map.items()},
            "template": tokenizer.chat_template,
        }
    )


def describe_rules(tokenizer: Any) -> dict[str, Any]:
    """Return the rules of a tokenizer that is written in Python.

    They are its class, its vocabulary, the hashes of the files that it saves, as of merges or a
    model of SentencePiece, and the options that it was made with.
    """
    kind = type(tokenizer)
    own = {"name_or_path", "tokenizer_file", *getattr(tokenizer, "vocab_files_names", ())}
    given = getattr(tokenizer, "init_kwargs", {})
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "vocabulary": getattr(tokenizer, "get_vocab", dict)(),
        "files": _hash_vocabulary(tokenizer),
        "options": {name: str(given[name]) for name in sorted(given) if name not in own},
    }


def _hash_vocabulary(tokenizer: Any) -> dict[str, str]:
    """Return hashes of the files in which a tokenizer saves its vocabulary, where it saves any."""
    save = getattr(tokenizer, "save_vocabulary", None)  # one of a user's own may have none
    with temporary_folder() as folder, quiet_libraries():
        try:
            saved = () if save is None else save(folder)
        except NotImplementedError:
            return {}
        return {Path(one).name: hash_file(Path(one)) for one in saved}
