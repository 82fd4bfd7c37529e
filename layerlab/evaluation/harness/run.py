"""A model put to the tasks of its benchmarks, one leaf task after another; what is done is kept."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from layerlab.console.progress import Progress
from layerlab.errors import UserError
from layerlab.evaluation.harness.cache import (
    SAMPLES,
    ResultCache,
    builder,
    describe_tokenizer,
    describe_uses,
    hash_code,
    key,
    rebuild_result,
    rounder,
    scorer,
)
from layerlab.evaluation.harness.leaf import BenchmarkTask, LmEvalTask
from layerlab.evaluation.harness.lm import HarnessModel
from layerlab.evaluation.harness.low_precision import PrecisionSetting
from layerlab.evaluation.harness.model_checks import list_added, list_appended, max_length
from layerlab.evaluation.harness.model_state import describe_state, hash_offloaded
from layerlab.evaluation.harness.options import (
    Options,
    describe_added,
    describe_alone,
    describe_appended,
    describe_dropped,
)
from layerlab.evaluation.harness.run_task import run_task
from layerlab.evaluation.harness.settle import COARSE
from layerlab.evaluation.harness.task_result import TaskResult
from layerlab.evaluation.lm_eval_tasks.chat_prompts import find_day, keeps_instruction
from layerlab.evaluation.lm_eval_tasks.description import describe_task, hash_manner
from layerlab.evaluation.lm_eval_tasks.engine import ENGINE
from layerlab.evaluation.lm_eval_tasks.load import load_named, load_tasks
from layerlab.loading.batching import describe_ahead
from layerlab.loading.generation import describe_unused, list_unused, special_ids
from layerlab.loading.model import LoadedModel, describe_lacking
from layerlab.loading.trial import TrialRun, is_same_trial, try_model
from layerlab.system.hardware import is_out_of_memory, versions
from layerlab.version import VERSION

__all__ = [
    "ENGINE",
    "BenchmarkTask",
    "EvaluationRun",
    "LmEvalTask",
    "describe_task",
    "load_named",
    "load_tasks",
]

Leaf = BenchmarkTask | LmEvalTask
OTHER = "what was kept is of other code, by what the model makes of a few tokens; it is asked anew"
# What questions bring about that a task does not fit.
_OF_TASKS = (ValueError, LookupError, TypeError, SyntaxError, AssertionError, ArithmeticError)


@dataclass(frozen=True, kw_only=True)
class EvaluationRun:
    """One model, in one arithmetic, before its questions.

    Attributes:
        arm: what tables call it.
        weights: their hash; None where they are not in memory as a whole.
        notes: what became of batches that did not fit into memory, and which settings of the
            model's are not used.
    """

    arm: str
    subject: LoadedModel
    weights: str | None
    arithmetic: PrecisionSetting
    options: Options
    cache: ResultCache
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def records(self, leaves: Sequence[Leaf]) -> Iterator[dict[str, Any]]:
        """Yield the results of all tasks in order; a task whose result is kept is not asked again.

        Raises:
            UserError: the model has no tokenizer, a task fewer examples than were asked for, or
                memory is too small.
        """
        model, engines, batches = self._model(), dict[str, HarnessModel](), dict[str, int]()
        trial = None if self.cache.folder is None else try_model(self.subject.model)
        unused = list_unused(self.subject.model)
        if unused and any(leaf.generates for leaf in leaves):
            self.notes.append(describe_unused(self.subject.name, unused))
        added = list_added(self.subject.tokenizer)
        if added and any(leaf.reads for leaf in leaves):
            self.notes.append(describe_added(self.subject.name, " ".join(added)))
        appended = list_appended(tokenizer := self.subject.tokenizer)
        if tokenizer is not None and appended and not all(leaf.reads for leaf in leaves):
            tokens = " ".join(map(str, tokenizer.convert_ids_to_tokens(appended)))
            self.notes.append(describe_appended(self.subject.name, tokens))
        if self.options.chat and not keeps_instruction(tokenizer):
            self.notes.append(describe_dropped(self.subject.name))
        if self.subject.reads_ahead:
            self.notes.append(describe_ahead(self.subject.name))
        if self.subject.lacks_policy:
            self.notes.append(describe_lacking(self.subject.name))
        if self.arithmetic.alone and self.options.batch_size != 1:
            self.notes.append(describe_alone(self.arithmetic.name))
        for leaf in leaves:
            scoring = leaf.scoring(self.options)
            name = self._name(leaf, model, scoring)
            count = leaf.questions(self.options.limit)
            self.progress.begin(f"{self.arm}: {leaf.name}", count)
            kept = self._load_kept(leaf, scoring, name, trial)
            if kept is None:
                if scoring not in engines:
                    engines[scoring] = self._engine(scoring)
                engine = engines[scoring]
                engine.rows = min(engine.rows, batches.get(scoring, engine.rows))
                kept = self._ask(leaf, engine, name, trial)
            if self._keeps_batch(leaf):
                batches[scoring] = kept["batch"]
            self.progress.end(leaf.name)
            yield {**kept, "arm": self.arm}

    def _ask(
        self, leaf: Leaf, engine: HarnessModel, name: str, trial: TrialRun | None
    ) -> dict[str, Any]:
        options, start = self.options, time.monotonic()
        engine.step = lambda rows: self.progress.step(steps=rows)
        engine.log = log = self.cache.open_log(name, trial, options.seed)
        if log.other:
            self.notes.append(f"{leaf.name}: {OTHER}")
        if self._batch != 1:  # tried before an emulation begins, which rounds
            self.subject.batching("left" if leaf.generates else "right")
        with self._roomy(leaf), self.arithmetic.running(self.subject):
            found = run_task(
                engine,
                leaf.task,
                shots=leaf.examples(options),
                limit=options.limit,
                seed=options.seed,
                chat=options.chat,
            )
        self.notes.extend(f"{leaf.name}: {one}" for one in engine.notes)
        engine.notes.clear()
        seconds = time.monotonic() - start + log.seconds
        record = self._record(leaf, found, seconds, engine.scoring, name)
        self.cache.save(name, record | {"trial": trial}, found.samples)
        return record

    def _load_kept(
        self, leaf: Leaf, scoring: str, name: str, trial: TrialRun | None
    ) -> dict[str, Any] | None:
        """Return the record of a task that was kept, where it follows from its own scores.

        Args:
            trial: of the model as it is now.
        """
        kept = self.cache.load(name)
        if kept is None:
            return None
        try:
            if not is_same_trial(kept["trial"], trial):
                self.notes.append(f"{leaf.name}: {OTHER}")
                return None
            found, seconds = rebuild_result(kept, self.cache.samples(name))
            record = self._record(leaf, found, seconds, scoring, name)
            for key, value in json.loads(json.dumps(record)).items():
                if kept.get(key) != value:
                    raise ValueError(f"its {key} does not follow from its scores")
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.cache.locate(name)} is not what a task came to: {error}; delete it, and "
                "type the command again"
            ) from None
        return record

    def _record(
        self, leaf: Leaf, found: TaskResult, seconds: float, scoring: str, name: str
    ) -> dict[str, Any]:
        options, tokenizer = self.options, self.subject.tokenizer
        record = leaf.record(found, scoring, options) | {"seconds": round(seconds, 3)}
        record.update(scoring=scoring, cot=leaf.cot(options), chat=options.chat)
        template = getattr(tokenizer, "chat_template", None)
        if day := find_day(tokenizer):
            template = f"{day} {template}"
        record["asked"] = hash_manner(
            leaf.task,
            shots=found.shots.asked,
            seed=options.seed,
            template=template if options.chat else None,
            metric=found.worth,
        )
        record["samples"] = f"{SAMPLES}/{name}.jsonl" if self.cache.folder is not None else None
        return record

    @contextmanager
    def _roomy(self, leaf: Leaf) -> Iterator[None]:
        """Report a lack of memory in words that name a smaller batch, and what a task lacks."""
        try:
            yield
        except _OF_TASKS as error:
            if isinstance(leaf, BenchmarkTask):
                raise
            message = " ".join(str(error).split())[:200]
            raise UserError(
                f"--tasks {leaf.name}: lm-eval cannot ask it: {type(error).__name__}: {message}; "
                "mend it, or name another"
            ) from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            batch = self._batch
            small = batch if isinstance(batch, int) else 1
            less = f"--batch-size {small // 2}" if small > 1 else "--dtype bfloat16"
            raise UserError(
                f"{leaf.name} does not fit into memory beside {self.subject.name} with "
                f"--batch-size {small}; type {less}"
            ) from error

    def _engine(self, scoring: str) -> HarnessModel:
        # A cache would hold what an emulation rounds on its way, and what it does not.
        share = self.arithmetic.format is None
        return HarnessModel(self.subject, batch=self._batch, scoring=scoring, share=share)

    @property
    def _batch(self) -> int | str:
        return 1 if self.arithmetic.alone else self.options.batch_size

    def _keeps_batch(self, leaf: Leaf) -> bool:
        """Return whether answers stay as their batch wrote them."""
        coarse = self.arithmetic.format is not None or self.subject.model.dtype in COARSE
        return leaf.generates and (coarse or leaf.samples)

    def _model(self) -> str:
        tokenizer = self.subject.tokenizer
        model = self.subject.model
        ours = hasattr(model.config, "parse_spec")  # built of our parts
        about = {
            "config": {**model.config.to_dict(), "_name_or_path": ""},
            # A token of the end changes what is written, a template what is asked.
            "generation": special_ids(model),
            "template": getattr(tokenizer, "chat_template", None),
            "special": getattr(tokenizer, "special_tokens_map", None),
            "code": [hash_code(model), hash_code(tokenizer), *[builder()] * ours],
            "attention": model.config._attn_implementation,
            "device": self.subject.device.type,
            "uses": describe_uses(tokenizer, chat=self.options.chat),
        }
        if self.subject.folder is None:  # whoever holds it may have changed it
            about["state"] = describe_state(model)
        identity = describe_tokenizer(tokenizer) + json.dumps(about, sort_keys=True, default=str)
        digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.weights or hash_offloaded(model)} {digest} {model.dtype}"

    def _name(self, leaf: Leaf, model: str, scoring: str) -> str:
        options = self.options
        chat = f"{options.chat}{find_day(self.subject.tokenizer) if options.chat else ''}"
        parts = {
            "model": model,
            "context": str(max_length(self.subject)),
            "arithmetic": self.arithmetic.key + (rounder() if self.arithmetic.format else ""),
            "task": describe_task(leaf.task, options.limit),
            "scoring": scoring,
            "batch": str(self._batch) if self._keeps_batch(leaf) else "",
            "options": f"{options.shots} {options.limit} {options.seed} {chat}",
            "cot": str(leaf.cot(options)),
            "versions": f"{ENGINE} layerlab {VERSION} {scorer()} {versions()}",
        }
        return f"{leaf.stem}-{key(**parts)}"
