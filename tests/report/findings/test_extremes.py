"""Places and numbers as findings write them."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.extremes import figure, peak, runs


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_runs_name_every_number_and_no_other(numbers):
    text = runs(numbers)
    if text.startswith("between"):
        low, high = text.removeprefix("between ").split(" and ")
        assert (int(low), int(high)) == (min(numbers), max(numbers))
        return
    named: set[int] = set()
    for part in text.split(", "):
        low, _, high = part.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == set(numbers)
    assert runs([EMBEDDING, *numbers]) == f"embedding, {text}"


@given(st.floats(-1e300, 1e300))
def test_a_figure_is_within_half_a_unit_of_its_last_digit(number):
    shown = float(figure(number).replace(",", ""))
    assert abs(shown - number) <= 0.0051 * abs(number)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6)), min_size=1, max_size=12))
def test_the_peak_is_the_largest_and_places_count_once(entries):
    table = pd.DataFrame(entries, columns=["layer", "reading"])
    top, bottom = peak(table, "reading"), peak(table, "reading", lowest=True)
    assert (top.value, bottom.value) == (table["reading"].max(), table["reading"].min())
    rest = table["layer"].nunique() - 1
    assert (f"and {rest} more" in top.more) == (rest > 0)
