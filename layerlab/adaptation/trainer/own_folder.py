"""Keeps what a call did not write: its folder is empty at first, and its own afterwards."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import remove_partials, set_aside
from layerlab.records.file_digests import FILE as SEAL
from layerlab.records.file_digests import extra_files
from layerlab.system.files import OnlyOwn, check_links, read_whole, write_file

PLAN, MODEL = "plan.json", "model"
BEGUN = ".checkpoints"
_CHECKPOINT = re.compile(r"checkpoint-\d+")


def check_own(out: Path) -> None:
    """Refuse a folder with files that no earlier call wrote and this one might replace.

    Raises:
        UserError: there is one, or a link, or the folder is a file.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; expected a folder: name a new one")
    check_links(out)
    if not (out / PLAN).is_file():
        # A plan that was being written when its process was killed.
        held = (one for one in sorted(out.glob("*")) if not one.name.startswith(f".{PLAN}."))
        if (first := next(held, None)) is not None:
            raise UserError(
                f"{out} holds {first.name} and no {PLAN} of an earlier call; name a new or an "
                "empty folder"
            )
    if (first := next(_others(out), None)) is not None:
        raise UserError(
            f"{first} was not written by an earlier call of this version, and would be deleted; "
            "move it away, or name another folder"
        )


def remove_checkpoints(out: Path, keep: int = 0) -> None:
    """Remove all but the newest checkpoints, and no folder with files of the user's."""
    names = sorted(_checkpoints(out), key=lambda name: int(name.partition("-")[2]))
    for one in (out / name for name in names[: len(names) - keep]):
        if not any(_list_new(one, _read_begun(out))):
            set_aside(one)
    remove_partials(out, "checkpoint-*")


def _others(out: Path) -> Iterator[Path]:
    """Yield what no call wrote of the model and the checkpoints."""
    if (model := out / MODEL).exists():
        yield from (model / name for name in OnlyOwn().others(model))
    begun = _read_begun(out)
    for name in _checkpoints(out):
        yield from _list_new(out / name, begun)


def _list_new(one: Path, begun: list[str]) -> Iterator[Path]:
    """Yield what no call wrote of a checkpoint; all of one without a seal that was not begun."""
    # A seal does not name what is hidden, such as .git; halves are of processes that were killed.
    yield from (path for path in one.rglob(".*") if path.suffix != ".partial")
    try:
        yield from (one / name for name in extra_files(one))
    except (OSError, ValueError):  # it is not whole
        if one.name not in begun and (not one.is_dir() or any(one.iterdir())):
            yield one


def _read_begun(out: Path) -> list[str]:
    file = out / BEGUN
    return read_whole(file).decode(errors="replace").split() if file.is_file() else []


class BeginCallback(TrainerCallback):
    """Keeps the names of checkpoints that are being written or deleted, and so may lack a seal.

    It deletes old ones in transformers' place, which would take `checkpoint-2-my-copy` for one.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.limit: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take over how many checkpoints stay."""
        self.limit, args.save_total_limit = args.save_total_limit, None

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write them where a checkpoint is due after this update, for which older ones may go."""
        if control.should_save and state.is_world_process_zero:
            self._write([*_checkpoints(self.out), f"checkpoint-{state.global_step}"])

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Delete old ones, and leave those that an earlier process did not write to their end."""
        if state.is_world_process_zero:
            if self.limit is not None and self.limit > 0:
                remove_checkpoints(self.out, self.limit)
            begun = _read_begun(self.out)
            unsealed = (
                one for one in _checkpoints(self.out) if not (self.out / one / SEAL).exists()
            )
            self._write([one for one in unsealed if one in begun])

    def _write(self, names: list[str]) -> None:
        if names:
            write_file(self.out / BEGUN, "\n".join(names) + "\n")
        else:
            (self.out / BEGUN).unlink(missing_ok=True)


def _checkpoints(out: Path) -> list[str]:
    """Return what has the name of a checkpoint."""
    return sorted(one.name for one in out.glob("checkpoint-*") if _CHECKPOINT.fullmatch(one.name))
