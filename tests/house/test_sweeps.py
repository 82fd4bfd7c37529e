"""What `make test` leaves to the sweeps: most examples of a property, most options of a variant."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CASES, EXAMPLES, leave_parts, read_part, spare_cases

ROOT = Path(__file__).resolve().parents[2]
ALL = 2 * EXAMPLES


@settings(max_examples=ALL)
@given(st.booleans())
def test_a_property(value):
    assert value in {True, False}


def test_a_property_draws_few_examples_where_the_sweeps_are_left_out(request):
    found: Any = next(one for one in request.session.items if one.name == "test_a_property")
    drawn = found.obj._hypothesis_internal_use_settings.max_examples
    brief = str(request.config.option.markexpr).endswith("and not full")
    parts = request.config.option.sweeps[1]
    assert drawn in ({EXAMPLES} if brief else {ALL} if parts == 1 else {EXAMPLES, ALL})


def case(path: Path, name: str, few: int | None = None) -> Any:
    """A collected test, with the mark `few` or without one."""
    mark = None if few is None else SimpleNamespace(args=(few,))
    marks = dict.fromkeys(("few", "full"), mark)
    return SimpleNamespace(path=path, name=name, callspec=None, get_closest_marker=marks.get)


@pytest.mark.parametrize(
    ("name", "cases", "kept"), [("form", 3, 3), ("form", 20, 7), ("laws_hold", 5, 1)]
)
def test_of_many_options_a_few_cases_stay_spread_evenly(name, cases, kept):
    path = Path("tests/variants/test_x.py")
    items: Any = [case(path, f"test_{name}[{place}]") for place in range(cases)]
    spared = [one.name for one in spare_cases(items)]
    left = [one.name for one in items if one.name not in spared]
    assert len(left) == kept <= CASES and left[0] == items[0].name


def test_what_is_no_variant_keeps_all_its_cases():
    path = Path("tests/model/test_x.py")
    items: Any = [case(path, f"test_form[{place}]") for place in range(40)]
    assert list(spare_cases(items)) == []


def test_what_is_marked_so_keeps_as_many_as_the_mark_says():
    items: Any = [case(Path("x.py"), f"test_form[{place}]", 3) for place in range(40)]
    assert len(items) - len(list(spare_cases(items))) == 3


def test_parts_of_the_sweeps_are_all_of_them_and_what_is_no_sweep_is_in_each():
    items: Any = [case(Path("x.py"), f"test[{place}]", place % 3 or None) for place in range(40)]
    sweeps = {one.name for one in items if one.get_closest_marker("full")}
    kept = [
        {one.name for one in items} - {one.name for one in leave_parts(items, own, 4)}
        for own in range(1, 5)
    ]
    assert all(len(one & sweeps) in {6, 7} and one - sweeps == kept[0] - sweeps for one in kept)
    assert set.union(*kept) == {one.name for one in items}
    assert sum(len(one & sweeps) for one in kept) == len(sweeps) == 26


def test_a_part_is_one_of_as_many():
    assert read_part("2/4") == (2, 4)
    for wrong in ("0/4", "5/4", "2", "x/4", ""):
        with pytest.raises(ValueError):
            read_part(wrong)


def test_what_may_be_skipped_names_files_that_are_there():
    table = (ROOT / "tests" / "SKIPPED.md").read_text("utf-8")
    named = re.findall(r"`(tests/[^`]+)`", table)
    assert named and [one for one in named if not (ROOT / one).exists()] == []
