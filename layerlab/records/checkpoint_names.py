"""Names of a run's checkpoints, the one to resume from, and their end."""

import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

CHECKPOINTS = "checkpoints"  # their folder, in that of a run
_NAME = re.compile(r"step-(\d{8,})")
# What stands in the names of such, as `layerlab.system.files` draws it.
_DRAWN = "[0-9a-f]" * 8
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
# As PEFT calls the configuration of an adapter, and in it the model that the adapter changes.
ADAPTER, BASE = "adapter_config.json", "base_model_name_or_path"
# As torch.distributed.checkpoint names the file of a process, and one of several that it writes.
_PART = re.compile(r"shard-(\d{5,})-model-\d{5,}-of-\d{5,}\.safetensors")


def list_checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """List the checkpoints of a run with their updates, whole or not."""
    for path in folder.glob("step-*"):
        matched = _NAME.fullmatch(path.name)
        if matched and path.is_dir():
            yield int(matched[1]), path


def say_update(path: Path) -> str:
    """Say in words which update a checkpoint was taken at."""
    return f"update {int(path.name.split('-')[1])}"


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder holds files of a checkpoint, whole or not, and nothing else."""
    names = {one.name for one in path.iterdir()} - {WEIGHTS, OPTIMIZER, STATE}
    return all(map(_PART.fullmatch, names))


def list_parts(folder: Path, rank: int) -> list[Path]:
    """List the files of a sharded checkpoint that one process has written."""
    found = ((path, _PART.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    return [path for path, name in found if name and int(name[1]) == rank + 1]


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run, and their folder unless something else lies in it."""
    remove_own([path for _, path in list_checkpoints(folder)])
    remove_partials(folder, "step-*")
    with suppress(OSError):  # there are none, or it is not empty
        folder.rmdir()


def remove_own(paths: Iterable[Path]) -> None:
    """Remove checkpoints that hold nothing else."""
    for path in filter(is_checkpoint, paths):
        set_aside(path)


def set_aside(path: Path) -> None:
    """Give a checkpoint the name of one that is half-written, for `remove_partials` to remove.

    What a kill leaves of a removal is damaged for nobody.
    """
    with suppress(OSError):
        path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial"))


def remove_partials(folder: Path, *names: str) -> None:
    """Remove what a kill has left of files and folders that were half-written, or half-removed.

    Args:
        names: what they would be called, or patterns; no other process may be writing them now.
    """
    for path in (one for name in names for one in folder.glob(f".{name}.{_DRAWN}.partial")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint by its name, whole or not."""
    return max(list_checkpoints(folder), default=(0, None))[1]


def remedy(folder: Path) -> str:
    """Say what to type where a run cannot be written, and from where it resumes.

    Args:
        folder: of all checkpoints of the run.
    """
    newest = latest(folder)
    begin = f"goes on from {say_update(newest)}" if newest else "begins anew"
    return f"make room there, then type the same command, which {begin}"
