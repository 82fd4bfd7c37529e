"""Questions that name no option as right are counted and left out, never marked as wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.load import load_named
from layerlab.evaluation.lm_eval_tasks.right_answers import find_place
from tests.evaluation.lm_eval_tasks.own_tasks import folder, run
from tests.support.refused import refusal, refuses

__all__ = ["folder"]

TASK = """
task: mine
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
doc_to_target: "{target}"
"""
CHOICES = """doc_to_choice: "{{choices}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
WRITES = """generation_kwargs: {until: ["?"], max_gen_toks: 2}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
Rows = list[dict[str, Any]]
Change = Callable[[Rows], object]


def rows() -> Rows:
    names = ["one", "two", "three"]
    return [
        {"question": f"Number {place}:", "choices": list(names), "answer": place % 3}
        for place in range(12)
    ]


def task(
    folder: Path,
    change: Change,
    *,
    text: str = "{{question}}",
    target: str = "{{answer}}",
    kind: str = "multiple_choice",
    more: str = "",
) -> Path:
    asked = rows()
    change(asked)
    data = folder / "mine.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
    body = CHOICES if kind == "multiple_choice" else WRITES
    head = TASK.format(data=data, text=text, target=target, kind=kind)
    path = folder / "mine.yaml"
    path.write_text(head + body + more, encoding="utf-8")
    return path


def every(name: str, make: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda asked: [row.update({name: make(row)}) for row in asked]


def one(**values: Any) -> Change:
    return lambda asked: asked[3].update(values)


def all_of(*changes: Change) -> Change:
    return lambda asked: [change(asked) for change in changes]


def remarks(path: Path) -> list[str]:
    ((loaded,), _) = load_named(str(path))
    return list(loaded.remarks)


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "target", "why"),
    [
        (
            one(answer=7),
            "{{answer}}",
            "its answer 7 names none of its 3 options",
        ),
        (
            one(answer=-1),
            "{{answer}}",
            "its answer '-1' names none of its 3 options",
        ),
        (
            one(answer=-1),
            "answer",
            "its answer -1 names none of its 3 options",
        ),
        (
            one(answer=None),
            "{{answer}}",
            "the template '{{answer}}' prints null, which would",
        ),
        (one(answer=None), "answer", "its answer None names none of its 3 options"),
        (
            one(answer=1.5),
            "answer",
            "its answer 1.5 names none of its 3 options",
        ),
        (
            all_of(every("answer", lambda row: row["choices"][0]), one(answer="one ")),
            "{{answer}}",
            "its answer 'one ' names none of its 3 options",
        ),
        (
            one(question=None),
            "{{answer}}",
            "the template '{{question}}' prints null, which would",
        ),
        (one(choices=["one", None, "two"]), "{{answer}}", "its option 2 is null, and no text"),
        (one(choices=None), "{{answer}}", "the template '{{choices}}' prints null, which would"),
    ],
)
def test_one_such_question_is_left_out_and_named(folder, change, target, why):
    found = run(task(folder, change, target=target))
    (row,) = found.content["tasks"]
    assert row["n"] == 11 and row["chance"] == pytest.approx(1 / 3)
    (said,) = [line for line in found.content["remarks"] if line.startswith("mine: question ")]
    assert said.startswith(f"mine: question 4 of 12: {why}")
    assert said.endswith("; it is left out")
    assert "question 4 of 12" in " ".join(found.summary(100).split())
    assert not [one for one in row["scores"] if "None" in one]


@pytest.mark.full
@pytest.mark.parametrize(
    "values",
    [
        {"answer": 7},
        {"answer": None},
        {"choices": None},
        {"choices": ["one", None]},
        {"question": None},
    ],
)
def test_the_first_question_may_be_the_one(folder, values):
    (said,) = remarks(task(folder, lambda asked: asked[0].update(values)))
    assert said.startswith("mine: question 1 of 12: ") and said.endswith("; it is left out")


def test_the_others_are_counted_and_the_page_and_the_file_say_it(folder, tmp_path):
    change = all_of(every("answer", lambda row: row["answer"] or 9))
    run(task(folder, change), out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    content = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    (said,) = [line for line in content["remarks"] if "is left out" in line]
    assert said == (
        "mine: question 1 of 12: its answer 9 names none of its 3 options; "
        "it is left out; so are 3 more"
    )
    assert content["tasks"][0]["n"] == 8
    assert "so are 3 more" in page


@pytest.mark.full
@pytest.mark.parametrize("target", ["{{answer}}", "answer"])
def test_whole_numbers_with_a_point_are_places(folder, target):
    plain = run(task(folder, lambda asked: None, target=target))
    found = run(task(folder, every("answer", lambda row: float(row["answer"])), target=target))
    assert found.score("mine") == plain.score("mine") and plain.score("mine") > 0
    assert not [line for line in found.content["remarks"] if line.startswith("mine: ")]


def test_an_example_shows_the_option_of_such_a_place(folder, tmp_path):
    more = "fewshot_split: test\nnum_fewshot: 1\nfewshot_config: {sampler: first_n}\n"
    path = task(folder, every("answer", lambda row: float(row["answer"])), more=more)
    run(path, out=tmp_path / "out", limit=2)
    (samples,) = (tmp_path / "out" / "samples").iterdir()
    second = json.loads(samples.read_text("utf-8").splitlines()[1])
    assert second["prompt"] == "Number 0: one\n\nNumber 1:"


def test_where_no_question_names_an_option_nothing_is_asked(folder):
    path = task(folder, every("answer", lambda row: "ABC"[row["answer"]]))
    assert refusal(run, path) == (
        "tasks mine: none of its 12 questions can be marked, the first because its answer 'A' "
        "names none of its 3 options; give each a text, options, and the place of the "
        "right one, counted from 0, or its text"
    )


@pytest.mark.full
@pytest.mark.parametrize("target", ["{{answer}}", "answer"])
def test_answers_that_are_counted_from_1_are_refused(folder, target):
    path = task(folder, every("answer", lambda row: row["answer"] + 1), target=target)
    refuses(r"counted from 1 \(3 of 3 options, and never 0\)", run, path)
    mended = task(
        folder, every("answer", lambda row: row["answer"] + 1), target="{{answer|int - 1}}"
    )
    assert remarks(mended) == []


@pytest.mark.full
def test_numbers_that_are_options_and_not_their_places_are_refused(folder):
    options = every("choices", lambda row: ["2", "0", "5", "1"])
    refuses("its answers are texts of options, as 0 is, and lm-eval", run, task(folder, options))
    mended = task(folder, options, target="{{choices.index(answer|string)}}")
    assert remarks(mended) == []
    # Some are both, by chance, where options are numbers.
    some = all_of(every("choices", lambda row: ["7", "8", "9"]), one(choices=["2", "0", "1"]))
    assert remarks(task(folder, some)) == []


@pytest.mark.full
def test_answers_to_sums_are_texts_even_where_some_are_places_by_chance(folder):
    """Those beyond the options were left out, and each of the others had another right option."""
    sums = every("choices", lambda row: [str(int(row["question"][7:-1]) + one) for one in range(3)])
    change = all_of(sums, every("answer", lambda row: int(row["choices"][row["answer"]])))
    refuses("its answers are texts of options, as ", run, task(folder, change))
    refuses("its answers are texts of options, as ", run, task(folder, change, target="answer"))
    mended = task(folder, change, target="{{choices.index(answer|string)}}")
    assert remarks(mended) == []
    # Places of options that are numbers, of which one is beyond them.
    places = all_of(sums, one(answer=5))
    assert "question 4 of 12: its answer 5 names none" in " ".join(remarks(task(folder, places)))


@pytest.mark.full
def test_a_null_reply_and_a_null_question_are_left_out_of_a_task_that_writes(folder):
    for change in (one(answer=None), one(question=None)):
        (said,) = remarks(task(folder, change, kind="generate_until"))
        assert said.startswith("mine: question 4 of 12: the template ")
    for target in ("{{answer or ''}}", "{% if answer %}{{answer}}{% endif %}"):
        assert remarks(task(folder, one(answer=None), target=target, kind="generate_until")) == []
    (said,) = remarks(task(folder, one(answer=None), target="answer", kind="generate_until"))
    assert said == "mine: question 4 of 12: its answer is null; it is left out"


def test_an_example_that_names_no_option_is_never_shown(folder):
    shown = folder / "shown.jsonl"
    asked = rows()
    asked[0]["answer"] = -1
    shown.write_text("".join(json.dumps({**row, "question": "Ex:"}) + "\n" for row in asked))
    path = task(folder, lambda rows: None, more="fewshot_split: train\nnum_fewshot: 1\n")
    text = path.read_text().replace("data_files: {", f"data_files: {{train: {shown}, ")
    path.write_text(text + "fewshot_config: {sampler: first_n}\n", encoding="utf-8")
    ((loaded,), _) = load_named(str(path))
    assert loaded.remarks == (
        "mine: example 1 of 12: its answer '-1' names none of its 3 options; it is left out",
    )
    assert [row["answer"] for row in loaded.task.sampler.fewshot_docs()][:2] == [1, 2]


def test_questions_that_stand_there_twice_are_counted(folder):
    assert remarks(task(folder, lambda asked: asked.extend(rows()[:2]))) == [
        "mine: 4 of 14 questions stand there more than once; its interval takes them for different "
        "ones, and is too narrow"
    ]


def test_several_right_options_count_where_they_are_options(folder):
    change = all_of(every("answer", lambda row: [row["answer"], 7]), one(answer=[7, 8]))
    found = run(task(folder, change, target="answer"))
    (row,) = found.content["tasks"]
    assert row["n"] == 11 and row["chance"] == pytest.approx(1 / 3)


def test_numbers_among_numbers_are_no_places():
    assert find_place("1.0", ["0.5", "1.5"]) is None
    assert find_place("1.5", ["0.5", "1.5"]) == 1
    assert find_place(True, ["no", "yes"]) == 1
