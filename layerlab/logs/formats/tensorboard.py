"""Reads the scalars of TensorBoard's event files."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError, describe_install
from layerlab.logs.formats.tables import table_of
from layerlab.system.files import check_regular
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

PATTERN = "events.out.tfevents.*"
HEAD = struct.Struct("<QI")  # of a record: its length, and the checksum of that
SUM = struct.Struct("<I")  # behind it
SUMMARY = "hparam/"  # tags of what a run came to, which add_hparams writes to a folder of its own


def read_events(paths: Sequence[Path]) -> tuple["pa.Table", bool]:
    """Read the scalars of a run, a row for each step of a file and a column for each tag.

    Args:
        paths: its files in the order of their writing: a resumed run writes another, which counts.

    Returns:
        The scalars of all whole records, and whether the end of a file is cut off: it is still
        being written, or its run was killed.

    Raises:
        UserError: tensorboard is not installed, a file is damaged, no scalar is there, or files are
            of several runs.
    """
    every: list[dict[str, object]] = []
    begun: dict[str, tuple[Path, list[int]]] = {}
    cut = False
    for path in paths:
        cut |= _check_records(path)
        # A step that does not rise begins the rows anew, as those of a run that was taken up again.
        rows: dict[tuple[int, int], dict[str, object]] = {}
        for tag, points in _read_scalars(path).items():
            part, before = 0, -math.inf
            for step, value in points:
                part, before = part + (step <= before), step
                rows.setdefault((part, step), {"step": step})[tag] = value
            steps = sorted({step for step, _ in points})
            if not steps:
                continue
            first, earlier = begun.setdefault(tag, (path, steps))
            # A resumed run goes back to a step, and another begins where the first one did.
            if first != path and len(earlier) > 1 and steps[0] <= earlier[0]:
                raise UserError(
                    f"{first} and {path.name} beside it both have {short_repr(tag)} from their "
                    f"first step on, {earlier[0]} and {steps[0]}: they are of two runs; give each "
                    "a folder of its own, or leave one out"
                )
        every += [rows[at] for at in sorted(rows)]
    if not every:
        below = sorted({one.parent.name for one in paths[0].parent.glob(f"*/{PATTERN}")})
        hint = (
            f"; those of add_scalars lie below it, in {', '.join(below)}: give the files of one, "
            "and --name REGEX for the arm and the seed in their paths"
        )
        raise UserError(f"{paths[0]} holds no scalars{hint if below else ''}")
    return table_of(every, paths[0]), cut


def _read_scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the step and the value of each reading, by tag.

    Raises:
        UserError: tensorboard is not installed, or a scalar has no number.
    """
    try:
        from tensorboard.backend.event_processing import event_accumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError(f"to read {path} needs tensorboard; {describe_install('track')}") from None
    every = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    read = event_accumulator.EventAccumulator(str(path), size_guidance=every)
    read.Reload()
    found = {
        tag: [(one.step, one.value) for one in read.Scalars(tag)]
        for tag in read.Tags()[event_accumulator.SCALARS]
    }
    for tag in read.Tags()[event_accumulator.TENSORS]:
        # Texts, pictures and histograms are tensors as well.
        scalars = [one for one in read.Tensors(tag) if _is_scalar(one.tensor_proto)]
        try:
            points = [(one.step, make_ndarray(one.tensor_proto).item()) for one in scalars]
        except ValueError:
            raise UserError(
                f"{path} has {short_repr(tag)} without a number in it; expected one a reading: "
                "write it anew, or leave it out"
            ) from None
        if points:
            found[tag] = points
    return found


def _is_scalar(tensor: Any) -> bool:
    from tensorboard.compat.proto import types_pb2

    kinds = ("HALF", "FLOAT", "DOUBLE", "INT32", "INT64")
    numbers = {getattr(types_pb2, f"DT_{kind}") for kind in kinds}
    return tensor.dtype in numbers and all(one.size == 1 for one in tensor.tensor_shape.dim)


def _check_records(path: Path) -> bool:
    """Refuse a file with a flipped bit: tensorboard reads up to there, and says nothing.

    Returns:
        Whether its last record is cut off.

    Raises:
        UserError: it is damaged, or no such file.
    """
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    check_regular(path)
    left, number = path.stat().st_size, 0
    with path.open("rb") as file:
        while left > 0:
            head = file.read(HEAD.size)
            if len(head) < HEAD.size:
                return True
            length, checksum = HEAD.unpack(head)
            left -= HEAD.size + length + SUM.size
            intact = checksum == masked_crc32c(head[:8])
            if intact and left < 0:
                return True
            if intact:
                data = file.read(length)
                intact = file.read(SUM.size) == SUM.pack(masked_crc32c(data))
            if not intact:
                raise UserError(
                    f"{path} is damaged behind its first {number} records; copy it anew, or leave "
                    "it out"
                )
            number += 1
    return False
