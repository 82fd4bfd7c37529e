"""Reads the scalars of TensorBoard's event files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layerlab.errors import UserError
from layerlab.logs.tables import table_of
from layerlab.system.files import check_regular

if TYPE_CHECKING:
    import pyarrow as pa

PATTERN = "events.out.tfevents.*"
SUMMARY = "hparam/"  # tags of what a run came to, which add_hparams writes to a folder of its own


def read_events(paths: Sequence[Path]) -> "pa.Table":
    """Read the scalars of a run, a row for each step and a column for each tag.

    Args:
        paths: its files in the order of their writing: a resumed run writes another, which counts.

    Raises:
        UserError: tensorboard is not installed, or no scalar is there.
    """
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        raise UserError(
            f"to read {paths[0]} needs tensorboard; type pip install 'layerlab[track]'"
        ) from None
    every = {event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    rows: dict[int, dict[str, object]] = {}
    for path in paths:
        check_regular(path)
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
    return table_of([rows[step] for step in sorted(rows)])
