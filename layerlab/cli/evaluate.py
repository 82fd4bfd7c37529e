"""`layerlab evaluate`, over the Python function of that name; heavy imports only inside."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.early_checks import check_formats, check_loads, check_policy
from layerlab.cli.arguments.options import MODELS, AsJson, Device, Dtype, Lang, Load, Quiet
from layerlab.console.tables import say, show_result
from layerlab.errors import UserError

OUT = Path("layerlab-evaluation")


class How(StrEnum):
    """The ways to score the answer to a question."""

    choice_ll = "choice_ll"
    mean_nll = "mean_nll"
    gen = "gen"


def evaluate(
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help=MODELS),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="general, finance, law, a group such as reasoning, or benchmarks such as ceval.  "
            "[default: general, if no task is named]",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help="Tasks of lm-eval, by name or YAML file."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Name the benchmarks, their data and licences.")
    ] = False,
    export_tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write all tasks as YAML files of lm-eval, and evaluate nothing."
        ),
    ] = None,
    scoring: Annotated[
        How | None,
        typer.Option(
            help="How an answer is chosen: likeliest label, likeliest text, or generated."
        ),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(help="Few-shot examples before each question.  [default: as usual]"),
    ] = None,
    cot: Annotated[
        bool, typer.Option("--cot", help="Few-shot examples with explanations: C-Eval, FinEval.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Ask only N questions of each subject.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the tokenizer's chat template to prompts.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]", help="Number formats to evaluate in as well: bf16, int4, ..."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Mixed-precision policy to evaluate under as well."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Show the source's published scores beside the results."),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="results.json of another run, to compare with question by question.",
        ),
    ] = None,
    subjects: Annotated[
        bool, typer.Option("--subjects", help="Show every subject as well.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Benchmark files.  [default: LAYERLAB_DATA]")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for results; an interrupted run resumes there."),
    ] = OUT,
    batch_size: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Prompts per batch; answers written in 16 bits may depend on it.",
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed for few-shot examples and sampled answers.")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    load: Load = None,
    trust_tasks: Annotated[
        bool, typer.Option("--trust-tasks", help="Run Python that a task of lm-eval names.")
    ] = False,
    lang: Lang = "en",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate models on benchmarks, averaged as officially.

    Benchmarks of knowledge, finance and law, and any task of lm-eval.
    """
    if listed:
        _list(data, as_json)
        return
    if export_tasks is not None:
        from layerlab.evaluation.tasks.configs import export_tasks as write

        say(f"Tasks of lm-eval: {write(export_tasks)}")
        return
    if not model:
        raise UserError(
            "no model is named; type for example layerlab evaluate pre-norm --suite piqa, "
            "or layerlab evaluate --list"
        )
    from layerlab.evaluation.harness.options import Options
    from layerlab.loading.folders import check_found

    options = Options(
        scoring=None if scoring is None else scoring.value,
        shots=shots,
        cot=cot,
        limit=limit,
        chat=chat,
        batch_size=int(batch_size) if batch_size.isdecimal() else batch_size,
        seed=seed,
    )
    check_formats(format)
    check_policy(policy)
    check_loads(load)
    check_found(model)
    earlier = None
    if against is not None:
        from layerlab.evaluation.results.result import load_result

        earlier = load_result(against)
    _check_questions(suite, tasks, data, out)

    # Late: it needs torch, and what is refused above does not.
    from layerlab.api.evaluate import evaluate as run

    result = run(
        model,
        suite,
        tasks=tasks,
        out=out,
        data=data,
        format=format,
        policy=policy,
        compare=compare,
        against=earlier,
        device=device,
        dtype=dtype,
        load=load or (),
        trust_tasks=trust_tasks,
        progress=not quiet,
        lang=lang,
        **options.to_dict(),
    )
    show_result(
        result,
        as_json,
        lambda width: result.table(width, subjects=subjects),
        f"The page: {out / 'report.html'}; results.json, tables and samples beside it",
    )


def _check_questions(suite: str | None, tasks: str | None, data: Path | None, out: Path) -> None:
    """Refuse suites and tasks that there are not, or whose questions are nowhere."""
    from layerlab.evaluation.benchmarks.suites import name_suite, select_benchmarks
    from layerlab.evaluation.harness.prepare import available
    from layerlab.evaluation.lm_eval_tasks.request import check_tasks
    from layerlab.evaluation.results.folder import check_folders, list_earlier_tables

    check_folders(data, out)
    list_earlier_tables(out)
    if (asked := name_suite(suite, tasks)) is not None:
        available(select_benchmarks(asked), data)
    if tasks is not None:
        check_tasks(tasks)


def _list(data: Path | None, as_json: bool) -> None:
    from layerlab.evaluation.results.listing import list_benchmarks, render_listing

    rows = list_benchmarks(data)
    show_result(rows, as_json, lambda width: render_listing(rows, width))
