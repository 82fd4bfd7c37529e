"""Parts of a sharded run's checkpoint: every process writes its own, and reads what it needs.

torch.distributed.checkpoint writes and reads them, as safetensors. No process holds more than its
share, and another number of processes can read what was written, one alone too. Elsewhere in the
state a tensor without memory, on the device `meta`, stands for each that lies in parts.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from layerlab.records.checkpoint_names import list_parts
from layerlab.records.file_digests import hash_file, hash_if_there

PART_BYTES = 2**30  # of one file, which is put together in memory before it is written

Digests = Mapping[str, str | None]


class PartsWriter:
    """Writes the parts of a checkpoint: the first process says where, and all write theirs.

    Args:
        tensors: by name, each of which this process has a part of.
        rank: the number of this process.
        processes: so many write.
    """

    def __init__(self, tensors: Mapping[str, DTensor], rank: int, processes: int) -> None:
        self._tensors = {name: one.detach() for name, one in tensors.items()}
        self._rank = rank
        self._files = _assign_files(tensors, PART_BYTES * processes)
        self._asked = False

    def write(self, folder: Path) -> Digests:
        """Write all parts into a folder that the first process has made; return their hashes.

        Raises:
            OSError: one of the processes cannot write.
        """
        self._asked = True
        broadcast_object_list([folder])
        return self._write(folder)

    def follow(self) -> None:
        """Write this process's parts to where the first says, if it says so."""
        folders: list[Path | None] = [None]
        broadcast_object_list(folders)
        if folders[0] is None:
            return
        try:
            self._write(folders[0])
        except OSError:  # the first process tells of it
            return

    def release(self) -> None:
        """Let the other processes go on where nothing was to be written."""
        if not self._asked:
            broadcast_object_list([None])

    def _write(self, folder: Path) -> Digests:
        writer = HuggingFaceStorageWriter(
            str(folder), fqn_to_index_mapping=self._files, save_distributed=True
        )
        _explain(lambda: dcp.save(self._tensors, storage_writer=writer))
        own = list_parts(folder, self._rank)
        return dict(gather_object([(path.name, hash_file(path)) for path in own]))


def split_parts(content: Any) -> tuple[Any, dict[str, DTensor]]:
    """Return a state with a tensor without memory for each that is sharded, and those by name.

    Args:
        content: a tensor, or dicts and lists of them, as a state_dict. Of weights that are tied one
            with `keep_vars=True`, which alone shows it: they are one part.
    """
    outlines: dict[int, Tensor] = {}
    parts: dict[str, DTensor] = {}

    def outline(name: str, one: Tensor) -> Tensor:
        if not isinstance(one, DTensor):
            return one.detach()
        if id(one) not in outlines:
            outlines[id(one)] = torch.empty(one.shape, dtype=one.dtype, device="meta")
            parts[name] = one
        return outlines[id(one)]

    return _each(content, outline), parts


def read_parts(folder: Path, content: Any, own: Any, processes: int) -> Any:
    """Read what lies in parts into tensors of one's own, and put them in the place of outlines.

    Args:
        content: a state as `split_parts` made it.
        own: the same with tensors that are written over, of each of which this process may have a
            part alone.
        processes: so many read at once.

    Raises:
        ValueError: a tensor is not in the folder, or has another size there.
    """
    targets: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    mine: dict[str, Tensor] = {}
    _each(own, mine.setdefault)

    def take(name: str, one: Tensor) -> Tensor:
        if not one.is_meta:
            return one
        # Of weights that are tied there is one part, by the name of the first.
        name = names.setdefault(id(one), name)
        targets[name] = mine[name].detach()
        return targets[name]

    joined = _each(content, take)
    reader = HuggingFaceStorageReader(str(folder))
    with warnings.catch_warnings():
        # That there is but one process, which is as it should be.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        _explain(lambda: dcp.load(targets, storage_reader=reader, no_dist=processes == 1))
    return joined


def hash_together(rank: int, processes: int, folder: Path, names: Iterable[str]) -> Digests:
    """Return the SHA-256 of files, None of missing ones; each process reads its share of them."""
    own = sorted(names)[rank::processes]
    return dict(gather_object([(name, hash_if_there(folder / name)) for name in own]))


def _assign_files(tensors: Mapping[str, Tensor], limit: int) -> dict[str, int]:
    """Return the number of the file that each tensor goes to, none above a limit but alone."""
    files, held, number = dict[str, int](), 0, 1
    for name, one in tensors.items():
        if held and held + one.nbytes > limit:
            held, number = 0, number + 1
        files[name], held = number, held + one.nbytes
    return files


def _explain(work: Callable[[], object]) -> None:
    """Raise what went wrong in the first process where something did.

    Raises:
        OSError: a file cannot be written or read.
        ValueError: anything else.
    """
    try:
        work()
    except CheckpointException as error:
        failure: BaseException = error.failures[min(error.failures)][0]
        raise failure if isinstance(failure, OSError) else ValueError(str(failure)) from error


def _each(content: Any, change: Callable[[str, Tensor], Any], name: str = "") -> Any:
    """Return dicts and lists of tensors with each changed, which is told its path."""
    if isinstance(content, Tensor):
        return change(name, content)
    if isinstance(content, Mapping):
        names = {key: f"{name}.{key}" if name else str(key) for key in content}
        return {key: _each(one, change, names[key]) for key, one in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_each(one, change, name) for one in content)
    return content
