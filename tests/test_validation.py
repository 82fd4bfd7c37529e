"""A domain holds what its words say."""

import math
import os
import subprocess
from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layerlab
from layerlab import UserError
from layerlab.measures.quantities.lipschitz import MEASURES
from layerlab.validation import Constraint, join_words, say_in_python

SHARE = Constraint(kind=float, above=0, most=1)
LENGTH = Constraint(kind=int | None, least=1)


@given(st.one_of(st.floats(), st.integers()))
def test_a_range_holds_the_numbers_between_its_limits(value):
    assert (value in SHARE) == (0 < value <= 1)


@pytest.mark.parametrize("value", [True, "1", None, [1], 1j, math.nan, 0, -math.inf])
def test_what_is_no_number_in_the_range_is_outside(value):
    assert value not in SHARE


@pytest.mark.parametrize(("value", "inside"), [(None, True), (1, True), (0, False), (1.0, False)])
def test_an_open_length_is_none_or_a_whole_number(value, inside):
    assert (value in LENGTH) == inside


@pytest.mark.parametrize("value", [math.inf, 10**400])
def test_a_number_without_a_limit_is_still_a_float(value):
    assert value not in Constraint(kind=float)


def test_a_domain_says_itself_in_words():
    assert str(SHARE) == "a number above 0 and at most 1"
    assert str(LENGTH) == "None or a whole number at least 1"
    assert str(Constraint(kind=str, choices=("a", "b"))) == "'a' or 'b'"
    assert str(Constraint(kind=list)) == "list"


def test_a_whole_number_for_a_float_becomes_one():
    options = MEASURES[0].given(tolerance=1).options
    assert isinstance(options["tolerance"], float)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--margin is 0; expected more", "margin is 0; expected more"),
        ("--seed 3 is too many", "seed=3 is too many"),
        ("type --arm COLUMN, or --arm a=b", "type arm='COLUMN', or arm='a=b'"),
        ("type --arm 'a b' --strict", "type arm='a b', strict=True"),
        ("type --arms a,b or --arms a", "type arms=['a', 'b'] or arms='a'"),
        (
            "type --allow a to go on, or --arm with more",
            "type allow=['a'] to go on, or arm= with more",
        ),
        ("leave --strict out, or --last-one", "leave strict= out, or last_one="),
        (
            "type --strict for all, or leave out --strict",
            "type strict=True for all, or leave out strict=",
        ),
        ("type --strict (in Python strict=True)", "type strict=True"),
        ("type layerlab judge --arm a: or --arm b", "type layerlab judge --arm a: or arm='b'"),
        ("type --other 3, or another --arm", "type --other 3, or another arm="),
    ],
)
def test_options_are_said_as_the_arguments_that_they_stand_for(text, told):
    listed = str | Iterable[str] | None
    numbers = {"margin": float | None, "seed": int, "last_one": int}
    kinds = {**numbers, "arm": str, "arms": listed, "allow": Sequence[str], "strict": bool}
    assert say_in_python(text, kinds) == told


def test_a_value_of_many_lines_is_answered_in_one():
    with pytest.raises(
        UserError, match=r"option steps .* got tensor\(.*expected a whole"
    ) as caught:
        MEASURES[0].given(steps=torch.ones(3, 3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "word", ["a b", "it's", "\x1b[31mred's \\", "two\nlines", "\udcff\xe9\u202e", ""]
)
def test_a_shell_reads_the_words_of_a_command_and_no_page_shows_a_control(word):
    line = join_words(["printf", "%s", word])
    assert line.isprintable()
    found = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert found.stdout == os.fsencode(word)


def test_a_table_is_no_list_of_its_names():
    with pytest.raises(UserError, match=r"formats is .*; expected .*list of texts"):
        layerlab.inspect("pre-norm", formats={"bf16": 3})
