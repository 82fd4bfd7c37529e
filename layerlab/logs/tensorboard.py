"""Reads the scalars of TensorBoard's event files."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layerlab.errors import UserError
from layerlab.logs.tables import table_of
from layerlab.system.files import check_regular

if TYPE_CHECKING:
    import pyarrow as pa

PATTERN = "events.out.tfevents.*"
HEAD = struct.Struct("<QI")  # of a record: its length, and the checksum of that
SUM = struct.Struct("<I")  # behind it
SUMMARY = "hparam/"  # tags of what a run came to, which add_hparams writes to a folder of its own


def read_events(paths: Sequence[Path]) -> tuple["pa.Table", bool]:
    """Read the scalars of a run, a row for each step and a column for each tag.

    Args:
        paths: its files in the order of their writing: a resumed run writes another, which counts.

    Returns:
        The scalars of all whole records, and whether the end of a file is cut off: it is still
        being written, or its run was killed.

    Raises:
        UserError: tensorboard is not installed, a file is damaged, or no scalar is there.
    """
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        raise UserError(
            f"to read {paths[0]} needs tensorboard; type pip install 'layerlab[track]'"
        ) from None
    every = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    rows: dict[int, dict[str, object]] = {}
    cut = False
    for path in paths:
        cut |= _check_records(path)
        read = event_accumulator.EventAccumulator(str(path), size_guidance=every)
        read.Reload()
        for tag in read.Tags()[event_accumulator.SCALARS]:
            for one in read.Scalars(tag):
                rows.setdefault(one.step, {"step": one.step})[tag] = one.value
        for tag in read.Tags()[event_accumulator.TENSORS]:
            for one in read.Tensors(tag):
                if told := one.tensor_proto.float_val:
                    rows.setdefault(one.step, {"step": one.step})[tag] = told[0]
    if not rows:
        raise UserError(f"{paths[0]} holds no scalars")
    return table_of([rows[step] for step in sorted(rows)], paths[0]), cut


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
            length, told = HEAD.unpack(head)
            left -= HEAD.size + length + SUM.size
            whole = told == masked_crc32c(head[:8])
            if whole and left < 0:
                return True
            if whole:
                data = file.read(length)
                whole = file.read(SUM.size) == SUM.pack(masked_crc32c(data))
            if not whole:
                raise UserError(
                    f"{path} is damaged behind its first {number} records; copy it anew, or leave "
                    "it out"
                )
            number += 1
    return False
