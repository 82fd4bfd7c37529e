"""No score depends on the batch: neither where padding is read, nor where a scale is shared."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from layerlab import Policy, apply_precision
from layerlab.loading.model import LoadedModel
from tests.evaluation.candidate import (
    CHOICE,
    LEAF,
    WRITTEN,
    candidate,
    question,
    task_folder,
    tokenizer,
    writings,
)
from tests.evaluation.shelf import run, shelf
from tests.families import recipe
from tests.loading.test_batching import LONGROPE

pytest.importorskip("lm_eval")

from layerlab.evaluation.harness.lm import HarnessModel
from layerlab.evaluation.harness.run_task import run_task
from layerlab.evaluation.harness.task_result import TaskResult
from layerlab.evaluation.lm_eval_tasks.load import load_tasks

__all__ = ["shelf"]
ROWS = [question(place, words=1 + 3 * place % 7) for place in range(15)]
# A hundred roundings of float32: another order of the sums, and never another text.
CLOSE = 100 * 2**-24


def family(name: str) -> LoadedModel:
    model = recipe.build(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.resize_token_embeddings(300, mean_resizing=False)
    return LoadedModel(name=name, source="memory", model=model, tokenizer=tokenizer())


def responses(subject: LoadedModel, folder: Path, batch: int) -> tuple[TaskResult, list[Any]]:
    task = load_tasks([str(folder / "own.yaml")])[LEAF]
    found = run_task(HarnessModel(subject, batch=batch, scoring="choice_ll"), task)
    return found, [answer for sample in found.samples for answer in sample["responses"]]


@pytest.mark.full
@pytest.mark.parametrize("name", ["rwkv", "bart", "pegasus", "trocr", "llama"])
def test_a_written_answer_is_that_of_the_prompt_alone(tmp_path, name):
    folder = task_folder(tmp_path, ROWS, shots=0, kind=WRITTEN)
    subject = family(name)
    alone, together = (responses(subject, folder, batch) for batch in (1, 8))
    assert together[1] == alone[1] and len({*map(str, alone[1])}) > 1
    assert together[0].scores == alone[0].scores


@pytest.mark.parametrize("name", ["longrope", "prophetnet", "reformer", "xlnet"])
def test_a_likelihood_is_that_of_the_text_alone(tmp_path, name):
    folder = task_folder(tmp_path, ROWS, shots=1, kind=CHOICE)
    subject = candidate(rope_parameters=LONGROPE) if name == "longrope" else family(name)
    alone, together = (responses(subject, folder, batch) for batch in (1, 8))
    for (one, _), (other, _) in zip(together[1], alone[1], strict=True):
        assert one == pytest.approx(other, rel=CLOSE)
    assert together[0].scores == alone[0].scores


@pytest.mark.full
def test_likelihoods_of_a_model_that_has_seen_the_answer_are_remarked_on(shelf):
    said = remarks(shelf, "later tokens", {name: family(name).model for name in ("xlnet", "llama")})
    assert len(said["xlnet"]) == 1 and not said["llama"]


@pytest.mark.full
def test_a_model_without_the_policy_that_it_was_saved_with_is_remarked_on(shelf):
    low = apply_precision(family("llama").model, Policy(format="bf16", keep=("lm_head",)))
    without = family("llama").model
    without.config.precision_policy = low.config.precision_policy
    said = remarks(shelf, "saved with a precision policy", {"with": low, "without": without})
    assert len(said["without"]) == 1 and not said["with"]


def remarks(shelf: Path, part: str, models: dict[str, Any]) -> dict[str, list[str]]:
    """The remarks of an evaluation of each model that hold some words."""
    found = {name: run(shelf, "boolq", model=one, limit=2) for name, one in models.items()}
    return {
        name: [one for one in each.content["remarks"] if part in one]
        for name, each in found.items()
    }


@pytest.mark.full
@pytest.mark.parametrize("format", ["int4", "nvfp4"])
def test_an_emulated_scale_is_that_of_one_question(shelf, tmp_path, format):
    found = {}
    for batch in (1, 8):
        out = tmp_path / str(batch)
        result = run(shelf, "boolq", format=format, batch_size=batch, out=out)
        said = [one for one in result.content["remarks"] if "run one at a time" in one]
        assert len(said) == (batch == 8)
        found[batch] = {one.name: answers(one) for one in (out / "samples").glob("*.jsonl")}
    assert len(found[1]) == 2 and found[8] == {
        name: pytest.approx(values, rel=CLOSE) for name, values in found[1].items()
    }


def answers(samples: Path) -> list[float]:
    rows = map(json.loads, samples.read_text("utf-8").splitlines())
    return [sum_ for row in rows for sum_, _ in row["responses"]]


@pytest.mark.parametrize("ends", ["model", "stop", "tokenizer"])
def test_an_answer_that_has_ended_is_not_watched_and_grows_no_longer(ends):
    """The batch goes on for another row, and nobody reads what it writes behind the end."""
    subject, passes = candidate(64), []
    words = subject.tokenizer
    if ends != "model":
        subject.model.generation_config.eos_token_id = None
    prompts = ["Which number? one", "Which number comes after? two"]
    last = words(prompts[0])["input_ids"][-1]
    end = words("\n")["input_ids"] if ends == "stop" else [words.eos_token_id]
    answers = {
        True: words("three")["input_ids"] + end,
        False: words("A. two B. three C. four")["input_ids"],
    }

    def steer(module: Any, args: Any, given: Any, found: Any) -> None:
        """Behind its end the first has alike logits, and then one that is no number."""
        ids = given["input_ids"]
        if ids.shape[1] > 1:
            passes.append([row[-1] == last for row in ids.tolist()])
        steps[0] = 0 if ids.shape[1] > 1 else steps[0] + 1
        for row, first in enumerate(passes[-1]):
            wanted, logits = answers[first], found.logits[row, -1]
            logits[:] = 0.0
            if steps[0] < len(wanted):
                logits[wanted[steps[0]]] = 9.0
            elif first and steps[0] > len(wanted):
                logits[5] = float("nan")

    steps = [0]
    subject.batching("left")
    engine = HarnessModel(subject, batch=4, scoring="gen")
    handle = subject.model.register_forward_hook(steer, with_kwargs=True)
    size = len(answers[False])
    assert size > len(answers[True]) + 2
    found = engine.generate_until(writings(prompts, size))
    handle.remove()
    assert found == ["three", "A. two B. three C. four"]
    assert engine.unsound == set() and len(passes) == 1
