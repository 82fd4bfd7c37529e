"""How questions were asked and marked: rows of strangers, ties, other prompts, long answers."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from layerlab.evaluation.results.result import EvaluationResult, load_result
from tests.evaluation.candidate import candidate, tokenizer
from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, WRITTEN, folder, run, write

__all__ = ["folder"]
ROWS = 40


def letters(folder: Path, **more: Any) -> Path:
    """A task of choices of one letter each, of which the first is right."""
    path = write(folder, "own_letters", CHOICE)
    row = {"number": "one", "options": ["A", "B", "C"], "right": 0}
    lines = (json.dumps({**row, "number": f"one {place}", **more}) for place in range(ROWS))
    (folder / "own_letters.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def flat() -> Any:
    """A model to which all tokens are alike."""
    model = candidate(512).model
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    return model


def tasks(found: EvaluationResult) -> Any:
    return found.content["tasks"][0]


def told(found: EvaluationResult, start: str) -> list[str]:
    return [one for one in found.content["remarks"] if start in one]


@pytest.mark.full
def test_a_column_of_a_strangers_row_decides_nothing(folder):
    named = {"gold": [0, 1], "abstained": 1, "score": 3, "alone": 2, "target": "B", "reply": "C"}
    plain = tasks(run(letters(folder)))
    found = tasks(run(letters(folder, **named)))
    assert plain["chance"] == found["chance"] == pytest.approx(1 / 3)
    for name in ("guesses", "abstained", "measured", "worth"):
        assert found[name] == plain[name]
    assert list(found["scores"].values()) == list(plain["scores"].values())


def test_a_metric_of_a_strangers_marks_is_no_answer_withheld(folder):
    (folder / "marks.py").write_text(
        "def mark(doc, results):\n    return {'abstained': 1.0, 'alone': 1.0, 'found': 0.0}\n"
    )
    named = ("abstained", "alone", "found")
    listed = "\n".join(f"  - {{metric: {one}, aggregation: mean}}" for one in named)
    body = WRITTEN.split("metric_list")[0] + f"metric_list:\n{listed}\n"
    path = write(folder, "own_marks", body, more="process_results: !function marks.mark\n")
    found = tasks(run(path, trust_tasks=True, limit=3))
    assert found["abstained"] == 0.0 and found["worth"] == "abstained"


@pytest.mark.full
def test_what_python_of_a_tasks_own_marks_has_no_chance_that_is_known(folder):
    """As truthfulqa_mc2, whose accuracy is the share of probability of several right options."""
    (folder / "mass.py").write_text(
        "import math\n\ndef mark(doc, results):\n"
        "    mass = [math.exp(one[0] / 100) for one in results]\n"
        "    return {'acc': sum(mass[:2]) / sum(mass)}\n"
    )
    path = write(folder, "own_mass", CHOICE, more="process_results: !function mass.mark\n")
    found = run(path, trust_tasks=True)
    (row,) = tasks(found)["measured"]
    assert 0.5 < row["value"] < 1 and row["share"]
    assert tasks(found)["chance"] is None and tasks(found)["guesses"] == []
    assert "guessing" not in row and "bove chance" not in found.summary()
    plain = tasks(run(write(folder, "own_plain", CHOICE)))
    assert plain["chance"] is not None and "guessing" in plain["measured"][0]


@pytest.mark.full
def test_options_that_no_number_tells_apart_are_not_above_chance(folder, tmp_path):
    path = letters(folder)
    found = run(path, model=flat(), out=tmp_path / "flat")
    rows = {row["metric"]: row for row in tasks(found)["measured"]}
    for name in ("acc", "acc_norm"):
        row = rows[name]
        assert (row["value"], row["tied"]) == (1.0, ROWS)  # lm-eval takes the first option
        assert row["shared"] == pytest.approx(1 / 3)
        assert not row["guessing"]["above"] and row["guessing"]["p"] > 0.5
    assert "Not above chance: own_letters (acc, acc_norm)" in found.summary()
    arm = found.content["arms"][0]["arm"]
    assert told(found, "tie at")[0] == (
        f"{arm}: own_letters (acc): the likeliest options tie at {ROWS} of {ROWS} questions, "
        "exactly or within the rounding of the arithmetic; the score counts the first of them, the "
        "test against guessing and differences 1 / k for k options"
    )
    assert run(path, model=flat(), out=tmp_path / "flat").content["tasks"] == found.content["tasks"]
    kept = load_result(tmp_path / "flat")
    assert kept.content["remarks"] == found.content["remarks"]
    assert "ties" not in kept.frame("tasks").columns and "tied" in kept.frame("tasks").columns
    model = candidate(512).model
    theirs = run(path, model=model)
    (row,) = run(path, model=model, against=found).content["compared"]
    assert row["difference"] == pytest.approx(theirs.score("own_letters") - 1 / 3)
    assert told(theirs, "tie at") == []


@pytest.mark.full
def test_several_right_options_of_a_tie_share_it(folder):
    path = letters(folder, right=[1, 2])
    row = tasks(run(path, model=flat()))["measured"][0]
    assert row["value"] == 0.0 and row["shared"] == pytest.approx(2 / 3)


PROMPT = 'doc_to_text: "Nothing at all about {{number}}:"\n'
DRAWN = "fewshot_config: {sampler: default}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        (PROMPT, {}, "another prompt"),
        ('target_delimiter: ":"\n', {}, "another prompt"),
        ('description: "Think."\n', {}, "another description before the questions"),
        ("metadata: {version: 2}\n", {}, "another version of the task"),
        (DRAWN, {"shots": 2, "seed": 1}, "other examples, or drawn with another seed"),
        (DRAWN, {"seed": 1}, ""),
        (PROMPT, {"shots": 1}, "1 example here, 2 there; another prompt"),
    ],
)
def test_what_was_asked_differently_is_told(folder, more, options, said):
    shots = 2 if "shots" in options else 0
    drawn = DRAWN if more == DRAWN else ""
    before = run(write(folder, "own_told", CHOICE, more=drawn), shots=shots, seed=0)
    path = write(folder, "own_told", CHOICE, more=more)
    found = run(path, against=before, **{"shots": 0, **options})
    expected = [f"asked differently: own_told: {said}"] if said else []
    assert told(found, "asked differently") == expected


@pytest.mark.full
def test_another_way_to_write_or_to_read_answers_is_told(folder):
    before = run(write(folder, "own_told", WRITTEN), limit=3)
    changed = WRITTEN.replace('until: ["?"]', 'until: ["!"]').replace("([a-z])", "([a-y])")
    found = run(write(folder, "own_told", changed), limit=3, against=before)
    (said,) = told(found, "asked differently")
    said = said.partition("own_told: ")[2]
    assert said == "other settings of generation; other filters or marks of answers"
    short = run(write(folder, "own_told", changed), limit=3, model=candidate(10).model)
    (said,) = told(run(folder / "own_told.yaml", limit=3, against=short), "asked differently")
    assert said.endswith(
        "own_told: answers of at most 5 tokens only there; questions with other examples left out, "
        "or not asked, for want of context: 3"
    )


@pytest.mark.full
def test_examples_that_the_context_leaves_out_are_told(folder):
    path = folder / "own_choice.yaml"
    before = run(path, shots=3, model=candidate(40).model)
    count = len(tasks(before)["cut"])
    assert 0 < tasks(before)["shots"]["shortened"] == count
    (said,) = told(run(path, shots=3, against=before), "asked differently")
    assert said.endswith(f"left out, or not asked, for want of context: {count}")
    assert told(run(path, shots=3, limit=2, against=run(path, shots=3)), "asked") == []


@pytest.mark.full
def test_another_chat_template_is_told(folder):
    path = folder / "own_choice.yaml"
    found: list[EvaluationResult] = []
    for mark in "<[":
        words = copy.deepcopy(tokenizer())
        words.chat_template = "{% for one in messages %}" + mark + "{{ one.content }}{% endfor %}"
        against = found[0] if found else None
        found.append(run(path, chat=True, words=words, against=against))
    assert told(found[1], "asked differently")[0].endswith("own_choice: another chat template")


@pytest.mark.full
def test_what_an_earlier_version_did_not_keep_is_unknown(folder):
    path = folder / "own_choice.yaml"
    content = copy.deepcopy(dict(run(path).content))
    for one in content["tasks"]:
        for name in ("asked", "ties", "worth", "cut", "overlong"):
            del one[name]
    found = run(path, against=EvaluationResult(content))
    assert told(found, "not known") == [
        "whether own_choice was asked in the same way is not known: the earlier result does not "
        "say by which prompts, examples and settings; evaluate that model again"
    ]
    assert told(found, "asked differently") == []


@pytest.mark.full
def test_only_the_beginning_of_an_answer_without_end_is_marked(folder, tmp_path):
    words = copy.deepcopy(tokenizer())
    words.add_tokens(["1" * 5000])
    endless = words.convert_tokens_to_ids("1" * 5000)
    model = candidate(512, vocab_size=len(words)).model
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.get_input_embeddings().weight.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
        model.get_output_embeddings().weight[endless] = 1.0
    path = folder / "own_written.yaml"
    found = run(path, model=model, words=words, limit=2, out=tmp_path / "out")
    arm, task = found.content["arms"][0]["arm"], tasks(found)
    assert task["overlong"] == 2
    assert told(found, "longer than") == [
        f"{arm}: own_written: 2 of 2 answers are longer than 1,024 characters and 16 for each "
        "token that they may have; what lies beyond is not marked"
    ]
    lines = (tmp_path / "out" / task["samples"]).read_text("utf-8").splitlines()
    marked = [json.loads(line)["responses"][0] for line in lines]
    assert [len(one) for one in marked] == [1024 + 16 * 6] * 2 and set(marked[0]) == {"1"}
    plain = run(path, limit=2)
    assert tasks(plain)["overlong"] == 0 and told(plain, "longer than") == []
