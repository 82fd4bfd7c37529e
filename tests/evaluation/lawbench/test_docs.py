"""LawBench through lm-eval itself, from the files of the package."""

import json
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")

from lm_eval.api.model import LM  # noqa: E402

from layerlab.evaluation.benchmarks.catalog import LAWBENCH  # noqa: E402
from layerlab.evaluation.harness.leaf import score_task  # noqa: E402
from layerlab.evaluation.harness.run_task import run_task  # noqa: E402
from layerlab.evaluation.lawbench.aggregate import corpus_f  # noqa: E402
from layerlab.evaluation.lawbench.tasks import TASKS  # noqa: E402
from layerlab.evaluation.metrics.edit_f import EditCount, edit_count  # noqa: E402
from layerlab.evaluation.metrics.estimates import Mean  # noqa: E402
from layerlab.evaluation.results.averages import official  # noqa: E402
from layerlab.system.logs import hush  # noqa: E402
from tests.evaluation.exported import managed  # noqa: E402


class Parrot(LM):  # type: ignore[misc]
    """Gives the same output to every prompt, and remembers what it was asked."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self.output, self.asked = output, list[tuple[str, dict[str, Any]]]()

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.asked += [one.args for one in requests]
        return [self.output] * len(requests)

    def loglikelihood(self, requests: list[Any]) -> list[Any]:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def run(
    output: str, task: str = "layerlab_lawbench", metadata: dict[str, Any] | None = None
) -> tuple[Parrot, dict[str, Any]]:
    model = Parrot(output)
    with hush():
        found = lm_eval.simple_evaluate(
            model,
            tasks=[task],
            num_fewshot=3,  # the tasks are declared without examples, and stay so
            task_manager=managed(**(metadata or {})),
            bootstrap_iters=0,
        )
    return model, found


@pytest.mark.full
def test_the_group_scores_as_the_tasks_do(home):
    output = "准予离婚 B 利息 赔偿 8500元 4个月 第264条"
    model, found = run(output)
    parts = {}
    for subject in LAWBENCH.subjects:
        name = LAWBENCH.leaf(subject)
        rows = found["samples"][name]
        marks = [TASKS[subject.name].score(output, one["doc"]) for one in rows]
        mean = sum(mark.score for mark in marks) / len(marks)
        if subject.name == "2-1":  # one F of all edits, and the mean of sentences beside it
            assert found["results"][name]["alone,none"] == pytest.approx(mean)
            mean = corpus_f([list(edits(one["doc"], output)) for one in rows])
        withheld = sum(mark.abstained for mark in marks) / len(marks)
        assert found["results"][name]["score,none"] == pytest.approx(mean)
        assert found["results"][name]["abstained,none"] == pytest.approx(withheld)
        parts[subject.name] = Mean(mean, None, len(marks))
    group = found["groups"]["layerlab_lawbench"]["score,none"]
    assert group == pytest.approx(official("lawbench", parts).mean.value)
    assert 0 < group < 1
    # Three of the forty rows are not scored, and the prompt is instruction and question alone.
    assert len(model.asked) == 37
    assert {prompt for prompt, _ in model.asked} == {f"请回答。\n指控实施清楚。{n}" for n in (0, 1)}
    assert {options["max_gen_toks"] for _, options in model.asked} == {1024}


def edits(doc: dict[str, str], output: str) -> EditCount:
    return edit_count(doc["question"], output, doc["answer"])


@pytest.mark.full
def test_layerlab_and_plain_lm_eval_agree_on_corrections(home):
    """Where one sentence is right and the other wrong, the mean of both is another number."""
    output, name = "指控事实清楚。0", "layerlab_lawbench_2_1"
    with hush():
        manager = managed()
        (task,) = manager.load([name])["tasks"].values()
        model = Parrot(output)
        model.__dict__.update(
            max_length=4096, unfit=set(), unsound=set(), overlong=set(), fits=lambda *asked: True
        )
        model.__dict__.update(near=None, rows=1)
    ours = run_task(model, task)  # type: ignore[arg-type]
    _, plain = run(output, name)
    theirs = plain["results"][name]
    assert score_task(ours).value == pytest.approx(theirs["score,none"], abs=1e-15)
    assert ours.metrics["score"] == theirs["score,none"]
    assert ours.metrics["alone"] == pytest.approx(theirs["alone,none"])
    assert sum(ours.scores.values()) / 2 == pytest.approx(theirs["alone,none"])
    assert theirs["score,none"] != pytest.approx(theirs["alone,none"], abs=0.01)


@pytest.mark.full
def test_one_shot_by_metadata(home):
    model, _ = run("", "layerlab_lawbench_1_1", {"shots": 1})
    assert {prompt.split("\n")[0] for prompt, _ in model.asked} == {"请回答。例子：甲。"}


@pytest.mark.full
def test_every_leaf_says_what_it_is(home):
    manager = managed()
    with hush():
        tasks = manager.load(["layerlab_lawbench"])["tasks"]
    assert list(tasks) == [LAWBENCH.leaf(subject) for subject in LAWBENCH.subjects]
    for subject in LAWBENCH.subjects:
        told = tasks[LAWBENCH.leaf(subject)].config.metadata
        assert told["subject"] == subject.name
        assert (told["benchmark"], told["level"]) == ("lawbench", subject.category)
        assert told["kind"] == TASKS[subject.name].kind
    assert json.dumps(sorted(TASKS)) == json.dumps(sorted(one.name for one in LAWBENCH.subjects))
