"""Any task of lm-eval by its file: the scores are lm-eval's own, and strangers' code is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.system.untrusted.trust import trust
from tests.evaluation.candidate import candidate, tokenizer

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.description import describe_task
from layerlab.evaluation.lm_eval_tasks.load import load_named
from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, GROUP, KINDS, folder, run, write
from tests.support.refused import refusal, refuses

__all__ = ["folder"]


def of_lm_eval(home: Path, names: list[str]) -> Any:
    """What lm-eval says of the same tasks and model, with nothing of ours."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from layerlab.system.logs import hush

    model: Any = candidate(512).model
    with hush():
        manager = TaskManager(include_path=str(home), include_defaults=False)
        engine = HFLM(pretrained=model, tokenizer=tokenizer())
        return evaluate(engine, manager.load(names), bootstrap_iters=10)


@pytest.mark.full
def test_scores_and_standard_errors_are_those_of_lm_eval(folder):
    choice = folder / "own_choice.yaml"
    choice.write_text(choice.read_text() + "  - {metric: acc_norm}\n", encoding="utf-8")
    found = run([folder / f"{name}.yaml" for name in KINDS])
    theirs = of_lm_eval(folder, list(KINDS))["results"]
    rows = {(row.task, row.metric): row for row in found.frame("tasks").itertuples()}
    assert len(rows) == 2 + 2 + 2 + 2
    for (task, metric), row in rows.items():
        name, _, kind = metric.partition(",")
        kind = kind or "none"
        assert row.value == pytest.approx(theirs[task][f"{name},{kind}"], rel=1e-4), (task, metric)
        if name in ("acc", "acc_norm", "exact_match"):
            assert row.error == pytest.approx(theirs[task][f"{name}_stderr,{kind}"])
    assert rows["own_choice", "acc"].value != rows["own_choice", "acc_norm"].value
    assert {metric for task, metric in rows if task == "own_written"} == {
        "exact_match,strict",
        "exact_match,loose",
    }
    assert found.score("own_choice") == rows["own_choice", "acc"].value


@pytest.mark.full
def test_both_accuracies_are_given_where_a_task_lists_one(folder):
    found = run(folder / "own_choice.yaml")
    (task,) = found.content["tasks"]
    assert [row["metric"] for row in task["measured"]] == ["acc", "acc_norm"]
    assert task["chance"] == pytest.approx((4 * 0.5 + 4 / 3 + 4 * 0.5) / 12)
    assert task["guesses"] == [[pytest.approx(1 / 3), 4], [0.5, 8]]
    said = found.summary(120)
    assert "acc_norm" in said and "own_choice" in said and "few-shot" in said


@pytest.mark.full
def test_questions_and_examples_are_as_declared_or_as_typed(folder):
    found = run(folder / "own_choice.yaml", shots=2, limit=3)
    (task,) = found.content["tasks"]
    assert task["n"] == 3 and task["shots"]["asked"] == 2
    with pytest.raises(UserError, match="own_choice has 12 examples, and 99 were asked for"):
        run(folder / "own_choice.yaml", shots=99)


@pytest.mark.full
@pytest.mark.parametrize("weighted", [True, False])
def test_a_group_is_averaged_as_its_file_says(folder, weighted):
    (folder / "own_group.yaml").write_text(GROUP % str(weighted).lower(), encoding="utf-8")
    found = run(folder / "own_group.yaml")
    (row,) = found.content["task_groups"]
    theirs = of_lm_eval(folder, ["own_group"])["groups"]["own_group"]
    assert row["score"] == pytest.approx(theirs["acc,none"])
    assert row["complete"] and row["n"] == 17 and row["metric"] == "acc"
    assert {task["task"] for task in found.content["tasks"]} == {"own_choice", "own_more"}
    assert all(task["groups"] == ["own_group"] for task in found.content["tasks"])
    assert "own_group" in found.summary(120)


@pytest.mark.full
@pytest.mark.parametrize(("named", "kinds"), [("", ["strict", "loose"]), ("loose", ["loose"])])
def test_a_group_of_tasks_with_several_filters_is_averaged_by_each_or_the_one_named(
    folder, named, kinds
):
    group = GROUP.replace("own_group", "own_both").replace("acc", "exact_match") % "false"
    group = group.replace("own_choice, own_more", "own_written, own_again")
    if named:
        group = group.replace("}]", f", filter_list: {named}}}]")
    (folder / "own_both.yaml").write_text(group, encoding="utf-8")
    write(folder, "own_again", KINDS["own_written"], 5)
    rows = run(folder / "own_both.yaml").content["task_groups"]
    theirs = of_lm_eval(folder, ["own_both"])["groups"]["own_both"]
    assert [row["metric"] for row in rows] == [f"exact_match,{kind}" for kind in kinds]
    for row in rows:
        assert row["score"] == pytest.approx(theirs[row["metric"]]) and row["complete"]
    assert sum(name.startswith("exact_match,") for name in theirs) == len(kinds)


@pytest.mark.full
def test_what_was_asked_is_kept_and_compared(folder, tmp_path):
    from layerlab.evaluation.results.result import load_result

    out = tmp_path / "out"
    first = run([folder / f"{name}.yaml" for name in KINDS], out=out)
    again = run([folder / f"{name}.yaml" for name in KINDS], out=out, batch_size=3)
    assert again.content["tasks"] == first.content["tasks"]
    assert load_result(out).content["tasks"] == first.content["tasks"]
    page = (out / "report.html").read_text("utf-8")
    assert "own_choice (acc_norm)" in page and "Tasks of lm-eval" in page
    assert "not above chance" in page
    other = run(folder / "own_choice.yaml", model=candidate(512, initializer_range=0.5).model)
    compared = run(folder / "own_choice.yaml", against=other)
    (row,) = compared.content["compared"]
    assert row["title"] == "own_choice"
    expected = first.score("own_choice") - other.score("own_choice")
    assert row["difference"] == pytest.approx(expected)
    costs = run(folder / "own_choice.yaml", format="int4", limit=3).content["precision"]
    assert "own_choice" in [one.get("title") for one in costs]


@pytest.mark.full
def test_a_question_that_does_not_fit_counts_as_wrong_in_every_accuracy(folder):
    found = run(folder / "own_choice.yaml", model=candidate(18).model)
    (task,) = found.content["tasks"]
    assert task["shots"]["unfit"] > 0 and task["abstained"] > 0
    assert all(row["value"] <= 1 - task["abstained"] + 1e-9 for row in task["measured"])
    (read,) = run(folder / "own_last.yaml", model=candidate(10).model).content["tasks"]
    assert {row["metric"]: row["value"] for row in read["measured"]}["perplexity"] is None


@pytest.mark.full
def test_code_of_a_stranger_runs_only_where_it_was_asked_for(folder, tmp_path):
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef same(docs): return docs\n"
    )
    path = write(folder, "own_evil", CHOICE, more="process_docs: !function evil.same\n")
    assert refusal(run, path) == (
        f"the task file {path} runs code (process_docs: !function evil.same), and nothing runs "
        "unasked; read it, and where you trust it type trust_tasks=True, or "
        "--trust-recipe where a recipe names the task"
    )
    (folder / "outer.yaml").write_text("include: own_evil.yaml\ntask: outer\n")
    (folder / "group.yaml").write_text("group: outer_group\ntask: [own_evil]\n")
    for other in ("outer.yaml", "group.yaml"):
        refuses("nothing runs unasked", run, folder / other)
    assert not mark.exists()
    trusted, plain = run(path, trust_tasks=True), run(folder / "own_choice.yaml")
    assert trusted.score("own_evil") == plain.score("own_choice")
    assert trusted.content["request"]["trust_tasks"]
    assert "trust_tasks" not in plain.content["request"]
    assert mark.exists()


@pytest.mark.full
def test_a_task_is_another_one_once_what_its_function_calls_changes(folder):
    source = "def keep(docs): return docs\ndef same(docs): return keep(docs)\n"
    (folder / "called.py").write_text(source)
    path = write(folder, "own_called", CHOICE, more="process_docs: !function called.same\n")

    def described() -> str:
        with trust(False, trust_tasks=True):
            ((one,), _) = load_named(str(path))
        return describe_task(one.task)

    before = described()
    assert described() == before
    (folder / "called.py").write_text(source.replace("return docs", "return docs  # all", 1))
    assert described() != before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("doc_to_text: \"{{''.__class__.__mro__}}\"\n", "of a task cannot be filled in: "),
        ("doc_to_text: \"{{'x'|center(3000000000)}}\"\n", "takes over 1 GiB for one question"),
        ("doc_to_choice: \"{{'[' * 300}}\"\n", "lm-eval cannot load it: "),
        ("depth: 3\n", "lm-eval cannot load it: TypeError"),
        ("test_split: none\n", "has no split 'none', which its line test_split: names; name one"),
        ("fewshot_split: dev\n", "has no split 'dev', which its line fewshot_split: names"),
        ("dataset_path: owner/none\n", "cannot get owner/none from the Hub: HF_HUB_OFFLINE is set"),
        ("output_type: riddle\n", "lm-eval cannot load it: ValueError"),
        ("doc_to_image: number\n", "it shows images or sounds, which no text model takes"),
    ],
)
def test_a_task_that_cannot_be_asked_is_one_line(folder, more, said):
    name = more.partition(":")[0]
    lines = (line for line in CHOICE.splitlines() if not line.startswith(f"{name}:"))
    path = write(folder, "own_broken", "\n".join(lines), more="\n" + more)
    assert said in refusal(run, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lm-eval cannot load it: a file of its data holds no rows"),
        ('{"number": 1}\n{"number"', "lm-eval cannot load it: ArrowInvalid: JSON parse error"),
    ],
)
def test_data_that_cannot_be_read_is_told_by_what_is_wrong_with_it(folder, text, said):
    path = write(folder, "own_unread", CHOICE)
    (folder / "own_unread.jsonl").write_text(text, encoding="utf-8")
    assert said in refusal(run, path)


def test_a_question_is_no_example_of_its_own(folder):
    path = write(folder, "own_shared", CHOICE)
    text = path.read_text("utf-8").replace("fewshot_split: train", "fewshot_split: test")
    path.write_text(text, encoding="utf-8")
    # Each of the twelve questions stands there twice.
    assert "own_shared has 10 examples, and 11 were asked for" in refusal(run, path, shots=11)
    assert run(path, shots=10, limit=1).content["tasks"][0]["shots"]["asked"] == 10


def test_a_broken_question_further_down_is_one_line_too(folder):
    body = CHOICE.replace("{{number}}?", "{{1 // (right + 1 - 1)}}?")
    refuses("cannot be filled in: ", run, write(folder, "own_late", body, 40))


@pytest.mark.full
def test_options_that_are_none_further_down_are_one_line_too(folder):
    choices = "doc_to_choice: \"{{options if number == ' one' else '['}}\""
    path = write(folder, "own_late", CHOICE.replace("doc_to_choice: options", choices))
    refuses(r"lm-eval cannot ask it: SyntaxError: .*; mend it, or name", run, path)


def test_other_questions_of_the_same_time_are_asked(folder):
    data = folder / "own_choice.jsonl"

    def asked() -> list[str]:
        os.utime(data, (10**9, 10**9))
        ((one,), _) = load_named(str(folder / "own_choice.yaml"))
        return [doc["number"] for doc in one.task.eval_docs]

    before = asked()
    lines = data.read_text("utf-8").splitlines(keepends=True)
    data.write_text("".join(lines[::-1]), encoding="utf-8")
    assert asked() == before[::-1] != before


@pytest.mark.full
@pytest.mark.parametrize("name", ["own_choice", "own_group"])
def test_two_files_of_one_name_are_not_taken_for_one(folder, name):
    other = folder / "other"
    for one in ("own_choice", "own_more"):
        write(other, one, CHOICE, 7 if one == "own_choice" else 5)
    (other / "own_group.yaml").write_text(GROUP % "true", encoding="utf-8")
    both = [folder / f"{name}.yaml", other / f"{name}.yaml"]
    assert refusal(run, both) == (
        f"tasks={str(both[1])!r}: 'own_choice' is the name of another task before it; give it a "
        "name of its own (its line task: or group:), or ask them one after the other"
    )
    again = run([both[0], both[0], folder / "own_choice.yaml"], limit=3)
    assert len(again.content["tasks"]) == (1 if name == "own_choice" else 2)


def test_two_groups_of_one_name_are_not_taken_for_one(folder):
    other = folder / "other.yaml"
    other.write_text(GROUP % "false", encoding="utf-8")
    with pytest.raises(UserError, match="'own_group' is the name of another task before it"):
        run([folder / "own_group.yaml", other])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("task: [{task: a, repeats: 1}, {task: a, repeats: 2}]", "tasks called 'a'"),
        ("task: [{group: b, task: [{task: a}, {task: a, repeats: 2}]}]", "tasks called 'a'"),
        ("metric_list: [{metric: acc}, {metric: acc, x: 1}]", "metrics called 'acc'"),
        ("filter_list: [{name: b, filter: []}, {name: b, filter: [c]}]", "filters called 'b'"),
    ],
)
def test_of_two_of_one_name_none_is_left_out_in_silence(folder, more, said):
    path = folder / "twice.yaml"
    path.write_text(f"group: twice\n{more}\n", "utf-8")
    assert refusal(run, path) == (
        f"the task file {path} declares two {said}, of which lm-eval keeps the last; leave one "
        "out, or give it another name"
    )


def test_a_group_without_a_task_is_refused(folder):
    path = folder / "bare.yaml"
    path.write_text("group: bare\ntask: []\n", "utf-8")
    refuses("the group lists no task; name one", run, path)


@pytest.mark.parametrize("words", ["", " , "])
def test_no_task_is_named(words):
    refuses(r"no task is named in .*; type for example tasks='arc_easy'", run, words or " ")


def test_a_task_of_lm_eval_by_name_whose_questions_are_on_the_hub():
    assert refusal(run, "arc_easy") == (
        "tasks arc_easy: its questions are not here: cannot get allenai/ai2_arc from the Hub: "
        "HF_HUB_OFFLINE is set, and no copy that is kept here can be read; fetch it once where "
        "there is a connection, or name a task file whose data is here (dataset_path: json)"
    )


def test_tasks_stand_beside_suites_and_are_asked_as_declared(folder):
    found = run(folder / "own_choice.yaml", scoring="gen")
    assert "own_choice: asked as lm-eval declares them" in found.content["remarks"]
    assert found.content["benchmarks"] == [] and found.content["suite"].endswith("own_choice.yaml")
