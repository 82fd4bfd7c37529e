"""What marks an answer takes time that grows as the answer does, whatever a model writes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from layerlab.evaluation.lawbench.scoring import articles_in, entities_in, score_triggers
from layerlab.evaluation.lawbench.tasks import LABELS
from layerlab.evaluation.metrics.amount_match import numbers_in
from layerlab.evaluation.metrics.character_f1 import character_f1
from layerlab.evaluation.metrics.chinese_numerals import with_digits
from layerlab.evaluation.metrics.edit_f import edit_count
from layerlab.evaluation.metrics.label_match import labels_in
from layerlab.evaluation.metrics.prison_term import months_in
from layerlab.evaluation.metrics.rouge import common_subsequence, rouge
from layerlab.evaluation.metrics.segmentation import JIEBA, JIEBA_LINES, LATIN, RUN
from layerlab.evaluation.tasks.answer_extraction import extract_letter
from layerlab.evaluation.tasks.scoring import by_value, summary

LENGTH = 20_000
# Seconds of the processor. What grew with the square took one to eight, what grows as the text
# a twentieth at most, save jieba, which looks up every character in its dictionary.
GENEROUS = 0.5
ENTITIES = partial(entities_in, types=LABELS["entity"])
LETTER = partial(extract_letter, letters="ABCDE")
VALUE = partial(by_value, reply="1")
READERS: dict[str, Callable[[str], Any]] = {
    "months": months_in,
    "articles": articles_in,
    "entities": ENTITIES,
    "triggers": partial(score_triggers, gold=["一", "二"]),
    "numbers": numbers_in,
    "numerals": with_digits,
    "labels": partial(labels_in, options=LABELS["charge"]),
    "letter": LETTER,
    "last letter": partial(LETTER, reasoned=True),
    "value": VALUE,
    "summary": summary,
    "characters": partial(character_f1, reference="判处有期徒刑"),
    "edits": lambda text: edit_count("指控实施", text, "指控事实"),
    "words": LATIN,
    "words of jieba": JIEBA,
    "lines of jieba": JIEBA_LINES,
    "rouge": partial(rouge, reference="判处 有期徒刑", segment=JIEBA_LINES),
}
PIECES = (
    *("1", "A", "a", " ", "\t", "\n", "\u3000", "(", "[", "{", "}", ")", "$", "=", "\\", ".", ","),
    *(
        "一",
        "十",
        "两",
        "零",
        "第",
        "款",
        "条",
        "、",
        "受",
        "罪",
        "。",
        "”",
        "：",
        "；",
        "不",
        "非",
    ),
    *("é", "\u0301", "A、", "A和", "A ", "A)", "A.", "(A", "Ａ", "A选", "A都", "A的说法", "A\t\t"),
    *("不选A", "not ", "not the ", "don't ", "rather than ", "exclud", "answer", "答案", "选"),
    *("受害人", "受害人:", "受害人: ", "受害人:无", "受害人:无 ", "第一款", "第一条", "第1", "1."),
    *("1年", "1个", "一个", "万元", "\\text{", "\\frac1", "\\boxed{", "$a", "is ", "为", "-"),
)
# One of these, and then blanks: two patterns that take blanks cut them in as many ways.
HEADS = ("A", "答案", "answer", "not", "受害人:", "不", "\\text{")


def repeat(piece: str, length: int) -> str:
    return (piece * length)[:length]


def pad(head: str, blank: str, length: int) -> str:
    return head + blank * length + "x"


def seconds(read: Callable[[str], Any], text: str) -> float:
    start = time.process_time()
    read(text)
    return time.process_time() - start


def takes_the_square(read: Callable[[str], Any], make: Callable[[int], str], length: int) -> bool:
    """Whether four times the text takes over eight times as long, however often it is tried.

    Between four and sixteen, so that neither the processor nor its other work decides.
    """
    return all(
        (spent := seconds(read, make(4 * length))) > GENEROUS
        and spent > 8 * seconds(read, make(length))
        for _ in range(3)
    )


@pytest.mark.parametrize(
    ("read", "make"),
    [
        (months_in, partial(repeat, "1")),
        (articles_in, partial(repeat, "第")),
        (ENTITIES, partial(repeat, "受害人:")),
        (LETTER, partial(pad, "A", " ")),
        (VALUE, partial(repeat, "\\text{")),
    ],
    ids=["months", "articles", "entities", "letter", "value"],
)
def test_what_took_the_square_of_the_time_takes_none(read, make):
    assert not takes_the_square(read, make, LENGTH)


@pytest.mark.full
@pytest.mark.parametrize("name", READERS)
def test_no_answer_takes_long(name):
    read = READERS[name]
    if "jieba" in name or name == "rouge":
        pytest.importorskip("jieba")
        JIEBA("先读词典")
    makers = [(piece, partial(repeat, piece)) for piece in PIECES]
    makers += [
        (head + blank, partial(pad, head, blank)) for head in HEADS for blank in (" ", " \n", ":")
    ]
    slow = [text for text, make in makers if takes_the_square(read, make, LENGTH // 4)]
    assert slow == []


def test_blanks_of_any_number_part_an_answer_as_one_does():
    for one, many in ((" ", " \t  "), ("\n", " \n\n ")):
        for text in ("答案是{}B", "A{}and{}B", "not{}A,{}so B", "A{}person", "the answer{}is{}C"):
            few, much = (extract_letter(text.replace("{}", blank), "ABC") for blank in (one, many))
            assert few == much


def test_entities_are_the_last_that_are_not_said_to_be_absent():
    text = "受害人:甲 乙\n受害人:\t丙\u3000丁\n受害人：无 受害人:未提及"
    assert ENTITIES(text) == {"受害人": "丙\u3000丁"}
    assert ENTITIES("受害人:甲 受害人:乙乙") == {"受害人": "乙乙"}
    assert ENTITIES("受害人:甲 受害人:乙") == {"受害人": "甲"}  # the last two are not read
    assert ENTITIES("受害人无无") == {}


@pytest.mark.full
def test_longer_runs_are_cut_and_shorter_ones_are_not():
    pytest.importorskip("jieba")
    text = "人民法院" * (RUN // 4)
    assert JIEBA(text) == ["人民法院"] * (RUN // 4)
    assert "".join(JIEBA(text * 3 + "。" + text)) == text * 3 + "。" + text


def test_the_shorter_text_has_the_bits():
    assert common_subsequence("ab" * 50, "ba") == common_subsequence("ba", "ab" * 50) == 2
