"""Answers of models, found and read as their programs write them; what is damaged is one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from layerlab.evaluation.paired.folders import find_evaluations
from tests.evaluation.paired.written_samples import DATE, sample, write, write_scores
from tests.support.refused import refusal, refuses

lm_eval = pytest.importorskip("lm_eval")


def judged(*places: Path, **given: Any) -> Any:
    return layerlab.judge(list(places), **given)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    for name, scores in (("base", [1, 0, 0, 0, 1, 0]), ("tuned", [1, 1, 1, 1, 0, 0])):
        write_scores(tmp_path / name / "model", scores)
    return [tmp_path / "base", tmp_path / "tuned"]


def test_a_folder_a_model_and_a_file_are_found(two):
    (row,) = judged(*two).rows
    assert (row["arm"], row["against"], row["task"]) == ("tuned", "base", "own")
    assert (row["gained"], row["lost"], row["n"]) == (3, 1, 6)
    (file,) = two[0].rglob("*.jsonl")
    (again,) = judged(file, two[1]).rows
    assert again["against"] == "model" and again["p"] == row["p"]


def test_a_folder_of_several_models_is_all_of_them(two):
    found = judged(two[0].parent)
    assert found.content["baseline"] == "base/model" and len(found.rows) == 1


def test_runs_that_were_evaluated_too_are_judged_by_their_logs(two):
    for at, place in enumerate(two):
        history = [{"step": 1, "eval_loss": 2.0 - at}]
        (place / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert find_evaluations([str(one) for one in two]) == []
    assert judged(*two).row("tuned")["difference"] == -1
    assert len(judged(*(one / "model" for one in two)).rows) == 1


@pytest.mark.parametrize("content", ['{"loss": 1}', "[]", "3", "{", ""])
def test_results_of_another_program_are_no_answers(content, two):
    (two[0] / "of another").mkdir()
    (two[0] / "of another" / "results.json").write_text(content)
    assert find_evaluations([str(two[0] / "of another")]) == []
    assert len(judged(*two).rows) == 1


def test_what_is_called_nearly_as_answers_are_is_passed_over(two):
    (two[0] / "model" / f"samples_law_{DATE}.jsonl").mkdir()
    (two[0] / "model" / "samples_.jsonl").write_text("{}")
    assert [row["task"] for row in judged(*two).rows] == ["own"]


def test_models_of_one_name_are_told_apart_by_their_paths(tmp_path):
    for name in ("a", "b"):
        write_scores(tmp_path / name / "model", [1, 0])
    places = [tmp_path / name / "model" for name in ("a", "b")]
    found = [one.name for one in find_evaluations([str(one) for one in places])]
    assert found == [str(one) for one in places]


def test_the_latest_of_two_dates_counts_and_that_is_said(two):
    later = "2026-01-03T00-00-00.000001"
    write(two[1] / "model", [sample(at, 1) for at in range(6)], date=later)
    found = judged(*two)
    assert found.rows[0]["gained"] == 4
    said = "tuned has several dates of own: the latest counts"
    assert said in found.content["remarks"]


def test_filters_are_metrics_of_their_own(tmp_path):
    for name in ("a", "b"):
        rows = [
            sample(at, float(at % 2 == (way == "strict")), "exact_match", filter=way)
            for way in ("strict", "loose")
            for at in range(4)
        ]
        write(tmp_path / name, rows)
    found = judged(tmp_path / "a", tmp_path / "b", metric="exact_match,loose")
    assert found.rows[0]["score"] == 0.5 and found.rows[0]["verdict"] == "identical"
    with pytest.raises(UserError, match="has no 'f1' of each question, which metric= names"):
        judged(tmp_path / "a", tmp_path / "b", metric="f1")


def test_of_several_filters_one_is_compared_whatever_their_order_and_that_is_said(tmp_path):
    said = "compared by exact_match,loose, and not by exact_match,strict (--metric): own"
    for number, order in enumerate((("strict", "loose"), ("loose", "strict"))):
        for name in ("a", "b"):
            rows = [
                sample(at, float((at % 2 == (way == "strict")) == (name == "a")), **kept)
                for way in order
                for kept in [{"metric": "exact_match", "filter": way}]
                for at in range(4)
            ]
            write(tmp_path / f"{name}{number}", rows)
        found = judged(*(tmp_path / f"{name}{number}" for name in ("a", "b")))
        assert found.rows[0]["metric"] == "exact_match,loose"
        assert said in found.content["remarks"]
    named = judged(tmp_path / "a0", tmp_path / "b0", metric="exact_match,strict")
    assert not any("compared by" in one for one in named.content["remarks"])


def test_less_is_better_where_the_results_say_so(tmp_path):
    for name, score in (("a", 0.5), ("b", 0.25)):
        rows = [sample(at, score + at / 100 + (at % 3) / 1000, "off") for at in range(9)]
        rows = [{**one, "off": one["off"] * (1 + (name == "b") / 7)} for one in rows]
        write(tmp_path / name, rows)
        told = {"higher_is_better": {"own": {"off": False}}}
        (tmp_path / name / f"results_{DATE}.json").write_text(json.dumps(told))
    (row,) = judged(tmp_path / "a", tmp_path / "b").rows
    assert row["difference"] < 0 and row["verdict"] == "better" and not row["share"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_what_lm_eval_writes_is_read(tmp_path, monkeypatch):
    """Two tiny models, through lm-eval itself, its --log_samples and its --output_path."""
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from tests.evaluation.candidate import candidate, tokenizer
    from tests.evaluation.lm_eval_tasks.own_tasks import CHOICE, WRITTEN
    from tests.evaluation.lm_eval_tasks.own_tasks import write as write_task

    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    write_task(tmp_path / "tasks", "own_choice", CHOICE, 12)
    write_task(tmp_path / "tasks", "own_written", WRITTEN, 5)
    group = "group: own_both\ntask:\n  - own_choice\n  - own_written\n"
    (tmp_path / "tasks" / "own_both.yaml").write_text(group)
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    scores = {}
    for name, width in (("small", 32), ("wide", 64)):
        tracker = EvaluationTracker(output_path=str(tmp_path / name))
        found = lm_eval.simple_evaluate(
            HFLM(candidate(512, hidden_size=width).model, tokenizer=tokenizer(), batch_size=4),
            tasks=["own_both"],
            task_manager=manager,
            bootstrap_iters=0,
            log_samples=True,
            evaluation_tracker=tracker,
        )
        samples = found.pop("samples")
        tracker.save_results_aggregated(results=found, samples=samples)
        for task, rows in samples.items():
            tracker.save_results_samples(task_name=task, samples=rows)
        scores[name] = found["results"]["own_choice"]["acc,none"]
    result = judged(tmp_path / "small", tmp_path / "wide")
    rows = {row["task"]: row for row in result.rows}
    assert set(rows) == {"own_choice", "own_written", "all questions", "mean of tasks"}
    row = rows["own_choice"]
    assert (row["score"], row["against_score"]) == pytest.approx((scores["wide"], scores["small"]))
    assert row["n"] == 12 and row["metric"] == "acc"
    assert rows["own_written"]["metric"] == "exact_match,loose"
    assert "Which number comes after" in "".join(one["text"] for one in result.content["flipped"])
    for one in find_evaluations([str(tmp_path / "small"), str(tmp_path / "wide")]):
        assert one.groups == {"own_both": {"own_choice", "own_written"}}
    _judge_beside_ours(tmp_path)


def _judge_beside_ours(tmp_path: Path) -> None:
    """What lm-eval asked and what layerlab evaluate asked are the same questions."""
    from tests.evaluation.candidate import candidate, tokenizer

    tasks = ",".join(
        str(tmp_path / "tasks" / f"{name}.yaml") for name in ("own_choice", "own_written")
    )
    model = candidate(512, hidden_size=32).model
    layerlab.evaluate(
        model, tasks=tasks, tokenizer=tokenizer(), out=tmp_path / "ours", progress=False
    )
    found = judged(tmp_path / "small", tmp_path / "ours", metric=None)
    assert all(row["n"] for row in found.rows) and len(found.rows) == 4
    said = "settings, which each tells in its own way, were not compared: own_choice, own_written"
    assert any(said in one for one in found.content["remarks"])


def change(path: Path, do: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(f"{one}\n" for one in do(path.read_text().splitlines())))


def in_row(**changes: Any) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[:2], json.dumps({**json.loads(lines[2]), **changes}), *lines[3:]]


def other_arguments(at: str, text: str) -> dict[str, Any]:
    given: dict[str, Any] = sample(2, 1)["arguments"]
    given["gen_args_0"][at] = text
    return given


BAD: dict[str, Callable[[list[str]], list[str]]] = {
    "holds question 1 a second time; keep one answer to each question": (
        lambda lines: [*lines, lines[1]]
    ),
    "is cut off or damaged": lambda lines: [*lines[:-1], lines[-1][:40]],
    "has no 'doc_id'; expected a line that lm-eval writes": lambda lines: ['{"loss": 1}'],
    "holds no answer; evaluate again": lambda lines: [],
    "acc of question 2 of own is nan in tuned": in_row(acc=float("nan")),
    "question 5 of own was asked of base and not of tuned, and so it is with 1 in all": (
        lambda lines: lines[:-1]
    ),
    "were not asked the same in question 2 of own: it is another question": in_row(doc={"a": 1}),
    "question 2 of own: its prompt is another": in_row(
        arguments=other_arguments("arg_0", "Say it again.")
    ),
    "question 2 of own: its options are others": in_row(
        arguments=other_arguments("arg_1", " maybe")
    ),
    "question 2 of own: its right answer is another": in_row(target="1"),
    "line 3 of {path} is not what an evaluation writes": in_row(arguments=3),
    "no task has a score of each question (own)": (
        lambda lines: [json.dumps({**json.loads(one), "acc": [1, 2]}) for one in lines]
    ),
}


@pytest.mark.parametrize("said", BAD)
def test_what_does_not_compare_is_one_line(said, two):
    (path,) = two[1].rglob("*.jsonl")
    change(path, BAD[said])
    assert said.format(path=path) in refusal(judged, *two)


ODD = (None, 3, "x", [], {}, [[]], {"a": {}}, [None], "\ud800", 10**400, {"b": [1]})
PLACES = ("doc", "arguments", "filtered_resps", "resps", "target", "metrics", "filter", "acc")


@pytest.mark.few(30)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_odd_values_are_read_or_are_one_line(place, odd, two):
    (path,) = two[1].rglob("*.jsonl")
    change(path, in_row(**{place: odd}))
    try:
        judged(*two, allow=["prompts"], out=two[0].parent / "out")
    except UserError as told:
        assert "\n" not in str(told)


def test_what_was_allowed_is_counted(two):
    (path,) = two[1].rglob("*.jsonl")
    change(path, in_row(arguments=other_arguments("arg_0", "Say it again.")))
    change(path, lambda lines: lines[:-2])
    write_scores(two[1] / "model", [1, 0], "more")
    found = judged(*two, allow=["prompts", "questions", "tasks"])
    assert found.rows[0]["n"] == 4
    assert {
        "other prompts at 1 questions were allowed: own",
        "questions that were asked of one model only, and do not count: 2 of own",
    } <= set(found.content["remarks"])
    change(path, in_row(target="1"))
    refuses("its right answer is another", judged, *two, allow=["prompts", "questions", "tasks"])


def test_samples_of_different_tasks_are_one_line(two, tmp_path):
    write_scores(tmp_path / "other", [1, 0], "another")
    with pytest.raises(UserError, match="no task was asked of all: base has own; other has anot"):
        judged(two[0], tmp_path / "other")
    write_scores(two[1] / "model", [1, 0], "more")
    refuses("tuned was asked more, and not all others were; type allow", judged, *two)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": "n"}, "seed says nothing of evaluations, which these are; leave it out"),
        ({"strict": True}, "strict says nothing of evaluations"),
        ({"allow": ["loss"]}, "allow is 'loss'; expected, of evaluations, prompts, questions"),
        ({"allow": ["prompt"]}, "allow is 'prompt'; did you mean 'prompts'?"),
        ({"baseline": "bas"}, "the baseline 'bas' is none of these evaluations; did you mean"),
        ({"cluster": ["questoin"]}, "no question has a field 'questoin', which cluster= names"),
        ({"cluster": ["passage", "none"]}, "cluster none takes each question by itself, and the"),
        ({"confidence": 2.0}, "confidence is 2; expected one between 0.5 and 1"),
    ],
)
def test_an_option_that_means_nothing_is_one_line(given, said, two):
    assert said in refusal(judged, *two, **given)


def test_paths_that_do_not_belong_together_are_one_line(two, tmp_path):
    (tmp_path / "empty").mkdir()
    refuses("holds no answers of an evaluation, and others do", judged, two[0], tmp_path / "empty")
    refuses("holds the answers of one model; name two or more", judged, two[0])
    refuses("are given twice; name each once", judged, two[0], two[0])
    (tmp_path / "log.csv").write_text("arm,seed,step,loss\na,1,1,2\nb,1,1,3\n")
    with pytest.raises(UserError, match="metric says nothing of logs, which these are"):
        judged(tmp_path / "log.csv", metric="acc")
