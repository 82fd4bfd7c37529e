"""Marks: likelihoods, letters found in a written answer, values, summaries."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.evaluation.tasks.answer_extraction import extract_letter
from layerlab.evaluation.tasks.scoring import (
    by_letter,
    by_likelihood,
    by_value,
    likeliest,
    list_likeliest,
    summary,
)

number = st.floats(-100, 0)


@given(st.lists(number, min_size=2, max_size=5), st.integers(0, 4))
def test_the_likeliest_choice_is_right_or_wrong(likelihoods, right):
    place = likeliest(likelihoods)
    assert likelihoods[place] == max(likelihoods)
    assert likelihoods.index(max(likelihoods)) == place
    assert by_likelihood(likelihoods, [right]) == float(place == right)
    assert by_likelihood(likelihoods, list(range(len(likelihoods)))) == 1.0


@given(st.lists(number, min_size=2, max_size=5), st.integers(0, 4), st.integers(0, 4))
def test_what_is_no_number_is_no_answer(likelihoods, right, strange):
    likelihoods[strange % len(likelihoods)] = float("nan")
    assert by_likelihood(likelihoods, [right]) == 0.0
    assert by_likelihood(likelihoods, list(range(len(likelihoods)))) == 0.0


@pytest.mark.parametrize(
    ("output", "letter"),
    [
        *(("B", "B"), ("B。", "B"), ("Ｂ", "B"), ("(C) 因为", "C"), ("D\n题目：", "D")),
        *(("答案是C", "C"), ("答案：C。", "C"), ("正确答案为选项D", "D"), ("故选A。", "A")),
        *(("The answer is (B).", "B"), ("Answer: C", "C"), ("我们应选择D", "D")),
        ("只有C项符合题意", "C"),
        *(("A、B", None), ("答案是A和C", None), ("答案：A, B, D", None), ("选A或不选", "A")),
        *(("A, because", "A"), ("答案为（D）", "D"), ("所以选 A。B不对", "A"), ("答案是 C", "C")),
        *(("", None), ("我不知道", None), ("A和B都对", None), ("E", None)),
        *(("投资A股有风险", None), ("Because", None), ("B2B", None), ("AB", None)),
    ],
)
def test_a_written_answer_names_one_option_or_abstains(output, letter):
    assert extract_letter(output, "ABCD") == letter


@pytest.mark.parametrize(
    ("output", "letter"),
    [
        *(("答案：A或B", None), ("答案是A或者C", None), ("A还是B", None), ("选A或选B", None)),
        *(("选项A和选项B", None), ("A/B", None), ("The answer is A or B.", None)),
        ("The answer is A, B.", None),
        *(("答案不是A", None), ("答案并不是A，而是B", "B"), ("不选A，选B", "B")),
        *(("不应选A，应该选C", "C"), ("不能选A和B，选D", "D"), ("排除A、B和D，选C", "C")),
        *(("排除A，B正确", "B"), ("并非A", None), ("A不对，B正确", "B"), ("A项错误，选D", "D")),
        *(("选A，不选B", "A"), ("不得不选A", "A"), ("不正确的是A", "A"), ("不难看出，选A", "A")),
        *(("The answer is not A.", None), ("Not A but B.", "B"), ("It isn't (A). It is B", "B")),
        *(("A is wrong, so B", "B"), ("B rather than A", "B"), ("neither A nor B", None)),
        *(("A and B are wrong. Answer: C", "C"), ("I don’t choose A", None)),
        *(("A person would choose", None), ("A cat is an animal, so the answer is B.", "B")),
        *(("It is A person", None), ("The answer is A person", None), ("A is correct", "A")),
        *(("A because it fits", "A"), ("The answer is A since 2 > 1", "A"), ("A\nquestion", "A")),
        *(("除了A都对", None), ("除了A，其他都正确", None), ("除A外，其余选项均正确", None)),
        *(("除了A都不对", None), ("除A和B以外，选C", "C"), ("除了A，还有B", None)),
        *(("除了A和B项都是对的，选C", "C"), ("排除法，选A", "A"), ("除此之外，选D", "D")),
        *(("All except A are right", None), ("Everything but A is true, so A", "A")),
        *(("A. a person", "A"), ("A) person", "A"), ("A Person", "A"), ("B person", "B")),
    ],
)
def test_several_denied_ones_and_articles_are_no_choice(output, letter):
    assert extract_letter(output, "ABCD") == letter


@given(st.sampled_from("ABCD"), st.sampled_from("ABCD"))
def test_the_letter_that_is_denied_is_never_chosen(denied, meant):
    for said in (
        "不选{}",
        "不应选{}",
        "答案不是{}",
        "不能选择选项{}",
        "排除{}",
        "Not {}",
        "{}不对",
    ):
        text = said.format(denied)
        assert extract_letter(text, "ABCD") is None
        if meant != denied:
            assert extract_letter(f"{text}，选{meant}", "ABCD") == meant
            assert extract_letter(f"{text}，选{meant}", "ABCD", reasoned=True) == meant


def test_of_several_statements_the_last_counts_after_reasoning():
    output = "先看答案是A的情形，不成立。所以答案是C。"
    assert extract_letter(output, "ABCD") == "A"
    assert extract_letter(output, "ABCD", reasoned=True) == "C"
    assert extract_letter("A 不对，所以答案是B。", "ABCD", reasoned=True) == "B"


@given(st.text(max_size=40), st.sampled_from("ABCD"))
def test_whatever_is_written_is_marked_and_an_abstention_is_wrong(output, right):
    found = by_letter(output, "ABCD", right)
    assert set(found) == {"score", "abstained"}
    assert found["score"] in {0.0, 1.0} and found["abstained"] in {0.0, 1.0}
    assert not (found["score"] and found["abstained"])
    assert found == by_letter(output, "ABCD", right)


@given(st.sampled_from("ABCD"))
def test_the_right_letter_alone_is_right(letter):
    assert by_letter(letter, "ABCD", letter) == {"score": 1.0, "abstained": 0.0}
    wide = chr(ord(letter) + 0xFEE0)
    assert by_letter(f"{wide}．", "ABCD", letter)["score"] == 1.0


@pytest.mark.parametrize(
    ("output", "reply", "score"),
    [
        *(("2", "2", 1.0), (" $2$.", "2", 1.0), ("$x=2$", "2", 1.0), ("2.5", "2", 0.0)),
        *((r"\boxed{\frac{1}{2}}", r"\frac12", 1.0), (r"$\dfrac{1}{2}$", r"\frac{1}{2}", 1.0)),
        *((r"the value is $\left(3,4\right]$.", "(3,4]", 1.0), ("答案是 5", "5", 1.0)),
        *(("The line is $2x + y = 0$.", "$2x+y=0$", 1.0), ("2x+y=0", "$2x+y=0$", 1.0)),
        *(("0", "$2x+y=0$", 0.0), ("$y=2x$", "$y=2x$", 1.0), ("It is $2x$.", "$y=2x$", 1.0)),
        *(("$5$;$10$", "$5$;$10$", 1.0), ("答案是 5；10。", "$5$;$10$", 1.0)),
        *(("10", "$5$;$10$", 0.0), ("The answer is even.", r"\text{even}", 1.0)),
        *((r"It is \text{even}.", r"\text{even}", 1.0), ("odd", r"\text{even}", 0.0)),
        *((r"6\text{ cm}", "6", 1.0), (r"$\$6$.", r"\$6", 1.0), ("平行为止", "平行为止", 1.0)),
        *(("", "2", 0.0), ("2\nsecond line 7", "2", 1.0), (r"\boxed{", "2", 0.0)),
    ],
)
def test_values_are_the_same_up_to_how_they_are_written(output, reply, score):
    assert by_value(output, reply)["score"] == score


@given(st.text(max_size=30), st.text(max_size=10))
def test_every_value_gets_a_mark(output, reply):
    found = by_value(output, reply)
    assert found["score"] in {0.0, 1.0} and found["abstained"] in {0.0, 1.0}
    assert not (found["score"] and found["abstained"])


def test_a_summary_is_its_first_line():
    assert summary("\n  央行降准 \n\n阅读以下文章") == "央行降准"
    assert summary(" \n") == ""


def test_what_rounds_to_the_same_number_is_as_likely():
    assert list_likeliest([-10.0, -10.0, -20.0]) == [0, 1]
    assert list_likeliest([-10.0, -10.04]) == [0]
    assert list_likeliest([-10.0, -10.04], unit=2**-8) == [0, 1]  # 11 / 256 apart
    assert list_likeliest([-10.0, -10.05], unit=2**-8) == [0]
    assert list_likeliest([-10.0, -30.0], [1, 3], unit=2**-24) == [0, 1]
    assert list_likeliest([-math.inf, -1.0], unit=2**-8) == [1]
    assert list_likeliest([-math.inf] * 3, unit=2**-8) == [0, 1, 2]
