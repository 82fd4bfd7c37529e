"""Texts of several clauses: what is known is said, in the best way to cut; the rest stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.report.i18n.clause import TYPED, Clauses, prose, tidy

MARKS = {"; ": "；", ": ": "：", ", ": "、", ",": "，", ", and ": " 和 ", " and ": "、", ".": "。"}
WORDS = {
    **{
        "one": "一",
        "two": "二",
        "three": "三",
        "before": "之前",
        "{value} ({note})": "{value}（{note}）",
    },
    **{"one, two": "一二", "one: two": "一比二", ", 5 more": "，另有 5 个", " (of 9)": "（共 9）"},
    **{
        "three times 4 of the seeds": "三倍",
        "Two things. Three more.": "两三件。",
        "x of two": "二之 x",
    },
}
# What says little by itself.
WEAK = {"nobody, two": "nobody two 吗"}


def known(text: str, *, begun: bool = False, strong: bool = False) -> str | None:
    if TYPED.fullmatch(text):
        return text
    return WORDS.get(text) or (None if strong else WEAK.get(text))


def label(text: str) -> str:
    return {**MARKS, **WORDS}.get(text, text)


def said(text: str) -> str:
    return Clauses(known, label).translate(text)


@pytest.mark.parametrize(
    ("english", "other"),
    [
        ("one; two: three", "一；二：三"),
        # What stands between backticks is typed in every language.
        ("`one`, `two` and `six`", "`one`、`two`、`six`"),
        ("one: `two` 26%, `three` -2%; two", "一：`two` 26%、`three` -2%；二"),
        # A message of several clauses is a clause less.
        ("one, two, three", "一、二、三"),
        ("one: two", "一比二"),
        # Marks belong to what is known with them; a list has another comma than clauses.
        ("two, 5 more", "二，另有 5 个"),
        ("one, before 5", "一，之前 5"),
        ("one, and two", "一 和 二"),
        # The fewest words are left, though another cut has a message for all of it.
        ("nobody, two", "nobody、二"),
        ("before 1, 2", "之前 1、2"),
        ("two. Three", "二。Three"),
        ("one.", "一。"),
        ("Two things. Three more.", "两三件。"),
        # Brackets, and what stands around them.
        ("one (two) three", "一（二）three"),
        ("one (of 9)", "一（共 9）"),
        ("one (x)", "一 (x)"),
        ("nobody (one, two)", "nobody（一二）"),
        ("nobody (knows)", "nobody (knows)"),
        ("x (one; two), two", "x（一；二）、二"),
        # An "and" joins what is known, and names; not prose.
        ("one and two", "一、二"),
        ("one and LN-3", "一、LN-3"),
        ("one and nobody knows", "one and nobody knows"),
        ("before 0.5", "之前 0.5"),
        ("Nobody knows it; nor this, at all.", "Nobody knows it; nor this, at all."),
        ("", ""),
    ],
)
def test_a_text_is_said_in_the_best_way_to_cut_it(english, other):
    assert said(english) == other


def test_of_ways_that_leave_as_few_words_the_most_clauses_are_taken():
    weak = {"a": "甲", "b": "乙", "a; b": "甲乙", "c (a; b)": "丙"}
    clauses = Clauses(
        lambda text, *, begun=False, strong=False: None if strong else weak.get(text), label
    )
    assert clauses.translate("a; b") == "甲；乙" and clauses.translate("c (a; b)") == "丙"
    clauses = Clauses(lambda text, *, begun=False, strong=False: weak.get(text), label)
    assert clauses.translate("a; b") == "甲乙"


def test_a_clause_begins_with_its_mark_only_if_its_message_does():
    asked = list[tuple[str, bool]]()

    def note(text: str, *, begun: bool = False, strong: bool = False) -> str | None:
        asked.append((text, begun))
        return None

    assert Clauses(note, label).translate("one; two") == "one; two"
    assert ("; two", True) in asked and ("two", False) in asked and ("two", True) not in asked


@given(st.text("one two;:,.()[] and5", max_size=60))
def test_no_text_breaks_it(text):
    assert isinstance(said(text), str)


def test_full_width_marks_bring_their_own_space():
    assert tidy("层 ， 3 （ 共 4 ） 。") == "层，3（共 4）。"
    assert prose("3 of the other seeds") and not prose("llama, mamba, gpt, retnet and 3 more")
