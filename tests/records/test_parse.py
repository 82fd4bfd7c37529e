"""JSON, values and seals: what was changed is noticed; all that is wrong is one kind of error."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerlab.records.parse import (
    DIGEST,
    check_digest,
    check_text,
    json_of,
    literal_of,
    one_line,
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


@pytest.mark.full
@given(TABLES, st.binary(max_size=20))
def test_what_was_sealed_comes_back(content, beside):
    assert unseal(seal(content, beside), beside) == content


@pytest.mark.full
@settings(max_examples=40)
@given(TABLES, TABLES, st.binary(max_size=9), st.binary(max_size=9))
def test_whatever_else_is_refused(one, other, beside, changed):
    whole = seal(one, beside)
    if other != one:
        with pytest.raises(ValueError, match="not what was written"):
            unseal({**other, DIGEST: whole[DIGEST]}, beside)
    if changed != beside:
        with pytest.raises(ValueError, match="not what was written"):
            unseal(whole, changed)


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        *((unseal, one, "not what was written") for one in ({}, [], None, "x", {DIGEST: 3})),
        (unseal, {"n": 1}, "not what was written"),
        *((literal_of, one, "no value of Python") for one in ("{[]}", "(" * 9999, "f()", "1 +")),
        *((literal_of, one, "no value of Python") for one in ("9" * 5000, "{**{}}")),
        *((check_text, one, "half of a surrogate pair") for one in ("\ud83d", [["\udc00"]])),
        (check_text, {"\ud83d": 1}, "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_read_is_refused(read, content, said):
    with pytest.raises(ValueError, match=said):
        read(content)


@given(st.text(max_size=40))
@pytest.mark.parametrize("read", [json_of, toml_of, literal_of])
def test_any_text_is_a_value_or_one_kind_of_error(read, text):
    try:
        read(text)
    except ValueError as error:
        assert str(error)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example('\u202e\x7f\x1b\U000e0001"\\')
def test_a_quoted_text_is_read_as_it_was_and_can_be_seen(text):
    quoted = quote_toml(text)
    assert quoted.isprintable() and toml_of(f"a = {quoted}") == {"a": text}


def test_an_error_without_a_message_says_its_kind():
    assert one_line(NotImplementedError()) == "NotImplementedError"
    assert one_line(ValueError("two\n lines")) == "two lines"


def test_a_table_without_a_digest_is_believed_and_one_with_another_is_not():
    assert check_digest({"n": 1}) == check_digest(seal({"n": 1})) == {"n": 1}
    for content, said in (([], "holds no table"), ({**seal({"n": 1}), "n": 2}, "not what was")):
        with pytest.raises(ValueError, match=said):
            check_digest(content)


@pytest.mark.parametrize("kind", [str, str.encode])
def test_options_count_for_texts_and_bytes(kind):
    assert json_of(kind("[1.5]")) == [1.5] and json_of(kind("[1.5]"), parse_float=str) == ["1.5"]
    with pytest.raises(ValueError, match="names the key 'a' twice"):
        json_of(kind('{"a": 1.5, "a": 2}'), parse_float=str)
