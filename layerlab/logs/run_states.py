"""State of a run where its tracker gives one: W&B's state, MLflow's status."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

STATES = ("state", "status", "run_state", "run_status")
UNFINISHED = frozenset(
    "aborted cancelled canceled crashed error failed interrupted killed node_fail oom paused "
    "pending preempted preempting queued running scheduled stopped suspended timeout timed_out "
    "unfinished".split()
)


def is_finished(table: "pa.Table") -> bool | None:
    """Return False for a run that has not ended, or not well; None where nothing says so.

    Args:
        table: all its rows, of which the last that says it counts.
    """
    for name in (one for one in table.column_names if one.lower() in STATES):
        words = [str(one) for one in table[name].to_pylist() if one is not None]
        if words and words[-1].strip().lower().replace(" ", "_").replace("-", "_") in UNFINISHED:
            return False
    return None
