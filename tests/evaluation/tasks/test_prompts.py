"""What a model reads: the wording of each benchmark, letter by letter."""

import pytest

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.benchmarks.items import Item
from layerlab.evaluation.tasks.prompts import Manner, TaskPrompt, build_prompt

FOUR = Item(
    location="x",
    text="几？",
    options=("一", "二", "三", "四"),
    right=(1,),
    explanation="1. 一加一。",
)
TWO = Item(location="x", text="q", passage="p", options=("No", "Yes"), right=(1,))
WHOLE = Manner(scoring="mean_nll")


def asked(
    name: str, question: Item = FOUR, manner: Manner | None = None, subject: str = ""
) -> TaskPrompt:
    benchmark = find_benchmark(name)
    return build_prompt(
        question, benchmark, benchmark[subject or benchmark.subjects[0].name], manner
    )


EXAM = "以下是中国关于{}考试的单项选择题，请选出其中的正确答案。\n\n"
ALONE = "以下是关于{}的单项选择题，请直接给出正确答案的选项。\n\n"
OPTIONS = "几？\nA. 一\nB. 二\nC. 三\nD. 四\n"


@pytest.mark.parametrize(
    ("name", "header", "text"),
    [
        ("ceval", EXAM.format("注册会计师"), f"{OPTIONS}答案："),
        ("fineval", EXAM.format("会计"), f"{OPTIONS}答案："),
        ("cmmlu", ALONE.format("农学"), f"题目：{OPTIONS}答案是："),
        ("financeiq", ALONE.format("注册会计师（CPA）"), f"题目：{OPTIONS}答案是："),
    ],
)
def test_exams_of_china_ask_for_a_letter(name, header, text):
    found = asked(name)
    assert (found.header, found.text) == (header, text)
    assert (found.choices, found.target) == (tuple("ABCD"), "B")


def test_ceval_reasons_step_by_step_before_it_answers():
    found = asked("ceval", manner=Manner(scoring="gen", cot=True))
    assert found.text.endswith("D. 四\n答案：让我们一步一步思考，\n")
    assert found.target == "1. 一加一。\n所以答案是B。"


def test_mmlu_asks_in_english_with_a_blank_before_the_answer():
    found = asked("mmlu", subject="high_school_physics")
    assert found.header == (
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
    )
    assert found.text == "几？\nA. 一\nB. 二\nC. 三\nD. 四\nAnswer:"
    assert (found.choices, found.target) == ((" A", " B", " C", " D"), " B")


@pytest.mark.parametrize(
    ("subject", "text", "choices"),
    [
        (
            "gaokao_history",
            "p问题：几？ 选项：(A)一 (B)二\n答案：从A到B, 我们应选择",
            ("A", "B"),
        ),
        (
            "gaokao_english",
            "pQ: 几？ Answer Choices: (A)一 (B)二\nA: Among A through B, the answer is",
            (" A", " B"),
        ),
    ],
)
def test_agieval_names_its_letters(subject, text, choices):
    question = Item(location="x", text="几？", passage="p", options=("(A)一", "(B)二"), right=(0,))
    found = asked("agieval", question, subject=subject)
    assert (found.header, found.text, found.choices) == ("", text, choices)


@pytest.mark.parametrize(
    ("name", "subject", "text"),
    [
        ("agieval", "gaokao_mathcloze", "问题：q\n答案："),
        ("agieval", "math", "Q: q\nA: The answer is"),
        ("xsum", "", "Document：q\nBased on the previous text, provide a brief single summary:"),
        ("lcsts", "", "阅读以下文章，并给出简短的摘要：q\n摘要如下："),
    ],
)
def test_a_reply_is_asked_for_where_there_are_no_options(name, subject, text):
    found = asked(name, Item(location="x", text="q", reply="r"), subject=subject)
    assert (found.text, found.choices, found.target.strip()) == (text, (), "r")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("boolq", ("p\nQuestion: q?\nNo", "p\nQuestion: q?\nYes")),
        ("ax-b", ("p?entailment, q", "p?not_entailment, q")),
        (
            "piqa",
            tuple(f"The following makes sense: \nQ: q\nA: {one}\n" for one in ("No", "Yes")),
        ),
        ("csl", ("摘要：p", "摘要：p\n关键词：q")),
    ],
)
def test_whole_texts_are_compared_as_opencompass_writes_them(name, texts):
    found = asked(name, TWO, WHOLE)
    assert (found.header, found.text, found.choices) == ("", "", texts)


def test_a_sentiment_is_a_word_not_a_letter():
    question = Item(location="x", text="好", options=("消极", "积极"), right=(1,))
    assert asked("eprstmt", question).text == '内容： "好"。情绪分类：'
    assert asked("eprstmt", question).choices == ("消极。", "积极。")
    assert asked("eprstmt", question, WHOLE).choices[0] == '内容： "好"。情绪分类：\n消极。'


ASKED = [one for one in BENCHMARKS.values() if one.scorings[0] == "choice_ll"]


@pytest.mark.parametrize("benchmark", ASKED, ids=lambda one: one.name)
def test_a_right_choice_is_the_target_and_no_blank_stands_twice(benchmark):
    count = benchmark.options or 4
    for right in range(count):
        options = tuple(f"o{place}" for place in range(count))
        question = Item(location="x", text="q", passage="p", options=options, right=(right,))
        for manner in (Manner(), WHOLE):
            found = build_prompt(question, benchmark, benchmark.subjects[0], manner)
            assert found.choices[right] == found.target
            assert len(set(found.choices)) == count
            if found.text:
                assert not (found.text[-1].isspace() and found.choices[0][0].isspace())
                spaced = benchmark.language == "en"
                assert all(choice.startswith(" ") == spaced for choice in found.choices)
