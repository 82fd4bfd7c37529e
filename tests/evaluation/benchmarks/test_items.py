"""Questions of every benchmark in one shape, read from files in its published format."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.benchmarks.files import is_here
from layerlab.evaluation.benchmarks.items import Item, describe_odd_items, letters_of, read_items
from layerlab.evaluation.benchmarks.readers import read_rows
from tests.evaluation.written import HEAD, TRAPS, lines, table
from tests.support.refused import refusal, refuses

EXAM = "id,question,A,B,C,D,answer"


def only(name: str, folder: Path, split: str | None = None, subject: int = 0) -> list[Item]:
    benchmark = find_benchmark(name)
    return read_items(benchmark, benchmark.subjects[subject], split or benchmark.split, folder)


def exam(folder: Path, *rows: str, split: str = "val", head: str = EXAM) -> list[Item]:
    table(folder / "ceval" / split / f"accountant_{split}.csv", *rows, head=head)
    return only("ceval", folder, split)


@pytest.mark.parametrize(
    ("answer", "right"),
    [*(("B", 1), ("Ｂ", 1), ("b", 1), (" C ", 2), ("（D）", 3), ("A.", 0))],
)
def test_an_answer_is_a_letter_of_any_width(tmp_path, answer, right):
    (found,) = exam(tmp_path, f"0,问,{','.join(TRAPS)},{answer}")
    assert (found.options, found.right, found.letters) == (TRAPS, (right,), "ABCD"[right])


@given(st.sets(st.sampled_from("ABCD"), min_size=1), st.sampled_from(["", " ", "、", "。"]))
def test_letters_are_found_whatever_stands_between_them(letters, between):
    expected = tuple(sorted("ABCD".index(one) for one in letters))
    assert letters_of(between.join(letters), 4) == expected
    wide = between.join(chr(ord(one) + 0xFEE0) for one in letters)
    assert letters_of(wide, 4) == expected


@pytest.mark.parametrize("answer", ["E", "AB", "1", "对"])
def test_another_answer_is_refused_with_its_line(tmp_path, answer):
    assert refusal(exam, tmp_path, f"0,问,甲,乙,丙,丁,{answer}") == (
        f"{tmp_path}/ceval/val/accountant_val.csv, line 2: the answer is '{answer}'; "
        "expected one of A, B, C and D"
    )


def test_an_empty_question_is_refused_with_its_line(tmp_path):
    with pytest.raises(UserError, match=r"_val.csv, line 2 has an empty question; mend that line"):
        exam(tmp_path, "0, ,甲,乙,丙,丁,A")


@pytest.mark.parametrize("head", [EXAM, EXAM.removesuffix(",answer")])
def test_a_split_without_answers_names_the_one_that_has_them(tmp_path, head):
    row = "0,问,甲,乙,丙,丁" + ("," if head == EXAM else "")
    assert refusal(exam, tmp_path, row, split="test", head=head) == (
        f"{tmp_path}/ceval/test/accountant_test.csv has no answers: C-Eval publishes its split "
        "test without them; use the split val"
    )


def test_a_renamed_column_of_answers_is_named_with_those_that_are_there(tmp_path):
    assert refusal(exam, tmp_path, "0,问,甲,乙,丙,丁,A", head=EXAM.replace("answer", "Ans")) == (
        f"{tmp_path}/ceval/val/accountant_val.csv has no 'answer'; "
        "it has id, question, a, b, c, d, ans: rename what holds the answers to 'answer'"
    )


def test_examples_without_answers_are_of_another_file_too(tmp_path):
    with pytest.raises(UserError, match=r"accountant_dev.csv has no 'answer'; it has id, question"):
        exam(tmp_path, "0,问,甲,乙,丙,丁", split="dev", head=EXAM.removesuffix(",answer"))


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ({"labels": True}, r"has no 'label'; it has question, passage, labels: ren"),
        ({"label": 3}, r"line 1: the label is '3'; expected 'false' or 'true'"),
    ],
)
def test_a_renamed_label_and_an_unknown_one_are_named(tmp_path, label, said):
    lines(tmp_path / "superglue/BoolQ/val.jsonl", {"question": "q", "passage": "p", **label})
    refuses(said, only, "boolq", tmp_path)


def test_a_scored_split_whose_answers_are_all_empty(tmp_path):
    assert refusal(exam, tmp_path, "0,问,甲,乙,丙,丁,", "1,问,甲,乙,丙,丁, ") == (
        f"{tmp_path}/ceval/val/accountant_val.csv has no answers: every answer is empty; "
        "copy the split val anew"
    )


def test_an_empty_option_is_said_and_scored_as_published(tmp_path):
    rows = ["0,问,甲,,丙,丁,A", "1,问, ,乙,,丁,D", "2,问,甲,乙,丙,丁,B"]
    assert [one.letters for one in exam(tmp_path, *rows)] == ["A", "D", "B"]
    ceval = find_benchmark("ceval")
    assert describe_odd_items(ceval, ceval.subjects[0], "val", tmp_path) == [
        "accountant_val.csv, line 2: the option B is empty; it is scored so, as published",
        "accountant_val.csv, line 3: the option A is empty; it is scored so, as published",
    ]


def test_what_is_odd_is_said_and_scored_as_published(tmp_path):
    rows = ["0,问,甲,乙,甲,丁,A", "1,问,甲,乙,丙,丁,", "2,问,甲,乙,丙,丁,B"]
    found = exam(tmp_path, *rows)
    assert [one.letters for one in found] == ["A", "B"]
    ceval = find_benchmark("ceval")
    place = "accountant_val.csv"  # without its folders, which results do not carry along
    assert describe_odd_items(ceval, ceval.subjects[0], "val", tmp_path) == [
        f"{place}, line 2: the option '甲' stands there twice; it is scored as published",
        f"{place}, line 3 has no answer; it is left out",
    ]


def test_examples_carry_their_explanations(tmp_path):
    (found,) = exam(tmp_path, '0,问,甲,乙,丙,丁,A,"因为\n如此"', split="dev", head=HEAD)
    assert found.explanation == "因为\n如此"


def test_mmlu_has_no_line_of_names(tmp_path):
    table(tmp_path / "mmlu/test/abstract_algebra_test.csv", "Find c,0,1,2,3,B", head="")
    (found,) = only("mmlu", tmp_path)
    assert (found.text, found.options, found.letters) == ("Find c", ("0", "1", "2", "3"), "B")


def test_agieval_has_several_answers_or_none_to_choose_from(tmp_path):
    folder = tmp_path / "agieval" / "v1"
    options = [f"({letter}){letter.lower()}" for letter in "ABCD"]
    asked = {"passage": None, "question": "q", "options": options, "answer": None}
    several, none = {**asked, "label": ["A", "C"]}, {**asked, "label": []}
    lines(folder / "jec-qa-kd.jsonl", several, {**asked, "label": "B"}, none)
    lines(folder / "math.jsonl", {**asked, "options": None, "label": None, "answer": "1.50"})
    agieval = find_benchmark("agieval")
    law = read_items(agieval, agieval["jec_qa_kd"], "test", tmp_path)
    assert [one.right for one in law] == [(0, 2), (1,)]
    (cloze,) = read_items(agieval, agieval["math"], "test", tmp_path)
    assert (cloze.options, cloze.reply, cloze.passage) == ((), "1.50", "")


def test_twins_of_agieval_are_seen_behind_their_letters(tmp_path):
    agieval = find_benchmark("agieval")
    row = {"passage": "", "question": "q", "options": ["(A)1", "(B) 1"], "label": "A", "answer": ""}
    lines(tmp_path / "agieval/v1/sat-math.jsonl", row)
    (said,) = describe_odd_items(agieval, agieval["sat_math"], "test", tmp_path)
    assert said.endswith("the option '1' stands there twice; it is scored as published")


BOOLQ = {"question": "is it", "passage": "It is.", "idx": 0}
AX_B = {"idx": "0", "label": "not_entailment", "sentence1": "A cat.", "sentence2": "A dog."}
CSL = {"id": 1, "abst": "摘要。", "keyword": ["甲", "乙"], "label": "1"}


@pytest.mark.parametrize(
    ("name", "file", "row", "asked", "options"),
    [
        *(
            (
                *("boolq", "superglue/BoolQ/val.jsonl", BOOLQ | {"label": one}),
                *(("It is.", "is it"), ("No", "Yes")),
            )
            for one in (True, "true")
        ),
        ("ax-b", "superglue/AX-b/AX-b.jsonl", AX_B, ("A cat.", "A dog."), ("True", "False")),
        # Its labels lie beside.
        (
            "piqa",
            "piqa/valid.jsonl",
            {"goal": "g", "sol1": "a", "sol2": "b"},
            ("", "g"),
            ("a", "b"),
        ),
        ("csl", "csl/dev_few_all.json", CSL, ("摘要。", "甲，乙"), ("否", "是")),
        (
            *("eprstmt", "eprstmt/dev_few_all.json"),
            *({"id": 1, "sentence": "好", "label": "Positive"}, ("", "好"), ("消极", "积极")),
        ),
    ],
)
def test_a_label_names_one_of_two_options(tmp_path, name, file, row, asked, options):
    lines(tmp_path / file, row)
    (tmp_path / file).with_name("valid-labels.lst").write_text("1\n")
    (found,) = only(name, tmp_path)
    assert (found.passage, found.text) == asked
    assert (found.options, found.right) == (options, (1,))


def test_summaries_are_replies(tmp_path):
    lines(tmp_path / "xsum/dev.jsonl", {"dialogue": "long", "summary": "short"})
    (found,) = only("xsum", tmp_path)
    assert (found.text, found.reply, found.options) == ("long", "short", ())
    (tmp_path / "lcsts").mkdir()
    (tmp_path / "lcsts/test.src.txt").write_text("长文\n", "utf-8")
    (tmp_path / "lcsts/test.tgt.txt").write_text("短\n", "utf-8")
    (found,) = only("lcsts", tmp_path)
    assert (found.text, found.reply) == ("长文", "短")


def test_xsum_is_scored_on_its_first_thousand_and_without_empty_articles(tmp_path):
    rows = [{"dialogue": f"long {place}", "summary": "short"} for place in range(1001)]
    lines(tmp_path / "xsum/dev.jsonl", *rows[:3], {"dialogue": "\n", "summary": "s"}, *rows[3:])
    found = only("xsum", tmp_path)
    assert len(found) == 999
    assert found[-1].text == "long 998"
    xsum = find_benchmark("xsum")
    (said,) = describe_odd_items(xsum, xsum.subjects[0], "dev", tmp_path)
    assert said == "dev.jsonl, line 4 has no answer; it is left out"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["ceval", "cmmlu", "mmlu", "agieval", "boolq", "ax-b", "piqa", "financeiq", "fineval"]
)
def test_published_questions_have_answers_among_their_options(data, name):
    benchmark = BENCHMARKS[name]
    if not is_here(benchmark, data):
        pytest.skip(f"no shared data: {benchmark.title} is not among them")
    bare = 0
    # Of the many subjects of CMMLU and MMLU, all of one format, some.
    for subject in benchmark.subjects[:: 8 if len(benchmark.subjects) > 52 else 1]:
        found = read_items(benchmark, subject, benchmark.split, data)
        bare += len(read_rows(benchmark, subject, benchmark.split, data)) - len(found)
        for one in found:
            assert one.reply or max(one.right) < len(one.options)
            assert not benchmark.options or len(one.options) == benchmark.options
    assert bare == (name == "agieval")  # one question of JEC-QA is published without an answer


def test_fineval_has_the_weights_of_the_source(data):
    benchmark = find_benchmark("fineval")
    if not is_here(benchmark, data):
        pytest.skip("no shared data: FinEval is not among them")
    weights: dict[str, int] = {}
    for subject in benchmark.subjects:
        count = len(read_items(benchmark, subject, "val", data))
        weights[subject.category] = weights.get(subject.category, 0) + count
    assert weights == {"Accounting": 305, "Certificate": 334, "Economy": 207, "Finance": 305}
