"""Timeline of a monitor's readings: for each arm and measure a map of layers by updates."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.curves import bins, short
from layerlab.report.views.inspection.bounds import count_infinite, finite, numbers

# Readings on the page, and updates of one map at most.
BUDGET, UPDATES = 60_000, 60
MOST_MEASURES = 16
DIGITS = 4
_KEYS = ["arm", "measure", "update", "layer"]


def monitor_timeline(
    rows: Sequence[Mapping[str, Any]], runs: Sequence[str], arms: Sequence[str]
) -> Json:
    """Return the readings of these runs, merged over seeds: mean and largest over the heads.

    Readings that are infinite are in neither; they are counted.

    Returns:
        `measures` by name; `arms`, each with its index, layers, updates, and for each measure
        `mean` and `largest`, layer by layer, and how many are `infinite`, if any.
    """
    table = _table(rows, runs)
    if table.empty:
        return {"measures": [], "arms": [], "heads": False}
    measures = [str(name) for name in table["measure"].unique()][:MOST_MEASURES]
    table = table[table["measure"].isin(measures)]
    endless = table.groupby(["arm", "measure"])["value"].agg(count_infinite)
    table = _thin(table.assign(value=finite(table["value"])))
    grouped = table.groupby(_KEYS, sort=True)["value"]
    merged = pd.DataFrame({"mean": grouped.mean(), "largest": grouped.max()}).reset_index()
    return {
        "measures": [text.prose(name, 60) for name in measures],
        "heads": bool((merged["largest"] > merged["mean"]).any()),
        "arms": [
            _arm(merged[merged["arm"] == name], index, measures, endless[name])
            for index, name in enumerate(arms)
            if (merged["arm"] == name).any()
        ],
    }


def _table(rows: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> pd.DataFrame:
    table = pd.DataFrame(list(rows))
    if table.empty or not {"run", "value", *_KEYS} <= set(table.columns):
        return pd.DataFrame()
    table = table[table["run"].isin(runs)]
    columns = {name: finite(table[name]) for name in ("update", "layer")}
    columns["value"] = numbers(table["value"])
    return table.assign(**columns).dropna(subset=list(columns))


def _thin(table: pd.DataFrame) -> pd.DataFrame:
    """Thin out the updates where there are many, to the last readings of each bin."""
    cells = len(table.groupby(["arm", "measure", "layer"]))
    updates = table["update"].drop_duplicates().sort_values().to_numpy()
    most = min(UPDATES, max(2, BUDGET // max(1, 2 * cells)))
    return table[table["update"].isin(set(bins(updates, most)))]


def _arm(
    rows: pd.DataFrame, index: int, measures: Sequence[str], endless: Mapping[str, Json | None]
) -> Json:
    layers = sorted(rows["layer"].unique())
    updates = sorted(rows["update"].unique())
    full = pd.MultiIndex.from_product([layers, updates], names=["layer", "update"])
    values = {}
    for number, name in enumerate(measures):
        own = rows[rows["measure"] == name].set_index(["layer", "update"]).reindex(full)
        values[str(number)] = {
            part: [short(float(v), DIGITS) for v in own[part]] for part in ("mean", "largest")
        }
    return {
        "arm": index,
        "layers": [int(n) for n in layers],
        "updates": [int(n) for n in updates],
        "values": values,
        "infinite": {
            str(number): counted
            for number, name in enumerate(measures)
            if (counted := endless.get(name))
        },
    }
