"""A leaf task put to a model: its questions, their scores, and what is known of its examples."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.harness.fewshot import fit_examples, sum_up
from layerlab.evaluation.harness.lm import MEAN_NLL, HarnessModel
from layerlab.evaluation.harness.task_result import (
    ABSTAINED,
    CHOICES,
    PER_TEXT,
    ROLLING,
    TaskResult,
    count_chances,
    is_mean,
    is_number,
    is_ours,
    merge_filters,
    worth_name,
)
from layerlab.evaluation.lm_eval_tasks.engine import evaluate
from layerlab.evaluation.lm_eval_tasks.right_answers import find_place, marks_choices
from layerlab.evaluation.lm_eval_tasks.templates import sandbox_templates
from layerlab.evaluation.metrics.mark import answer_limit
from layerlab.evaluation.tasks.scoring import list_likeliest
from layerlab.system.logs import hush
from layerlab.system.untrusted.trust import allows_tasks
from layerlab.tokenization import load
from layerlab.tokenization.round_trip import RoundTrip


def run_task(
    engine: HarnessModel,
    task: Any,
    *,
    shots: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    chat: bool = False,
) -> TaskResult:
    """Put the questions of a leaf task to a model.

    Args:
        shots: examples before each question; as the task declares where they are left out.
        limit: only the first so many questions.
        seed: of the examples, where the task draws them.
        chat: prompts as the tokenizer's chat template has them.

    Raises:
        UserError: the task has fewer examples than were asked for.
    """
    asked = _examples(task, shots)
    limited = _limit_length(task, engine.max_length)
    with hush(), sandbox_templates(), _set(task, asked, seed, limited):
        with fit_examples(task, engine.fits) as used:
            found = evaluate(
                engine,
                {"tasks": {task.task_name: task}, "groups": {}},
                limit=limit,
                bootstrap_iters=0,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
                confirm_run_unsafe_code=allows_tasks(),
            )
        samples = merge_filters(found["samples"][task.task_name])
        ours = is_ours(task)
        # Python of a task's own marks in a way that is not known here, as by shares of probability.
        chosen = task.get_config("output_type") == CHOICES and (ours or marks_choices(task))
        ties = _find_ties(task, samples, engine) if chosen else {}
    metrics = _metrics(task, samples, found["results"][task.task_name], engine)
    beyond = [name for name, value in metrics.items() if value == math.inf]
    metrics |= dict.fromkeys(beyond)
    if task.get_config("output_type") == ROLLING and _loses_text(samples, engine.tokenizer):
        metrics |= {name: None for name in metrics if name.partition(",")[0] in PER_TEXT}
    worth = worth_name(
        samples[0], (one for one in samples[0]["metrics"] if not ours or one != ABSTAINED)
    )
    guesses = count_chances(samples, ours=ours) if chosen else []
    return TaskResult(
        scores={
            _key(one): float(one[worth]) for one in samples if worth and is_number(one.get(worth))
        },
        abstained=fmean(_count_withheld(one, task, engine) for one in samples),
        metrics=metrics,
        chance=sum(chance * count for chance, count in guesses) / len(samples) if chosen else None,
        guesses=guesses,
        shots=sum_up(asked, used, len(engine.unfit)),
        limited=limited,
        unsound=len(engine.unsound),
        worth=worth,
        ties=ties,
        overlong=len(engine.overlong),
        near=None if engine.near is None else len(engine.near),
        batch=engine.rows,
        beyond=beyond,
        cut={
            _key(one): -1 if one["doc_id"] in engine.unfit else number
            for one, number in zip(samples, used, strict=False)
            if number < asked or one["doc_id"] in engine.unfit
        },
        samples=[_brief(one) for one in samples],
    )


def _key(sample: Mapping[str, Any]) -> str:
    return f"{sample['doc_id']}:{sample['doc_hash'][:12]}"


def _metrics(
    task: Any, samples: Sequence[dict[str, Any]], scores: Mapping[str, Any], engine: HarnessModel
) -> dict[str, float | None]:
    """Return the metrics of a task, with 0 for questions that have no answer.

    One that is no mean cannot be told without them: it is None.
    """
    names = list(samples[0]["metrics"])
    plain = {
        (name if name in names else name.partition(",")[0]): float(value)
        for name, value in scores.items()
        if isinstance(value, int | float) and "_stderr" not in name and "," in name
    }
    missing = engine.unfit | engine.unsound
    means = [name for name, value in plain.items() if is_mean(samples, name, value)]
    gained = [name for name in means if task.higher_is_better().get(name.partition(",")[0], True)]
    for one in samples:
        if one["doc_id"] in missing:
            one.update(dict.fromkeys(gained, 0.0))
            one |= {ABSTAINED: 1.0} if is_ours(task) else {}
    found: dict[str, float | None] = {}
    for name, value in plain.items():
        values = [one[name] for one in samples] if name in means else []
        found[name] = fmean(values) if values else None if missing else value
    return found


def _loses_text(samples: Sequence[Mapping[str, Any]], tokenizer: Any) -> bool:
    """Return whether a text does not come back from its tokens."""
    machine = load.engine(tokenizer)
    trip = RoundTrip(machine)
    texts = (str(one["arguments"][0][0]) for one in samples)
    return any(
        trip.loss(text, machine.encode(text, add_special_tokens=False).ids) for text in texts
    )


def _find_ties(
    task: Any, samples: Sequence[Mapping[str, Any]], engine: HarnessModel
) -> dict[str, dict[str, float]]:
    """Find where several options cannot be told from the likeliest, by metric and question.

    Returns:
        The share of right options among them: what whoever draws one of them is worth.
    """
    found: dict[str, dict[str, float]] = {}
    missing = engine.unfit | engine.unsound
    for one in samples:
        if one["doc_id"] in missing:
            continue
        choices = task.doc_to_choice(one["doc"])
        sums = [float(answers[0][0]) for answers in one["resps"]][: len(choices)]
        right = _right_places(task, one, choices)
        for name, lengths in _lengths(task, choices, engine.scoring).items():
            tied = list_likeliest(sums, lengths, unit=engine.unit)
            if len(tied) > 1:
                shares = found.setdefault(name, {})
                shares[_key(one)] = len(right & set(tied)) / len(tied)
    return found


def _right_places(task: Any, sample: Mapping[str, Any], choices: Sequence[str]) -> set[int]:
    """Return the places of the right options of a question, as lm-eval or our marks read them."""
    if is_ours(task):
        return set(sample["doc"]["gold"])
    target = task.doc_to_text(sample["doc"]) if task.multiple_input else sample["target"]
    return {
        index
        for one in (target if isinstance(target, list) else [target])
        if (index := find_place(one, choices)) is not None
    }


def _lengths(task: Any, choices: Sequence[str], scoring: str) -> dict[str, list[int] | None]:
    """Return what each accuracy of a task divides likelihoods by; None by nothing."""
    if is_ours(task):
        normalized = {"acc_norm": [max(1, len(one.lstrip())) for one in choices]}
        return {"score": None, **(normalized if scoring != MEAN_NLL else {})}
    lengths = [len(one) for one in choices]
    given = {"acc": None, **({"acc_norm": lengths} if all(lengths) else {})}
    return {name: by for name, by in given.items() if name in task._metric_fn_list}


def _count_withheld(sample: Mapping[str, Any], task: Any, engine: HarnessModel) -> float:
    """Return 1 where a question was left without an answer, else 0."""
    if sample["doc_id"] in engine.unfit | engine.unsound:
        return 1.0
    if is_ours(task) and ABSTAINED in sample:
        return float(sample[ABSTAINED])
    if task.get_config("output_type") != "generate_until":
        return 0.0
    return float(not any(str(text).strip() for one in sample["resps"] for text in one))


def _examples(task: Any, shots: int | None) -> int:
    """Return how many examples to show; refuse more than the task has."""
    sampler = getattr(task, "sampler", None)
    asked = int(task.get_config("num_fewshot") or 0) if shots is None else shots
    if sampler is None:
        return asked if shots is None else 0
    have = len(sampler.df)
    if asked and task.fewshot_cfg.split == task.config.test_split:
        # Where examples are questions too, none is its own, nor another copy of it.
        have -= max(Counter(map(repr, sampler.fewshot_docs())).values(), default=0)
    if asked > have:
        raise UserError(
            f"{task.task_name} has {have} example{'s' * (have != 1)}, and {asked} were asked for; "
            f"type --shots {have} or fewer"
        )
    return asked


def _limit_length(task: Any, context: int) -> int | None:
    """Return half of the context as the limit of an answer, where the task would allow more."""
    if task.get_config("output_type") != "generate_until":
        return None
    most = max(1, context // 2)
    return most if answer_limit(task.config.generation_kwargs or {}) > most else None


@contextmanager
def _set(task: Any, shots: int, seed: int, limited: int | None) -> Iterator[None]:
    """Set a task as it is run now, and restore its declared settings afterwards."""
    names = ("num_fewshot", "generation_kwargs")
    before = {name: task.get_config(name) for name in names}
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(seed)
    if limited is not None:
        options = {**(before["generation_kwargs"] or {}), "max_gen_toks": limited}
        task.set_config("generation_kwargs", options)
    sums = task._aggregation_list
    task._aggregation_list = {name: _bound(one) for name, one in sums.items()}
    try:
        yield
    finally:
        for name, value in before.items():
            task.set_config(name, value)
        task._aggregation_list = sums
        task._instances = None


def _bound(aggregate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a metric be infinite that is larger than any number here, as exp(1000)."""

    def run(items: Any) -> Any:
        try:
            return aggregate(items)
        except OverflowError:
            return math.inf

    return run


def _brief(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as it is kept, with its prompt once and not once per option."""
    arguments, metrics = sample["arguments"], sample["metrics"]
    return {
        "doc_id": sample["doc_id"],
        "prompt": arguments[0][0],
        "options": [str(one[1]) for one in arguments] if len(arguments) > 1 else [],
        "responses": [one[0] for one in sample["resps"]],
        "target": sample["target"],
        **{name: sample[name] for name in metrics},
        "doc": sample["doc"],
    }
