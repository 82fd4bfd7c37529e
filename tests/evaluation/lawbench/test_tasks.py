from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.benchmarks.catalog import LAWBENCH
from layerlab.evaluation.lawbench.rows import read_scored_rows
from layerlab.evaluation.lawbench.tasks import LABELS, TASKS
from layerlab.evaluation.metrics.mark import Mark

pytest.importorskip("jieba", reason="jieba is not installed: pip install '.[eval]'")

# What a model that knows every answer would type: the reference without the word before it.
SAID = {"1-1": "答案:", "2-5": "回答:"}


def said(number: str, answer: str) -> str:
    if number == "2-6":  # an entity ends with its line; the last two characters are never read
        return answer.replace(";", "\n") + "\n\n"
    return answer.removeprefix(SAID.get(number, ""))


def row(answer: str, question: str = "指控实施清楚。") -> dict[str, str]:
    return {"instruction": "请回答。", "question": question, "answer": answer}


def test_twenty_tasks_as_the_benchmark_declares_them():
    assert list(TASKS) == [subject.name for subject in LAWBENCH.subjects]
    assert Counter(subject.category for subject in LAWBENCH.subjects) == {
        "memorization": 2,
        "understanding": 10,
        "applying": 8,
    }
    assert {name: len(labels) for name, labels in LABELS.items()} == {
        **{"dispute": 16, "marriage": 20, "topic": 20, "event": 20},
        **{"entity": 10, "charge": 189},
    }
    assert all(len({*labels}) == len(labels) for labels in LABELS.values())


@pytest.mark.full
def test_every_gold_answer_of_our_rows_earns_full_marks(home):
    for number, task in TASKS.items():
        for one in read_scored_rows(number).kept:
            mark = task.score(said(number, one["answer"]), one)
            assert mark == (1.0, False), (number, one["answer"], mark)


def test_an_empty_output_abstains_and_earns_nothing(home):
    for number, task in TASKS.items():
        for one in read_scored_rows(number).kept:
            blank = number == "2-6" and not one["answer"]
            assert task.score("", one) == Mark(float(blank), not blank), number


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(TASKS)), st.text(alphabet="AB甲赔偿盗窃1二月条第:：; \n", max_size=30)
)
def test_no_output_earns_more_than_full_marks(number, output):
    answer = {
        **{"1-1": "答案:甲", "1-2": "正确答案：A。", "2-1": "甲", "2-2": "争议焦点类别：利息。"},
        **{
            "2-3": "类别:损害赔偿。",
            "2-4": "侵权",
            "2-5": "回答:甲",
            "2-6": "时间:一月",
            "2-7": "甲",
        },
        **{"2-8": "[正确答案]B<eoa>", "2-9": "赔偿", "2-10": "甲", "3-1": "法条:刑法第1条"},
        **{"3-2": "甲", "3-3": "罪名:盗窃", "3-4": "刑期:2个月", "3-5": "刑期:2个月"},
        **{"3-6": "正确答案:A。", "3-7": "上文涉及到的犯罪金额:1.0元。", "3-8": "甲"},
    }[number]
    mark = TASKS[number].score(output, row(answer))
    assert mark.score <= 1
    assert mark.score >= 0 or number in {"3-4", "3-5"}


@pytest.mark.parametrize(
    ("number", "answer", "output", "mark"),
    [
        ("1-1", "答案:合同的内容。", " \n", Mark(0.0, True)),
        ("1-2", "正确答案：B。", "[正确答案]Ｂ<eoa>", Mark(1.0)),
        ("1-2", "正确答案：B。", "A和B", Mark(0.0)),
        ("2-2", "争议焦点类别：利息。", "[争议焦点]利息<eoa>", Mark(1.0)),
        ("2-2", "争议焦点类别：利息。", "利息、违约", Mark(0.0)),
        ("2-3", "类别:准予离婚、支付抚养费。", "准予离婚", Mark(2 / 3)),
        ("2-9", "支付/给付;欺骗", "支付", Mark(0.0, True)),
        ("2-6", "受害人:张三", "受害人:张三;时间:五月", Mark(1 / 3)),
        ("2-6", "受害人:张三", "受害人:无", Mark(0.0, True)),
        ("2-6", "", "受害人:张三某", Mark(0.0)),
        ("2-6", "时间:五月", "时间:三月\n时间:五月\n\n", Mark(1.0)),
        ("2-10", "查扣;退给", "退给;查扣", Mark(0.0)),
        ("2-10", "查扣;退给", "查扣；退给", Mark(2 * (2 * 2 / 6) / 3)),
        ("3-1", "法条:刑法第264条", "刑法第二百六十四条", Mark(1.0)),
        ("3-1", "法条:刑法第264条", "第264条、第67条", Mark(2 / 3)),
        ("3-1", "法条:刑法第264条", "刑法第264条第1款", Mark(0.0, True)),
        ("3-3", "罪名:合同诈骗", "合同诈骗", Mark(2 / 3)),
        ("3-4", "刑期:24个月", "有期徒刑二年", Mark(1.0)),
        ("3-7", "上文涉及到的犯罪金额:8500.0元。", "8500元", Mark(1.0)),
    ],
)
def test_one_answer(number, answer, output, mark):
    found = TASKS[number].score(output, row(answer))
    assert found.score == pytest.approx(mark.score)
    assert found.abstained == mark.abstained


@pytest.mark.few(6)
@pytest.mark.parametrize("number", sorted(TASKS))
def test_gold_answers_of_the_real_rows(data, number):
    task, found = TASKS[number], read_scored_rows(number, folder=data)
    assert len(found.kept) + len(found.left_out) == 500
    assert len(found.left_out) == (4 if number in {"3-4", "3-5"} else 0)
    # A text is all of itself: fifty are enough where words are slow to find.
    checked = found.kept[:50] if "ROUGE" in task.metric else found.kept
    low = [one for one in checked if task.score(said(number, one["answer"]), one).score < 1]
    # The rule finds charges inside others, and some charges are none of its options.
    assert len(low) == (87 if number == "3-3" else 0)
    assert all(_flawed(one["answer"]) for one in low)


def _flawed(answer: str) -> bool:
    """Whether 3-3 cannot give full marks to this answer: see the note of the task."""
    gold = answer.replace("罪名:", "").split(";")
    inside = [one for one in LABELS["charge"] if one not in gold and one in answer]
    return bool(inside) or any(one not in LABELS["charge"] for one in gold)
