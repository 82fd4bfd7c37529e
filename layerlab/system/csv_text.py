"""Tables as text between commas."""

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def csv_of(table: "pd.DataFrame") -> str:
    """Return a table as CSV, each cell of which is read back as it was.

    pandas writes a carriage return without quotes, and whoever reads it ends the row there.
    """
    words = table.select_dtypes(exclude="number")
    returns = any("\r" in one for name in words for one in words[name] if isinstance(one, str))
    if returns:
        return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)
    return table.to_csv(index=False)
