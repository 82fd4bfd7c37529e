"""All readings, stored in columns: a large model gives thousands of rows at a time."""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layerlab.training.monitor.readings import ReadingRow

if TYPE_CHECKING:
    import pandas as pd

ABSENT = -(2**31)  # no layer and no head: a layer of -1 is the embedding


class ReadingTable:
    """Update, layer, head, measure and value of every row."""

    def __init__(self) -> None:
        self._columns = {"update": array("q"), "layer": array("i"), "head": array("i")}
        self._measure, self._value = array("b"), array("d")
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._value)

    def add(self, update: int, rows: Sequence[ReadingRow]) -> None:
        """Append the rows of one reading."""
        for layer, head, measure, value in rows:
            if measure not in self._names:
                self._names.append(measure)
            self._columns["update"].append(update)
            self._columns["layer"].append(ABSENT if layer is None else layer)
            self._columns["head"].append(ABSENT if head is None else head)
            self._measure.append(self._names.index(measure))
            self._value.append(value)

    def rows(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, from one on.

        What has no layer or head has None there.
        """
        return [
            {
                **{
                    name: None if column[row] == ABSENT else column[row]
                    for name, column in self._columns.items()
                },
                "measure": self._names[self._measure[row]],
                "value": self._value[row],
            }
            for row in range(start, len(self))
        ]

    def frame(self) -> "pd.DataFrame":
        """Return a data frame; layer and head are missing where a row has none."""
        import pandas as pd

        found = pd.DataFrame({name: list(column) for name, column in self._columns.items()})
        for name in ("layer", "head"):
            found[name] = found[name].astype("Int64").mask(found[name] == ABSENT)
        found["measure"] = [self._names[index] for index in self._measure]
        found["value"] = list(self._value)
        return found
