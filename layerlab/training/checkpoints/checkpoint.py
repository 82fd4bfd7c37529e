"""Checkpoints: all a run needs to go on bit for bit, written whole and checked when read.

A checkpoint is a folder `step-00000100` with `model.safetensors`, `optimizer.pt` (tensors and plain
values, read with `weights_only=True` alone) and `state.json`, which holds the hashes of the
others and of itself. Of a sharded run it holds the parts of every process, in files of their own.
It is written beside its place, forced onto the disk, and renamed.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    is_checkpoint,
    latest,
    list_checkpoints,
    remedy,
    remove_own,
    remove_partials,
    say_update,
)
from layerlab.records.file_digests import hash_file, hash_if_there
from layerlab.records.parse import json_of, one_line
from layerlab.system.files import (
    check_regular,
    force_folder_to_disk,
    force_to_disk,
    write_folder,
)
from layerlab.system.hardware import is_process_lost
from layerlab.system.write_errors import WriteError
from layerlab.training.checkpoints.parts import Digests, PartsWriter, split_parts

SCHEMA = 1
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class CheckpointState:
    """The whole state of a run between two updates.

    Attributes:
        weights: parameters and buffers by name; names that share one tensor are tied.
        optimizer: its state_dict.
        counters: whatever JSON holds; `update` is how many are finished.
        random: every random state, as `layerlab.system.rng` takes it.
        extra: further tensors and plain values, as those of a gradient scaler.
        folder: where the parts lie of those tensors that have no memory here, if there are any.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    counters: dict[str, Any]
    random: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


class _DamagedError(Exception):
    """A checkpoint that is not what was written."""


class MisfitError(Exception):
    """A whole checkpoint that the files beside it do not fit."""


# Returns notes on a checkpoint, which it is handed with its counters.
FolderCheck = Callable[[Path, Mapping[str, Any]], list[str]]
Hasher = Callable[[Path, Iterable[str]], Digests]


def hash_each(folder: Path, names: Iterable[str]) -> Digests:
    """Return the SHA-256 of files of a checkpoint, None of those that are missing."""
    return {name: hash_if_there(folder / name) for name in names}


def save(folder: Path, state: CheckpointState, keep: int, parts: PartsWriter | None = None) -> Path:
    """Write a checkpoint, and remove all but the `keep` newest.

    Args:
        folder: of all checkpoints of the run.
        parts: writes what the processes have a part of each.

    Raises:
        UserError: it cannot be written; what was there before stays.
    """
    target = folder / f"step-{state.counters['update']:08d}"
    # Where the run was stopped right after this very checkpoint, it is never out of its place.
    if not _same(target, state):

        def fill(partial: Path) -> None:
            _fill(partial, state, {} if parts is None else parts.write(partial))

        write_folder(target, fill, "checkpoint", is_checkpoint)
        force_to_disk(folder)
    _prune(folder, state.counters["update"], keep)
    return target


def load(
    folder: Path, check: FolderCheck = lambda path, counters: [], hasher: Hasher = hash_each
) -> tuple[CheckpointState | None, list[str]]:
    """Load the newest whole checkpoint, with a note on each that was skipped.

    Args:
        check: raises MisfitError where the files beside a checkpoint do not fit it.
        hasher: of files of a checkpoint; several processes may share the work.

    Returns:
        No state where there is none, or none that is whole; the notes say which.

    Raises:
        UserError: one is whole and does not fit, and none is left that does.
    """
    found = sorted(list_checkpoints(folder), reverse=True)
    notes: list[str] = []
    misfit = ""
    for index, (_, path) in enumerate(found):
        try:
            state = _read(path, hasher)
            return state, [*notes, *check(path, state.counters)]
        except _DamagedError as error:
            message = f"checkpoint {path.name} is damaged ({error})"
        except MisfitError as error:
            message = f"checkpoint {path.name} cannot be used: {error}"
            misfit = f"{path.name}: {error}"
        last = index == len(found) - 1
        then = "no other is left: training starts anew" if last else "the one before it is used"
        notes.append(f"{message}; {then}")
    if misfit:  # what was trained is lost only if the user wants that
        raise UserError(
            f"no checkpoint in {folder} can be used ({misfit}); put the file back, or delete "
            "that folder to train anew"
        )
    return None, notes


def check_weights(own: Mapping[str, Tensor], state: CheckpointState) -> None:
    """Raise where a checkpoint does not belong to a model.

    Args:
        own: the model's parameters and buffers by name.

    Raises:
        UserError: names the first difference.
    """
    for name in [*own, *state.weights]:
        ours, theirs = own.get(name), state.weights.get(name)
        if ours is None or theirs is None or _kind(ours) != _kind(theirs):
            raise UserError(
                f"the checkpoint of update {state.counters['update']} is of another model: "
                f"{name} is {_kind(theirs)} there and {_kind(ours)} here; "
                "type another --out, or the recipe that it was made with"
            )


@contextmanager
def restoring(own: Mapping[str, Tensor], state: CheckpointState, folder: Path) -> Iterator[None]:
    """Say what is wrong with a checkpoint that a run cannot take its state from.

    Args:
        own: the model's parameters and buffers by name.
        folder: of all checkpoints of the run.

    Raises:
        UserError: it is of another model, or something in it is missing or of another kind.
    """
    check_weights(own, state)
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if is_process_lost(error):  # of which the checkpoint knows nothing
            raise
        raise UserError(
            f"the checkpoint of update {state.counters['update']} is not that of this run "
            f"({one_line(error)}); delete {folder} and train again"
        ) from error


class CheckpointManager:
    """Writes a run's checkpoints; one that finds no room on the disk does not end the run.

    Args:
        folder: of all checkpoints of the run.
        keep: so many of them.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self._failed = 0

    def save(self, state: CheckpointState, rank: int = 0, processes: int = 1) -> str | None:
        """Write a checkpoint; return a note for the user where it failed, or works again.

        Every process of a run calls it. The first writes; of tensors that are sharded each its own
        part.

        Args:
            rank: the number of this process.
            processes: of the run.

        Raises:
            UserError: two in a row could not be written.
        """
        content = {"weights": state.weights, "optimizer": state.optimizer}
        outlined, parts = split_parts(content)
        writer = PartsWriter(parts, rank, processes) if parts else None
        if rank == 0:
            return self._save(replace(state, **outlined), writer)
        if writer is not None:
            writer.follow()
        return None

    def _save(self, state: CheckpointState, parts: PartsWriter | None) -> str | None:
        try:
            save(self.folder, state, self.keep, parts)
        except WriteError as error:
            self._failed += 1
            return self._describe_failure(state, error)
        finally:
            if parts is not None:
                parts.release()
        again, self._failed = self._failed > 0, 0
        return "checkpoints can be written again" if again else None

    def _describe_failure(self, state: CheckpointState, error: WriteError) -> str:
        if self._failed > 1:
            raise UserError(
                f"two checkpoints in a row could not be written ({error.reason}); "
                f"{remedy(self.folder)}"
            ) from error
        newest = latest(self.folder)
        held = say_update(newest) if newest else "the start"
        return (
            f"no checkpoint of update {state.counters['update']} ({error.reason}); "
            f"training goes on, the newest is of {held}; make room before the next one"
        )


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "absent"
    size = " x ".join(map(str, tensor.shape)) or "one number"
    return f"{size} ({str(tensor.dtype).removeprefix('torch.')})"


def _fill(folder: Path, state: CheckpointState, parts: Digests) -> None:
    kept, tied = _untie(state.weights)
    outlines = {name: one for name, one in kept.items() if one.is_meta}
    present = {name: one for name, one in kept.items() if not one.is_meta}
    rest = {"optimizer": state.optimizer, "random": state.random, "extra": state.extra}
    rest |= {"outlines": outlines} if outlines else {}
    save_file(present, folder / WEIGHTS, metadata={"format": "pt"})
    with (folder / OPTIMIZER).open("wb") as file:
        torch.save(_plain(rest), file)
    body = {
        "schema": SCHEMA,
        "counters": state.counters,
        "tied": tied,
        "sha256": {**{name: hash_file(folder / name) for name in (WEIGHTS, OPTIMIZER)}, **parts},
    }
    text = json.dumps({**body, "self": _seal(body)}, indent=1)
    (folder / STATE).write_text(text, encoding="utf-8")
    force_folder_to_disk(folder)


def _untie(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, on the CPU, with all names that share it.

    One without memory, whose parts the processes have, stays without.
    """
    first: dict[tuple[Any, ...], str] = {}
    kept, tied = {}, {}
    for name, tensor in weights.items():
        memory = id(tensor) if tensor.is_meta else tensor.untyped_storage().data_ptr()
        key = (memory or name, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            if tensor.is_meta:
                kept[name] = tensor
                continue
            copy = tensor.detach().cpu().contiguous()
            # Two views of one memory, of which neither is the other, are kept as two tensors.
            own_storage = copy.untyped_storage().nbytes() == copy.numel() * copy.element_size()
            kept[name] = copy if own_storage else copy.clone()
    return kept, tied


def _plain(value: Any) -> Any:
    """Convert a state to types that `weights_only=True` reads back.

    Raises:
        TypeError: something else is in it; better now than when the run is to resume.
    """
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, float):  # numpy's, too
        return float(value)
    if type(value) in _PLAIN:
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _read(path: Path, hasher: Hasher = hash_each) -> CheckpointState:
    body = _body(path)
    files = body.get("sha256")
    if not isinstance(files, dict) or not {WEIGHTS, OPTIMIZER} <= files.keys():
        raise _DamagedError(f"{STATE} does not name its files")
    counters = body.get("counters")
    if not isinstance(counters, dict) or not isinstance(counters.get("update"), int):
        raise _DamagedError(f"{STATE} counts no updates")
    for name, found in hasher(path, files).items():
        if found is None:
            raise _DamagedError(f"{name} is missing")
        if found != files[name]:
            raise _DamagedError(f"{name} is not what was written")
    try:
        weights = load_file(path / WEIGHTS)
        rest = torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, SafetensorError, pickle.UnpicklingError, EOFError) as error:
        raise _DamagedError(str(error).partition("\n")[0]) from error
    try:
        outlines = rest.pop("outlines", {})
        weights |= outlines
        weights |= {name: weights[first] for name, first in body["tied"].items()}
        where = path if outlines else None
        return CheckpointState(weights=weights, counters=body["counters"], folder=where, **rest)
    except (KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(f"{STATE} is no state: {type(error).__name__} {error}") from error


def _body(path: Path) -> dict[str, Any]:
    try:
        check_regular(path / STATE)
        body = json_of((path / STATE).read_text("utf-8"))
        seal = body.pop("self")
    except FileNotFoundError:
        raise _DamagedError(f"{STATE} is missing") from None
    except (OSError, UserError, ValueError, KeyError, AttributeError, TypeError):
        raise _DamagedError(f"{STATE} cannot be read") from None
    if seal != _seal(body):
        raise _DamagedError(f"{STATE} is not what was written")
    return dict(body)


def _same(path: Path, state: CheckpointState) -> bool:
    try:
        return bool(_read(path).counters == state.counters)
    except _DamagedError:
        return False


def _prune(folder: Path, update: int, keep: int) -> None:
    """Remove checkpoints that are too old, ahead of the run, or half-written.

    One that holds a file of the user's stays.

    A checkpoint ahead of the run was found damaged when it resumed.
    """
    found = sorted(list_checkpoints(folder))
    behind = [path for number, path in found if number <= update]
    ahead = [path for number, path in found if number > update]
    remove_own((*behind[:-keep], *ahead))
    remove_partials(folder, "step-*")


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
