"""The engine with what is ours around it: same scores, nothing cut, nothing said."""

import copy
import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from layerlab.evaluation.harness.fewshot import Shots
from layerlab.loading.model import LoadedModel
from tests.evaluation.candidate import (
    CHOICE,
    LEAF,
    WRITTEN,
    Writing,
    candidate,
    question,
    task_folder,
    with_begin,
    writings,
)

lm_eval = pytest.importorskip("lm_eval")

from layerlab.evaluation.harness.lm import HarnessModel  # noqa: E402
from layerlab.evaluation.harness.run_task import run_task  # noqa: E402
from layerlab.evaluation.harness.task_result import TaskResult  # noqa: E402
from layerlab.evaluation.lm_eval_tasks.description import describe_task  # noqa: E402
from layerlab.evaluation.lm_eval_tasks.load import load_tasks  # noqa: E402
from tests.support.refused import refusal, refuses  # noqa: E402


class Request(NamedTuple):
    """A text to be read whole."""

    doc_id: int
    args: tuple[str]


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    return [question(place, words=1 + place % 7) for place in range(25)]


@pytest.fixture
def folder(tmp_path: Path, rows: list[Any]) -> Path:
    return task_folder(tmp_path / "tasks", rows)


def loaded(folder: Path) -> Any:
    return load_tasks([str(folder / "own.yaml")])[LEAF]


def asked(
    subject: LoadedModel, folder: Path, scoring: str = "choice_ll", **options: Any
) -> TaskResult:
    return run_task(HarnessModel(subject, batch=4, scoring=scoring), loaded(folder), **options)


@pytest.fixture
def plain(folder: Path) -> Iterator[Any]:
    """`simple_evaluate` on the same folder, with nothing of ours."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)

    def run(subject: LoadedModel, **options: Any) -> Any:
        model: Any = subject.model
        engine = HFLM(pretrained=model, tokenizer=subject.tokenizer, batch_size=4)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        return simple_evaluate(
            model=engine, tasks=[LEAF], task_manager=manager, bootstrap_iters=0, **options
        )

    yield run
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("kind", "shots"), [("choice", 3), pytest.param("written", 0, marks=pytest.mark.full)]
)
def test_scores_are_those_of_plain_lm_eval(tmp_path, rows, plain, folder, shots, kind):
    if kind == "written":
        task_folder(folder, rows, kind=WRITTEN)
    subject = candidate(2048)
    ours, theirs = asked(subject, folder, shots=shots), plain(subject, num_fewshot=shots)
    assert ours.shots == Shots(asked=shots, mean=float(shots), least=shots)
    assert ours.metrics["score"] == theirs["results"][LEAF]["score,none"]
    samples = sorted(theirs["samples"][LEAF], key=lambda one: one["doc_id"])
    assert [one["score"] for one in samples] == list(ours.scores.values())
    assert [one["arguments"][0][0] for one in samples] == [one["prompt"] for one in ours.samples]
    for mine, sample in zip(ours.samples, samples, strict=True):
        for own, other in zip(mine["responses"], [one[0] for one in sample["resps"]], strict=True):
            if kind == "written":
                assert own == other
            else:  # float32 sums in another order
                assert own[0] == pytest.approx(other[0], abs=1e-3)


def test_the_same_twice(folder):
    first, second = asked(candidate(), folder), asked(candidate(), folder)
    assert first == second and first.samples == second.samples


@pytest.mark.full
def test_batches_change_no_score(folder):
    alone = run_task(HarnessModel(candidate(), batch=1, scoring="choice_ll"), loaded(folder))
    assert alone.scores == asked(candidate(), folder).scores


def test_examples_are_dropped_whole_and_counted(folder, rows):
    subject = candidate(80)
    found = asked(subject, folder, shots=5)
    assert found.shots.shortened == 20 and found.shots.unfit == 0
    assert 0 < found.shots.mean < 5
    examples = [f"{row['prompt']}{row['choices'][row['gold']]}\n\n" for row in rows[:5]]
    words = subject.tokenizer
    used = []
    for sample, row in zip(found.samples, rows[5:], strict=True):
        count = sample["prompt"].count("\n\n") - 1
        assert sample["prompt"] == f"Instruction.\n\n{''.join(examples[:count])}{row['prompt']}"
        assert len(words(f"{sample['prompt']} A")["input_ids"]) <= 81
        longer = f"Instruction.\n\n{''.join(examples[: count + 1])}{row['prompt']} A"
        assert count == 5 or len(words(longer)["input_ids"]) > 81
        used.append(count)
    assert found.shots == Shots(
        asked=5, mean=sum(used) / 20, least=min(used), shortened=20, unfit=0
    )


@pytest.mark.parametrize("scoring", ["choice_ll", "mean_nll"])
def test_a_question_that_never_fits_is_not_asked_and_counts_as_not_answered(tmp_path, scoring):
    rows = [question(place) for place in range(9)]
    rows[5] = question(3, words=200)  # the right option is the first
    folder = task_folder(tmp_path, rows, shots=0)
    found = asked(candidate(64), folder, scoring)
    assert found.shots == Shots(asked=0, unfit=1)
    assert next(iter(found.scores.values())) == 0.0
    assert len(found.scores) == 4
    assert found.metrics["score"] == sum(found.scores.values()) / 4


@pytest.mark.full
def test_a_written_answer_leaves_half_of_the_context_to_the_prompt(tmp_path):
    folder = task_folder(tmp_path, [question(place, words=1) for place in range(6)], kind=WRITTEN)
    text = (folder / "own.yaml").read_text("utf-8").replace("max_gen_toks: 8", "max_gen_toks: 512")
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    task = loaded(folder)
    found = run_task(HarnessModel(candidate(64), batch=2, scoring="gen"), task, shots=0)
    assert found.limited == 32 and found.chance is None
    assert task.config.generation_kwargs["max_gen_toks"] == 512
    assert (
        run_task(
            HarnessModel(candidate(2048), batch=2, scoring="gen"), task, shots=0, limit=1
        ).limited
        is None
    )


def test_the_mean_is_over_all_tokens_of_prompt_and_choice(folder, rows):
    subject = candidate(2048)
    found = asked(subject, folder, "mean_nll", shots=0, limit=3)
    words = subject.tokenizer
    for sample, row in zip(found.samples, rows[5:], strict=False):
        means = []
        for option in row["choices"]:
            ids = torch.tensor([words(f"Instruction.\n\n{row['prompt']}{option}")["input_ids"]])
            with torch.no_grad():
                scores = torch.log_softmax(subject.model(ids).logits[0, :-1], -1)
            total = scores.gather(-1, ids[0, 1:, None]).sum()
            means.append(float(total) / ids.shape[1])
        assert [one[0] for one in sample["responses"]] == pytest.approx(means, rel=1e-4)
        assert sample["score"] == float(means.index(max(means)) == row["gold"])


def test_options_of_different_length_are_scored_apart(tmp_path):
    rows = [question(place, options=(" two", " a great many numbers", " B")) for place in range(8)]
    folder = task_folder(tmp_path, rows, shots=0)
    subject = candidate(512)
    for share in (True, False):
        engine = HarnessModel(subject, batch=3, scoring="choice_ll", share=share)
        found = run_task(engine, loaded(folder))
        for sample in found.samples:
            assert len({one[0] for one in sample["responses"]}) == 3


CUT = (
    {"prompt": "Which number comes", "choices": [" after one?", " after two B"], "gold": 0},
    {"prompt": "Which number comes after", "choices": [" one?", " two B"], "gold": 0},
    {"prompt": "Which number comes after one?", "choices": [" A", " B"], "gold": 1},
)


@pytest.mark.parametrize("batch", [1, 4])
def test_no_question_is_scored_with_the_tokens_of_another(tmp_path, batch):
    """Prompts that go on alike and are cut at different places."""
    found = {}
    asked = {"all": CUT, "back": CUT[::-1], **{one["prompt"]: (one,) for one in CUT}}
    for name, rows in asked.items():
        folder = task_folder(tmp_path / name.strip("?"), [question(1)] * 5 + list(rows), shots=0)
        engine = HarnessModel(candidate(512), batch=batch, scoring="choice_ll")
        samples = run_task(engine, loaded(folder)).samples
        found[name] = [[one[0] for one in sample["responses"]] for sample in samples]
    alone = [found[one["prompt"]][0] for one in CUT]
    for together in (found["all"], found["back"][::-1]):
        for one, other in zip(together, alone, strict=True):
            assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.full
def test_no_prompt_is_read_as_another_begins(tmp_path):
    """One that names the begin token is given none, and those beside it are."""
    subject = candidate(512)
    subject.tokenizer = with_begin()
    bos = subject.tokenizer.bos_token
    rows = [question(place, words=1 + place % 3) for place in range(9)]
    rows[6]["prompt"] = f"{bos}{rows[6]['prompt']} one two"  # the longest, and so the first
    folder = task_folder(tmp_path, rows, shots=0, kind=WRITTEN)
    (folder / "own.yaml").write_text(
        (folder / "own.yaml").read_text("utf-8").replace('description: "Instruction.\\n\\n"', ""),
        encoding="utf-8",
    )
    found = {}
    for batch in (1, 4):
        engine = HarnessModel(subject, batch=batch, scoring="gen")
        found[batch] = run_task(engine, loaded(folder)).samples
    assert found[4] == found[1]


@pytest.mark.parametrize("begins", [False, True])
def test_a_whole_text_is_scored_by_its_own_tokens(tmp_path, begins):
    """After one token before it, also in windows; lm-eval would count P(BOS | BOS) too."""
    subject = candidate(16)
    subject.tokenizer = words = with_begin() if begins else subject.tokenizer
    engine = HarnessModel(subject, batch=4, scoring="loglikelihood_rolling")
    texts = ["Which number comes after one?", "two B. " * 12, "three", ""]
    asked = [Request(place, (text,)) for place, text in enumerate(texts)]
    for text, given in zip(texts, engine.loglikelihood_rolling(asked), strict=True):
        ids = words(text, add_special_tokens=False)["input_ids"]
        total = 0.0
        for start in range(0, len(ids), 16):
            wanted = ids[start : start + 16]
            end = start + len(wanted)
            read = [engine.prefix_token_id, *ids][max(0, end - 16) : end]
            with torch.no_grad():
                logits = subject.model(torch.tensor([read])).logits[0, -len(wanted) :]
            scores = torch.log_softmax(logits, -1)
            total += sum(float(scores[place, token]) for place, token in enumerate(wanted))
        assert given == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("beams", [1, 2])
def test_an_empty_answer_is_one_beside_a_row_that_breaks(beams):
    subject = candidate(64)
    words = subject.tokenizer
    prompts = ["Which number? one", "Which number? two", "Which number comes after? three"]
    last = [words(one)["input_ids"] for one in prompts]

    def spoil(module: Any, args: Any, given: Any, found: Any) -> None:
        """The first has no number, and the second ends at once."""
        for row, ids in enumerate(given["input_ids"].tolist()):
            if ids[-len(last[0]) :] == last[0]:
                found.logits[row, -1, 5] = float("nan")
            if ids[-len(last[1]) :] == last[1]:
                found.logits[row, -1, 0] = 1e4

    handle = subject.model.register_forward_hook(spoil, with_kwargs=True)
    engine = HarnessModel(subject, batch=4, scoring="gen")
    answers = engine.generate_until(writings(prompts, 8, num_beams=beams))
    handle.remove()
    assert answers[0] == answers[1] == "" != answers[2]
    assert engine.unsound == {0}


def test_an_answer_that_is_written_again_alone_is_watched_too():
    """Beside another its best tokens are alike; by itself a logit is no number."""
    subject, sizes = candidate(64), set[int]()
    assert subject.tokenizer is not None
    prompts = ("Which number? one", "Which number? two")
    own = subject.tokenizer(prompts[0])["input_ids"]

    def spoil(module: Any, args: Any, given: Any, found: Any) -> None:
        rows = given["input_ids"].tolist()
        for row, ids in enumerate(rows):
            if ids[-len(own) :] == own:
                sizes.add(len(rows))
                found.logits[row, -1] = 0.0
                found.logits[row, -1, 5] = 0.0 if len(rows) > 1 else float("nan")

    handle = subject.model.register_forward_hook(spoil, with_kwargs=True)
    engine = HarnessModel(subject, batch=4, scoring="gen")
    told: list[int] = []
    engine.step = told.append
    answers = engine.generate_until(writings(prompts, 8))
    handle.remove()
    assert sizes == {1, 2} and engine.unsound == {0} and answers[0] == ""
    assert told == [2]


def test_four_labels_take_one_pass(folder):
    engine = HarnessModel(candidate(512), batch=1, scoring="choice_ll")
    passes: list[int] = []
    engine.step = passes.append
    run_task(engine, loaded(folder), limit=7)
    assert len(passes) == 7


def test_nothing_is_said(folder, capfd):
    asked(candidate(), folder)
    assert capfd.readouterr() == ("", "")


def test_what_a_task_marks_by_its_own_python_has_no_chance(folder):
    found = asked(candidate(), folder, limit=4)
    assert found.chance is None and not found.guesses and not found.ties


def test_a_limit_takes_the_first_questions(folder):
    whole, few = asked(candidate(), folder), asked(candidate(), folder, limit=4)
    assert list(few.scores.items()) == list(whole.scores.items())[:4]


def test_a_description_changes_with_what_is_asked(folder, rows):
    before = describe_task(loaded(folder))
    assert describe_task(loaded(folder)) == before
    assert describe_task(loaded(folder), limit=2) != before
    changed = json.loads((folder / "rows.json").read_text("utf-8"))
    changed["dev"][0]["prompt"] += " "
    (folder / "rows.json").write_text(json.dumps(changed), encoding="utf-8")
    assert describe_task(loaded(folder)) != before


def test_more_examples_than_there_are(folder):
    assert refusal(asked, candidate(), folder, shots=6) == (
        "layerlab_own_a has 5 examples, and 6 were asked for; type --shots 5 or fewer"
    )


def test_fewer_examples_than_a_task_declares(folder):
    path = folder / "rows.json"
    kept = json.loads(path.read_text("utf-8"))
    kept["dev"] = kept["dev"][:1]
    path.write_text(json.dumps(kept), encoding="utf-8")
    assert refusal(asked, candidate(), folder).startswith("layerlab_own_a has 1 example, and ")


@pytest.mark.parametrize("kind", [CHOICE, WRITTEN], ids=["choice", "written"])
def test_a_tokenizer_of_another_model_is_named(tmp_path, rows, kind):
    """As `inspect` does, since the words are the same."""
    folder = task_folder(tmp_path / "tasks", rows, kind=kind)
    said = r"^a question holds token \d+, the vocabulary of tiny has 270 entries from 0; is it the"
    refuses(said, asked, candidate(vocab_size=270), folder)


@pytest.mark.full
def test_a_token_for_padding_needs_no_entry(tmp_path, rows):
    folder = task_folder(tmp_path / "tasks", rows, kind=WRITTEN)
    expected = asked(candidate(vocab_size=297), folder)
    subject = candidate(vocab_size=297)
    subject.tokenizer = copy.deepcopy(subject.tokenizer)
    assert subject.tokenizer is not None
    subject.tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert subject.tokenizer.pad_token_id == 297 == subject.entries
    assert asked(subject, folder).samples == expected.samples


def test_options_that_the_tokenizer_joins_to_the_prompt_are_told_apart():
    pieces = {piece: index for index, piece in enumerate(("x", ":", "A", "B", ":A", ":B"))}
    joined = Tokenizer(models.BPE(vocab=pieces, merges=[(":", "A"), (":", "B")]))
    words = PreTrainedTokenizerFast(tokenizer_object=joined, eos_token="x", pad_token="x")
    subject = dataclasses.replace(candidate(), tokenizer=words)
    engine = HarnessModel(subject, batch=1, scoring="choice_ll")
    options: list[Any] = [Writing(0, ("x:", one), "loglikelihood") for one in "AB"]
    after_x = subject.model(torch.tensor([[0]])).logits[0, 0].log_softmax(-1)
    found = [sum_ for sum_, _ in engine.loglikelihood(options)]
    assert found == pytest.approx(after_x[4:6].tolist())
