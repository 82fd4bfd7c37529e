"""`layerlab.evaluate`: models on benchmarks, scored and averaged as the sources did."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from layerlab.console.evaluation import EvaluationBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.data.archives import read_within_limit
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.benchmarks.suites import name_suite, select_benchmarks
from layerlab.evaluation.harness.cache import LEAVES, SAMPLES, ResultCache
from layerlab.evaluation.harness.low_precision import PrecisionSetting, arithmetics, perplexity
from layerlab.evaluation.harness.model_checks import prepare_tokenizer
from layerlab.evaluation.harness.options import AUTO, Options
from layerlab.evaluation.harness.prepare import available, engine, list_tasks
from layerlab.evaluation.results.above_chance import judge_guessing
from layerlab.evaluation.results.aggregate import (
    benchmark_rows,
    group_rows,
    section_rows,
    unsound_remarks,
)
from layerlab.evaluation.results.data_issues import remarks as describe_data_issues
from layerlab.evaluation.results.folder import TABLES, check_folders, list_earlier_tables
from layerlab.evaluation.results.lm_eval_tasks import missing_metric_remarks, task_group_rows
from layerlab.evaluation.results.paired_difference import costs, differences
from layerlab.evaluation.results.published_comparison import published_rows, tell_limit
from layerlab.evaluation.results.question_remarks import question_remarks
from layerlab.evaluation.results.result import EvaluationResult, load_result
from layerlab.loading.generation import special_ids
from layerlab.loading.model import LoadedModel, check_named, load_model
from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.plugins import load_files, paths
from layerlab.records.checkpoint_names import remove_partials
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.evaluation import render
from layerlab.system.files import File
from layerlab.system.hardware import explain_memory, release_memory
from layerlab.system.locks import lock_folder
from layerlab.system.logs import quiet_libraries
from layerlab.system.rng import keep_random_state
from layerlab.system.signals import hear_interruptions
from layerlab.system.torch_settings import evaluation_mode, threads, usual_arithmetic
from layerlab.system.untrusted.trust import granted_options, trust
from layerlab.version import VERSION

LESS = "type --dtype bfloat16, or --device auto, which leaves on the processor what does not fit"


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An evaluation that is ready to run: models, benchmarks and options.

    Attributes:
        models: names, folders or loaded models.
        suite: suites, groups and benchmarks, with commas between; None where only tasks are asked.
        tasks: of lm-eval, names and files with commas between.
        options: how the questions are put.
        arithmetics: in which each model computes, as it was loaded first.
        data: folder of benchmark files; LAYERLAB_DATA where none is given.
        out: folder of results; None where nothing is written.
        compare: whether the source's tables are set beside.
        against: results of an earlier run.
        lang: of the page.
        typed: further options as they were given, for the command that repeats the evaluation.
    """

    models: Sequence[Any]
    suite: str | None
    options: Options
    tasks: str | None = None
    arithmetics: Sequence[PrecisionSetting] = (PrecisionSetting(),)
    tokenizer: PreTrainedTokenizerBase | None = None
    device: str | None = None
    dtype: str | None = None
    data: Path | None = None
    out: Path | None = None
    compare: bool = False
    against: EvaluationResult | None = None
    lang: str = ENGLISH
    typed: Mapping[str, Any] = field(default_factory=dict)


@read_within_limit
@usual_arithmetic()
@keep_random_state()
def evaluate(
    model: Any,
    suite: str | None = None,
    *,
    tasks: str | None = None,
    out: File | None = None,
    data: File | None = None,
    format: str | None = None,
    policy: Policy | File | None = None,
    compare: bool = False,
    against: File | EvaluationResult | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str | None = None,
    dtype: str | None = None,
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    trust_tasks: bool = False,
    allow_unused: bool = False,
    progress: bool = True,
    lang: str = ENGLISH,
    scoring: str | None = None,
    shots: int | None = None,
    cot: bool = False,
    limit: int | None = None,
    chat: bool = False,
    batch_size: int | str = AUTO,
    seed: int = 0,
    max_bytes: int | None = None,
) -> EvaluationResult:
    """Evaluate one or several models on benchmarks, and average as their authors do.

    Args:
        model: a Hub id, a local folder, a built-in name or a loaded `PreTrainedModel`; or a list.
        suite: "general", "finance", "law", a group of the source such as "reasoning", a benchmark,
            or several with commas between; "general" where no task is named either.
        tasks: tasks of lm-eval by name, group, tag or YAML file, with commas between.
        out: folder of results; a second call goes on where the first was interrupted.
        data: folder of benchmark files; LAYERLAB_DATA where none is given.
        format: of numbers, with commas between: what computing in it costs.
        policy: what stays in float32, or the file that says so: what computing so costs.
        compare: set the source's published tables beside.
        against: an earlier result, or its file: paired differences to it.
        tokenizer: for a loaded model; others bring their own.
        device: where models are loaded.
        dtype: of the loaded weights; that of its config.json if left out.
        load: Python files with the variants of models that layerlab has built.
        trust_remote_code: run Python that a model brings along; read it before.
        trust_tasks: run Python that a task of lm-eval names; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        progress: show a live bar on standard error.
        lang: language of the page.
        scoring: "choice_ll", "mean_nll" or "gen"; each benchmark's usual one if left out.
        shots: few-shot examples before each question; as usual if left out.
        cot: show examples with their explanations, where a benchmark has them.
        limit: ask only the first so many questions of every subject and task.
        chat: put prompts as the tokenizer's chat template has them.
        batch_size: prompts that are run at once; "auto": as many as memory allows. Of scores only
            those of written answers depend on it, in 16 bits.
        seed: of examples that are drawn, and of answers that a task samples.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: no such suite or task, none of its data is here, or a model cannot be asked.
    """
    earlier = against if isinstance(against, EvaluationResult | None) else load_result(against)
    models = model if isinstance(model, list | tuple) else [model]
    load_files(load, [str(one) for one in models if isinstance(one, str | PathLike)])
    question = EvaluationRequest(
        models=models,
        suite=name_suite(suite, tasks),
        tasks=tasks,
        options=Options(
            scoring=scoring,
            shots=shots,
            cot=cot,
            limit=limit,
            chat=chat,
            batch_size=batch_size,
            seed=seed,
        ),
        arithmetics=arithmetics(format, policy),
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        data=None if data is None else Path(data),
        out=None if out is None else Path(out),
        compare=compare,
        against=earlier,
        lang=lang,
        typed={
            "format": format,
            "policy": _file(policy),
            "against": _file(against),
            "data": _file(data),
            "device": device,
            "dtype": dtype,
            "load": [str(one) for one in paths(load)],
        },
    )
    with trust(trust_remote_code, allow_unused=allow_unused, trust_tasks=trust_tasks):
        return run_evaluation(question, progress=progress)


@explain_memory(LESS)
def run_evaluation(question: EvaluationRequest, *, progress: bool = True) -> EvaluationResult:
    """Load the models, evaluate them, and average the scores.

    Raises:
        UserError: as `evaluate`.
        Interrupted: it was interrupted; what is finished is kept.
    """
    language(question.lang)  # an unknown one is refused before the work is done
    benchmarks = () if question.suite is None else select_benchmarks(question.suite)
    check_folders(question.data, question.out)
    with ExitStack() as stack:
        if question.out is not None:
            stack.enter_context(lock_folder(question.out))
            stack.enter_context(hear_interruptions(question.out / LEAVES))
            list_earlier_tables(question.out)  # refuses before the work what is not to be lost
            for kept in (".", LEAVES, SAMPLES, TABLES):
                remove_partials(question.out / kept, "*")
        check_named(question.models)
        result = EvaluationResult(_ask(question, benchmarks, progress))
        if question.out is None:
            return result
        return result.save(question.out, render(result.content, question.lang))


def _ask(
    question: EvaluationRequest,
    benchmarks: Sequence[Benchmark],
    progress: bool,
) -> dict[str, Any]:
    harness = engine()
    leaves: list[Any] = []
    left_out: list[dict[str, str]] = []
    if benchmarks:
        there, left_out = available(benchmarks, question.data)
        leaves = list_tasks(harness, question.options, there, left_out, question.data)
    named, groups = harness.load_named(question.tasks) if question.tasks else ([], [])
    leaves += [harness.LmEvalTask(one.task, one.groups, one.remarks) for one in named]
    questions = sum(leaf.questions(question.options.limit) for leaf in leaves)
    cache = ResultCache(question.out)
    records: list[dict[str, Any]] = []
    arms: list[dict[str, Any]] = []
    notes = [remark for one in named for remark in one.remarks]
    total = questions * len(question.models) * len(question.arithmetics)
    with ExitStack() as stack:
        bar = EvaluationBar(total)
        task_progress: Progress = stack.enter_context(bar) if progress else NullProgress()
        for model in question.models:
            with quiet_libraries():
                loaded = _load(question, model)
            facts = loaded.facts()  # once: all weights are read for their hash
            for arithmetic in question.arithmetics:
                arm = _arm(facts, arithmetic, arms)
                arms.append(arm)
                sit = harness.EvaluationRun(
                    arm=arm["arm"],
                    subject=loaded,
                    weights=facts["weights_hash"],
                    arithmetic=arithmetic,
                    options=question.options,
                    cache=cache,
                    progress=task_progress,
                )
                with threads(loaded.model.num_parameters()), evaluation_mode(loaded.model):
                    records.extend(sit.records(leaves))
                    notes += sit.notes
                    if len(question.arithmetics) > 1:
                        with quiet_libraries(), arithmetic.running(loaded):
                            arm["perplexity"] = perplexity(loaded)
            del loaded, sit  # the next model gets the memory of this one
            release_memory()
    content = _sum(question, arms, records, left_out)
    content["remarks"] = [*content["remarks"], *dict.fromkeys(notes)]
    return (
        {**content, "task_groups": task_group_rows(content["tasks"], groups)} if named else content
    )


def _sum(
    question: EvaluationRequest,
    arms: list[dict[str, Any]],
    records: list[dict[str, Any]],
    left_out: list[dict[str, str]],
) -> dict[str, Any]:
    subjects = [row for row in records if "benchmark" in row]
    tasks = [row for row in records if "benchmark" not in row]
    benchmarks, sections = benchmark_rows(subjects), section_rows(subjects)
    judge_guessing(benchmarks, subjects, tasks)
    asked = [
        find_benchmark(name) for name in dict.fromkeys(str(row["benchmark"]) for row in subjects)
    ]
    remarks = [
        *unsound_remarks(benchmarks),
        *missing_metric_remarks(tasks),
        *question_remarks(records),
        *question.options.deviations(asked, [str(row["task"]) for row in tasks]),
        *describe_data_issues(asked, question.data, complete=question.options.limit is None),
    ]
    names = [arm["arm"] for arm in arms]
    content = {
        "layerlab": VERSION,
        "engine": engine().ENGINE,
        "suite": ",".join(one for one in (question.suite, question.tasks) if one),
        "request": {
            "suite": question.suite,
            "tasks": question.tasks,
            **question.typed,
            **granted_options(),
        },
        "options": question.options.to_dict(),
        "arms": arms,
        "benchmarks": benchmarks,
        "groups": group_rows(benchmarks),
        "sections": sections,
        "subjects": subjects,
        **({"tasks": tasks} if tasks else {}),
        "precision": costs(arms, records),
        "left_out": left_out,
        "remarks": remarks,
    }
    if question.against is not None:
        found, lines = differences(question.against.content, arms, records)
        content |= {"compared": found, "remarks": [*remarks, *lines]}
    if question.compare:
        content["published"] = published_rows(names, benchmarks, subjects, sections)
        content["remarks"] = [
            *content["remarks"],
            "rows of tables are published by the source, or measured here; the source's prompts, "
            "examples and scoring are only partly known",
            *tell_limit(question.options.limit),
        ]
    return content


def _file(given: Any) -> str | None:
    """Return the path of a file; None of what a caller holds in memory."""
    if isinstance(given, EvaluationResult):
        given = given.folder
    return str(given) if isinstance(given, str | PathLike) else None


def _load(question: EvaluationRequest, model: Any) -> LoadedModel:
    found = load_model(model, question.tokenizer, device=question.device, dtype=question.dtype)
    tokenizer = prepare_tokenizer(found)  # whoever cannot read is told so before the first question
    special_ids(found.model)  # and so is whoever names an end of text that is none
    if question.options.chat and tokenizer.chat_template is None:
        raise UserError(
            f"the tokenizer of {found.name} has no chat template, which --chat takes prompts from; "
            "leave --chat out, or set its chat_template"
        )
    return found


def _arm(
    facts: Mapping[str, Any], arithmetic: PrecisionSetting, others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a model in a number format, with a unique name."""
    name = facts["name"] + (f" in {arithmetic.name}" if arithmetic.name else "")
    taken = {one["arm"] for one in others}
    names = (name, *(f"{name} ({number})" for number in range(2, len(taken) + 2)))
    unique = next(one for one in names if one not in taken)
    return {"arm": unique, "model": facts["name"], "precision": arithmetic.name, **facts}
