"""What torch 2.11, the oldest that is supported, cannot do; nothing else is left out there."""

from pathlib import Path

import pandas as pd
import pytest
import torch

NEW = torch.__version__ >= (2, 13)
needs_views = pytest.mark.skipif(not NEW, reason="this torch has no view of bits inside of vmap")
refuses_mixed = pytest.mark.skipif(not NEW, reason="this torch mixes dtypes in attention")


def read_csv(file: Path) -> pd.DataFrame:
    """A table to its last digit, which pandas before 3.1 reads past unless it is told."""
    given = {} if pd.__version__ >= "3.1" else {"float_precision": "round_trip"}
    return pd.read_csv(file, **given)
