"""Tables as text between commas: every cell comes back."""

import io

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from layerlab.system.csv_text import csv_of

CELLS = st.text("ab \r\n\t\",;'=\u2028\u00e9\ufeff", min_size=1, max_size=6)


@given(st.lists(st.tuples(CELLS, st.floats(allow_nan=True)), min_size=1, max_size=5))
def test_every_cell_is_read_back(rows):
    table = pd.DataFrame(rows, columns=["words", "number"])
    text = csv_of(table)
    found = pd.read_csv(io.StringIO(text, newline=""), keep_default_na=False, na_values=[""])
    assert found["words"].tolist() == table["words"].tolist()
    pd.testing.assert_series_equal(found["number"], table["number"], check_dtype=False)


def test_numbers_stand_without_quotes_and_words_only_where_they_must():
    assert csv_of(pd.DataFrame({"a": ["x", "y"], "b": [1.5, None]})) == "a,b\nx,1.5\ny,\n"
    assert '"x\ry",1.5' in csv_of(pd.DataFrame({"a": ["x\ry"], "b": [1.5]}))
