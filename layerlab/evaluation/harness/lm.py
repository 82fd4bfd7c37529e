"""lm-eval as the engine: tasks are read and scored by it, the model is handed over in memory.

What is ours: whole examples are dropped where a prompt does not fit (`shots`), the beginning that
prompts share is run once (`prefix`), a choice may be scored by the mean over all its tokens, and
nothing of the engine's own talk reaches a terminal. Where every prompt fits, scores are those of
`lm-eval run --include_path` on the same tasks.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import lm_eval
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from layerlab.errors import UserError
from layerlab.evaluation.harness.fewshot import Shots, fit_examples, sum_up
from layerlab.evaluation.harness.model_checks import (
    max_length,
    prepare_tokenizer,
    record_unsound_logits,
)
from layerlab.evaluation.harness.prefix_cache import Forward
from layerlab.loading.model import LoadedModel
from layerlab.records.parse import check_text
from layerlab.system.limits import check_work
from layerlab.system.logs import hush

# Logits that a batch may hold.
LOGITS = 1 << 27
# Tokens by which rows of one batch, which are sorted by length, are expected to differ.
WIDTH = 64
MEAN_NLL = "mean_nll"
# What a question is worth by itself, where the score is one of all questions together.
ALONE = "alone"
ENGINE = f"lm-eval {lm_eval.__version__}"


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of a leaf task.

    Attributes:
        scores: of every question, by its place and hash.
        abstained: share of questions without an answer: too long for the context, without a finite
            logit, or with nothing in what is written.
        metrics: every number that the engine gives for the task.
        chance: the score of guessing; None where there is nothing to choose from.
        limited: tokens that an answer may have where the context allows fewer than the task.
        unsound: questions at which a logit was NaN or infinite.
        samples: every question with its prompt, answer and score.
    """

    scores: Mapping[str, float]
    abstained: float
    metrics: Mapping[str, float]
    shots: Shots
    chance: float | None = None
    limited: int | None = None
    unsound: int = 0
    samples: Sequence[Mapping[str, Any]] = field(repr=False, default=())


class HarnessModel(HFLM):
    """A loaded model as lm-eval sees it.

    Args:
        scoring: "mean_nll" scores a choice by the mean over all tokens of prompt and choice;
            anything else leaves that to the task.
        share: whether what prompts begin with alike may be run once.
    """

    def __init__(
        self, subject: LoadedModel, *, batch: int, scoring: str, share: bool = True
    ) -> None:
        with hush():
            super().__init__(
                pretrained=subject.model,
                tokenizer=prepare_tokenizer(subject),
                backend="causal",
                batch_size=batch,
                max_length=max_length(subject),
            )
        self.scoring = scoring
        self.forward = Forward(subject.model, share=share)
        self.unfit: set[int | None] = set()
        self.unsound: set[int | None] = set()
        self.step: Callable[[int], None] = lambda rows: None
        self._asked = batch
        self._broken = self._rendered = False
        self._need = 1
        self._encoded = functools.lru_cache(maxsize=8192)(super().tok_encode)

    def tok_encode(self, string: str, *args: Any, **options: Any) -> list[int]:
        """Return the token ids of a text, found once for a prompt that several choices share."""
        if args or options:
            return list(super().tok_encode(string, *args, **options))
        return list(self._encoded(string))

    def apply_chat_template(self, *args: Any, **options: Any) -> str:
        """Write a conversation as the model's template has it, once its cost has been checked.

        Raises:
            UserError: the template refuses it, or takes too much.
        """
        render = functools.partial(super().apply_chat_template, *args, **options)
        if not self._rendered:
            check_work(render, "the chat template", "one question")
        self._rendered = True
        try:
            return str(check_text(render()))
        except Exception as error:  # whatever a template's own code raises
            said = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"the chat template refuses a question: {said}; use another") from None

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        if not after:  # joined by the tokenizer: the last token is all that can be told apart
            return before[:-1] or [self.prefix_token_id], before[-1:]
        return before, after

    def _whole(self, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
        """Split prompt and choice, as one text, into a first token to condition on and the rest."""
        tokens = self.tok_encode("".join(arguments))
        return (tokens[:1], tokens[1:]) if len(tokens) > 1 else ([self.prefix_token_id], tokens)

    def fits(self, kind: str, arguments: tuple[Any, ...]) -> bool:
        """Judge whether a request fits into the context with nothing cut."""
        if kind == "generate_until":
            return len(self.tok_encode(arguments[0])) + _limit(arguments[1]) <= self.max_length
        if kind != "loglikelihood":  # read in windows, however long it is
            return True
        if self.scoring == MEAN_NLL:
            pair = self._whole(arguments)
        elif arguments[0]:
            pair = self._encode_pair(*arguments)
        else:
            pair = [self.prefix_token_id], self.tok_encode(arguments[1], add_special_tokens=False)
        return sum(map(len, pair)) <= self.max_length + 1

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Return log-likelihoods of continuations, or of whole texts as means per token."""
        asked = self._possible(requests)
        if self.scoring == MEAN_NLL:
            scored = self._means(asked)
        else:
            scored = super().loglikelihood(asked, disable_tqdm=True)
        self.unsound = {
            one.doc_id for one, (sum_, _) in zip(asked, scored, strict=True) if math.isnan(sum_)
        }
        found = iter(scored)
        return [(-math.inf, False) if one.doc_id in self.unfit else next(found) for one in requests]

    def _means(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        whole = [(one.args, *self._whole(one.args)) for one in requests]
        totals = self._loglikelihood_tokens(whole)
        # By all tokens, the first included, as OpenCompass does.
        return [
            (total / (len(first) + len(rest)), greedy)
            for (_, first, rest), (total, greedy) in zip(whole, totals, strict=True)
        ]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Generate continuations, each up to a stop or to the limit of its task."""
        asked = self._possible(requests)
        self._broken = False
        written = super().generate_until(asked, disable_tqdm=True) if asked else []
        empty = {one.doc_id for one, text in zip(asked, written, strict=True) if not text}
        self.unsound = empty if self._broken else set()
        found = iter(written)
        return ["" if one.doc_id in self.unfit else next(found) for one in requests]

    def _possible(self, requests: Sequence[Any]) -> list[Any]:
        """Return the requests of questions that fit; the others are remembered and not asked."""
        misfits = [one for one in requests if not self.fits(one.request_type, one.args)]
        self.unfit = {one.doc_id for one in misfits}
        return [one for one in requests if one.doc_id not in self.unfit]

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> Any:
        self._need = max((len(after) for _, _, after in requests), default=1)
        longest = max((len(before or ()) + len(after) for _, before, after in requests), default=1)
        rows = LOGITS // (min(longest, self._need + WIDTH) * self.vocab_size)
        self.batch_size_per_gpu = max(1, min(self._asked, rows))
        return super()._loglikelihood_tokens(requests, **{**options, "disable_tqdm": True})

    def _model_call(self, inps: Any, attn_mask: Any = None, labels: Any = None) -> Any:
        found = self.forward(inps, self._need)
        self.step(len(inps))
        return found

    def _model_generate(self, context: Any, *args: Any, **options: Any) -> Any:
        with record_unsound_logits(self.model) as broken:
            found = super()._model_generate(context, *args, **options)
        for rows in broken:  # what follows logits that are no numbers is no answer
            self._broken |= bool(rows.any())
            found[rows, context.shape[1] :] = self.eot_token_id
        self.step(len(context))
        return found


def load_tasks(
    configs: Sequence[str | Mapping[str, Any]], changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Load tasks with their questions read, by their names.

    Args:
        configs: of each task its configuration, or the YAML file of that.
        changes: of the metadata of every task, which its reader is given.

    Raises:
        UserError: the questions of one cannot be read.
    """
    with hush():
        manager = TaskManager(include_defaults=False, metadata=dict(changes or {}))
        return dict(manager.load(list(configs))["tasks"])


def describe_task(task: Any, limit: int | None = None) -> str:
    """Describe what a task asks, and how, as one text: equal texts mean equal tasks."""
    config = {**task.dump_config(), "metadata": dict(task.config.metadata or {})}
    for place in ("config_source", "folder"):
        config["metadata"].pop(place, None)
    documents = [dict(doc) for _, doc in task.doc_iterator(limit=limit)]
    examples = getattr(task, "sampler", None)
    shown_first = [dict(doc) for doc in examples.df] if examples is not None else []
    content = {"config": config, "documents": documents, "examples": shown_first}
    return json.dumps(content, sort_keys=True, ensure_ascii=False, default=_named)


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
    with hush(), _set(task, asked, seed, limited), fit_examples(task, engine.fits) as used:
        found = evaluate(
            engine,
            {"tasks": {task.task_name: task}, "groups": {}},
            limit=limit,
            bootstrap_iters=0,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
        )
    samples = sorted(found["samples"][task.task_name], key=lambda one: one["doc_id"])
    for one in samples:
        if one["doc_id"] in engine.unfit | engine.unsound:
            one.update({_worth(one): 0.0}, abstained=1.0)
    withheld = [float(one.get("abstained", 0.0)) for one in samples]
    guesses = [_guess(one) for one in samples]
    chosen = task.get_config("output_type") == "multiple_choice"
    scores = {f"{one['doc_id']}:{one['doc_hash'][:12]}": _score(one, task) for one in samples}
    metrics = _numbers(found["results"][task.task_name])
    metrics[_worth(samples[0])] = fmean(scores.values())
    return TaskResult(
        scores=scores,
        abstained=fmean(withheld),
        metrics=metrics,
        chance=fmean(guesses) if chosen else None,
        shots=sum_up(asked, used, len(engine.unfit)),
        limited=limited,
        unsound=len(engine.unsound),
        samples=[_brief(one) for one in samples],
    )


def _examples(task: Any, shots: int | None) -> int:
    """Return how many examples to show; refuse more than the task has."""
    if shots is None:
        return int(task.get_config("num_fewshot") or 0)
    sampler = getattr(task, "sampler", None)
    if sampler is None:
        return 0
    have = len(sampler.df)
    if shots > have:
        raise UserError(
            f"{task.task_name} has {have} example{'s' * (have != 1)}, and {shots} were asked for; "
            f"type --shots {have} or fewer"
        )
    return shots


def _guess(sample: Mapping[str, Any]) -> float:
    """Return the chance that a random option is right; several may be."""
    right = sample["doc"].get("gold")
    return (len(right) if isinstance(right, list) else 1) / len(sample["arguments"])


def _limit(options: Mapping[str, Any]) -> int:
    names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    given = (options[name] for name in names if options.get(name) is not None)
    return int(next(given, 256))


def _limit_length(task: Any, context: int) -> int | None:
    """Return half of the context as the limit of an answer, where the task would allow more."""
    if task.get_config("output_type") != "generate_until":
        return None
    most = max(1, context // 2)
    return most if _limit(task.config.generation_kwargs or {}) > most else None


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
    try:
        yield
    finally:
        for name, value in before.items():
            task.set_config(name, value)
        task._instances = None


def _score(sample: Mapping[str, Any], task: Any) -> float:
    if "score" not in sample:
        raise UserError(
            f"the task {task.task_name} gives no metric named score, but "
            f"{', '.join(sample['metrics'])}; name its metric score"
        )
    return float(sample[_worth(sample)])


def _worth(sample: Mapping[str, Any]) -> str:
    """Return the name of the metric that says what a question is worth."""
    return ALONE if ALONE in sample else "score"


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


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    return {
        name.partition(",")[0]: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and "_stderr" not in name and "," in name
    }


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__name__)
