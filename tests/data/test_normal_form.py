"""Normal forms are Unicode's, but for marks without end, which cost no more than other text."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from layerlab.data.normal_form import MARKS, STEP, normal_form
from layerlab.evaluation.tasks.answer_extraction import extract_letter

FORMS = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])
MARK = "\u0301\u0316"


@pytest.mark.full
@given(FORMS, st.text(max_size=600))
@example("NFC", "e" + MARK * (MARKS // 2) + "e")
def test_it_is_the_normal_form_of_unicode(form, text):
    assert normal_form(form, text) == unicodedata.normalize(form, text)


@given(FORMS, st.integers(0, 2 * STEP), st.integers(STEP, 4 * STEP))
def test_no_long_run_of_marks_escapes(form, before, count):
    """What is put between them is nothing that is seen, and nothing else is changed."""
    found = normal_form(form, "x" * before + MARK * count)
    runs = found[before:].split("\u034f")
    assert max(map(len, runs)) <= MARKS and sum(map(len, runs)) == 2 * count


@pytest.mark.full
@pytest.mark.parametrize("text", ["e" + MARK * 2_000_000, "的" * 300 + MARK * 2_000_000])
def test_marks_without_end_take_no_time(text):
    """They would take hours where their order took the square of their number."""
    assert len(normal_form("NFC", text)) > len(text)


@pytest.mark.full
@pytest.mark.parametrize("piece", ["A、", "A and ", "不选A、"])
def test_an_answer_of_options_without_end_takes_no_time(piece):
    """Half a million of them would take a day."""
    assert extract_letter(piece * 500_000, "ABCD") == extract_letter(piece, "ABCD")
