import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.amount_match import number_match, numbers_in
from layerlab.evaluation.metrics.mark import Mark

SOME = settings(max_examples=50, deadline=None)


@pytest.mark.parametrize(
    ("output", "mark"),
    [
        ("[金额]8500元<eoa>", Mark(1.0)),
        ("8500.0", Mark(1.0)),
        ("共8500.元", Mark(1.0)),
        ("８５００元", Mark(1.0)),  # full-width digits are digits
        ("1500+7000=8500", Mark(1.0)),
        ("8,500元", Mark(0.0)),  # the source reads two numbers here
        ("85000", Mark(0.0)),
        ("八千五百元", Mark(0.0, True)),
        ("", Mark(0.0, True)),
    ],
)
def test_amounts(output, mark):
    assert number_match(output, 8500.0) == mark


@SOME
@given(st.lists(st.floats(0, 1e12).map(lambda value: round(value, 2)), max_size=5))
def test_all_numbers_are_found(values):
    assert numbers_in(" 元，".join(f"{value:.2f}" for value in values)) == values


def test_thousands_of_digits_are_a_number_too():
    assert number_match("9" * 5000, 8500.0) == Mark(0.0)
