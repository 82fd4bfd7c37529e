"""Tables as trackers export them: W&B has a column for each run, MLflow a row for each reading."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from layerlab.errors import UserError
from layerlab.logs.cells import is_numeric
from layerlab.logs.loss_names import find_loss
from layerlab.logs.run_names import read_name
from layerlab.logs.training_log import STEPS, LogColumns
from layerlab.validation import short_repr

if TYPE_CHECKING:
    import pyarrow as pa

# W&B writes "NAME OF THE RUN - METRIC", and beside it the ends of what it has averaged.
SPREAD = re.compile(r"__(MIN|MAX)$")
BETWEEN = " - "
# MLflow's history of metrics, as its pages and its client give it.
LEFT_OUT = "metrics"  # under which a table keeps the names of those that it left out
KEYS, VALUE = ("key", "metric"), "value"
# Of its store (SqlMetric): true in rows of NaN, whose value is 0 there.
NAN = "is_nan"


def unpivot(table: "pa.Table", columns: LogColumns, path: Path) -> "pa.Table":
    """Return a table of W&B with a row for each reading, its arm and its seed; another as it is."""
    import pyarrow as pa

    wide = [one for one in table.column_names if BETWEEN in one and not SPREAD.search(one)]
    others = [one for one in table.column_names if BETWEEN not in one]
    step = columns.step or next((one for one in others if one.lower() in STEPS), None)
    if step is None and len(others) == 1:
        step = others[0]
    if not wide or step not in others:
        return table
    metrics = list(dict.fromkeys(one.rpartition(BETWEEN)[2] for one in wide))
    metric = _choose_metric(metrics, columns.loss, path)
    parts = []
    for name in wide:
        run, _, own = name.rpartition(BETWEEN)
        if own != metric:
            continue
        arm, seed = read_name(Path(run), columns.name)
        rows = table.num_rows
        parts.append(
            pa.table(
                {
                    step: table[step],
                    metric: table[name],
                    "arm": pa.array([arm] * rows, pa.string()),
                    "seed": pa.array([seed] * rows, pa.string()),
                }
            )
        )
    found = pa.concat_tables(parts, promote_options="permissive")
    return _keep_names(found, metrics, columns)


def pick_metric(table: "pa.Table", columns: LogColumns, path: Path) -> "pa.Table":
    """Return MLflow's history with one metric under its name; another table as it is.

    Rows of other metrics stay, with nothing for this one: a run may have no others.
    """
    import pyarrow as pa
    from pyarrow import compute

    key = next((one for one in KEYS if one in table.column_names), None)
    if key is None or VALUE not in table.column_names:
        return table
    metrics = [str(one) for one in table[key].unique().to_pylist()]
    metric = _choose_metric(metrics, columns.loss, path)
    values = _restore_nan(table)
    ours = compute.equal(table[key].cast("string"), metric)
    own = compute.if_else(ours, values, pa.scalar(None, values.type))
    column = table.column_names.index(VALUE)
    found = table.set_column(column, metric, own).drop_columns([key])
    return _keep_names(found, metrics, columns)


def _restore_nan(table: "pa.Table") -> "pa.ChunkedArray":
    """Return the values of MLflow's table, NaN where another column says so."""
    import pyarrow as pa
    from pyarrow import compute

    values = table[VALUE]
    if NAN not in table.column_names or not is_numeric(values.type):
        return values
    words = compute.utf8_lower(table[NAN].cast("string"))
    marked = compute.is_in(words, value_set=pa.array(["1", "1.0", "true", "t"]))
    return compute.if_else(marked, pa.scalar(math.nan, pa.float64()), values.cast(pa.float64()))


def _keep_names(table: "pa.Table", metrics: list[str], columns: LogColumns) -> "pa.Table":
    """Return a table with the names of metrics that it leaves out, for whoever tells of them."""
    left = (
        []
        if columns.loss is not None
        else [one for one in metrics if one not in table.schema.names]
    )
    return table.replace_schema_metadata({LEFT_OUT: "\n".join(left)})


def _choose_metric(metrics: list[str], given: str | None, path: Path) -> str:
    """Return the metric that is judged.

    Raises:
        UserError: it is not there, or nothing says which it is.
    """
    chosen = given if given in metrics else None
    if given is None:
        chosen = metrics[0] if len(metrics) == 1 else find_loss(metrics, path)
    if chosen is not None:
        return chosen
    names = ", ".join(map(short_repr, metrics[:12]))
    raise UserError(
        f"{path} has no metric {short_repr(given)}; it has {names}"
        if given is not None
        else f"{path} has several metrics; type --loss METRIC, one of {names}"
    )
