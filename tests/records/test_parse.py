"""JSON, values and seals: what was changed is noticed; all that is wrong is one kind of error."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from layerlab.records.parse import (
    DIGEST,
    check_text,
    json_of,
    literal_of,
    quote_toml,
    seal,
    toml_of,
    unseal,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
TABLES = st.dictionaries(st.text(min_size=1, max_size=4).filter(lambda one: one != DIGEST), JSON)


@given(TABLES, st.binary(max_size=20))
def test_what_was_sealed_comes_back(content: dict[str, Any], beside: bytes) -> None:
    assert unseal(seal(content, beside), beside) == content


@given(TABLES, TABLES, st.binary(max_size=9), st.binary(max_size=9))
def test_whatever_else_is_refused(one: Any, other: Any, beside: bytes, changed: bytes) -> None:
    whole = seal(one, beside)
    if other != one:
        with pytest.raises(ValueError, match="not what was written"):
            unseal({**other, DIGEST: whole[DIGEST]}, beside)
    if changed != beside:
        with pytest.raises(ValueError, match="not what was written"):
            unseal(whole, changed)


@pytest.mark.parametrize("content", [{}, [], None, "x", {DIGEST: 3}, {"n": 1}])
def test_what_was_never_sealed_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="not what was written"):
        unseal(content)


@given(st.text(max_size=40))
@pytest.mark.parametrize("read", [json_of, toml_of, literal_of])
def test_any_text_is_a_value_or_one_kind_of_error(read: Any, text: str) -> None:
    try:
        read(text)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["{[]}", "(" * 9999, "f()", "1 +", "9" * 5000, "{**{}}"])
def test_what_is_no_value_of_python_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="no value of Python"):
        literal_of(text)


@pytest.mark.parametrize("found", ["\ud83d", {"\ud83d": 1}, [["\udc00"]]])
def test_half_of_a_character_is_no_text(found: Any) -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        check_text(found)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example('\u202e\x7f\x1b\U000e0001"\\')
def test_a_quoted_text_is_read_as_it_was_and_can_be_seen(text: str) -> None:
    quoted = quote_toml(text)
    assert quoted.isprintable() and toml_of(f"a = {quoted}") == {"a": text}
