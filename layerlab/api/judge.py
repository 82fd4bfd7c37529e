"""`layerlab.judge`: a verdict on anybody's runs, from their logs, or on answers to questions."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from layerlab.data.archives import read_within_limit
from layerlab.errors import UserError
from layerlab.evaluation.paired.compare import PairedRequest, judge_models
from layerlab.evaluation.paired.folders import AnsweredModel, find_evaluations
from layerlab.evaluation.paired.result import PairedEvaluations, check_paired_folder
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.statistics.differences import check_confidence, check_margin
from layerlab.logs.directions import split_direction
from layerlab.logs.training_log import LogColumns
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.paired import render
from layerlab.system.files import File
from layerlab.validation import join_words

CONFIDENCE = 0.95


@read_within_limit
def judge(
    logs: File | Iterable[File],
    *,
    arm: str | None = None,
    seed: str | None = None,
    loss: str | None = None,
    step: str | None = None,
    line: str | None = None,
    name: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    target_loss: float | None = None,
    metric: str | None = None,
    cluster: Sequence[str] = (),
    last: int = 1,
    at: float | None = None,
    nan_diverged: bool = False,
    allow: Sequence[str] = (),
    strict: bool = False,
    confidence: float = CONFIDENCE,
    out: File | None = None,
    lang: str = ENGLISH,
    max_bytes: int | None = None,
) -> Comparison | PairedEvaluations:
    """Judge runs by their logs, or models by their answers: each against a baseline.

    Reads CSV, JSONL and Parquet, as W&B and MLflow export them too, trainer_state.json of Hugging
    Face, event files of TensorBoard, lines of plain text, and run folders of layerlab. Seeds that
    two arms share are paired; arms that share none are compared as two samples; one run an arm
    gives a difference and no verdict.

    Of evaluations, which lm-eval writes with --log_samples and `layerlab evaluate` with --out, each
    folder is a model, and models are paired question by question. They take `baseline`, `metric`,
    `cluster`, `margin`, `allow`, `confidence`, `out` and `lang`.

    Args:
        logs: files and folders.
        arm: column that says what a run tries; its path where no column does.
        seed: column that tells the runs of an arm apart, as for `arm`.
        loss: column that is judged: a loss or a score, found by its usual names, or as the only one
            with numbers, if left out; "latency=lower" or "own=higher" where no word of its name
            says which way is better.
        step: column that readings are ordered by, as for `loss`.
        line: regular expression of a line of plain text, with groups named step and loss; where
            these stand in lines of their own, "A|B", and a loss is of the last step above it.
        name: regular expression of a path, with groups named arm and seed.
        baseline: arm that the others are judged against; the first if left out.
        margin: test, too, whether each arm is within it of the baseline; of evaluations in units of
            the score, of which 0.01 is a percentage point.
        target_loss: judge, too, the steps to this loss; runs that never reach it are counted.
        metric: of evaluations, the score of each question that is compared, as "acc", or
            "mse=lower" where nothing says which way is better; the usual one if left out.
        cluster: of evaluations, fields of a question that name the document it is about; the usual
            ones if left out, and "none" takes each question by itself.
        last: judge the mean of so many readings.
        at: judge at this step; at the last one, which must be the same for all, if left out.
        nan_diverged: count a run that ends without a finite loss as diverged.
        allow: settings in which arms may differ, with * for any part of a name; of evaluations
            "prompts", "questions" and "tasks".
        strict: refuse arms that differ in others, or of whose settings nothing is known.
        confidence: of the intervals.
        out: folder for the page, comparison.json, tables and pictures; none is written without it.
        lang: language of the page.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a log cannot be read, columns are missing, there is one arm, two logs are of one
            run, or runs end at different steps; models were not asked the same questions.
    """
    language(lang)  # an unknown one is refused before the work is done
    folder = None if out is None else Path(out)
    given = [fspath(one) for one in ([logs] if isinstance(logs, str | PathLike) else logs)]
    models = find_evaluations(given)
    of_logs = {
        **{"arm": arm, "seed": seed, "loss": loss, "step": step, "line": line, "name": name},
        **{"target-loss": target_loss, "last": None if last == 1 else last},
        **{"at": at, "nan-diverged": nan_diverged or None, "strict": strict or None},
    }
    of_answers = {"metric": metric, "cluster": tuple(cluster) or None}
    _refuse(of_logs if models else of_answers, "evaluations" if models else "logs")
    column, higher = (None, None) if loss is None else split_direction(loss, "--loss")
    options = {
        **(of_answers if models else of_logs),
        "baseline": baseline,
        "margin": margin,
        "allow": tuple(allow),
        "confidence": None if confidence == CONFIDENCE else confidence,
        "out": None if folder is None else fspath(folder),
    }
    asked: dict[str, Any] = {
        "baseline": baseline,
        "margin": margin,
        "allowed": tuple(allow),
        "confidence": confidence,
        "name": "judge" if folder is None else folder.resolve().name,
    }
    command = _command(given, options)
    if models:
        request = PairedRequest(metric=metric, documents=tuple(cluster), **asked)
        return _judge_answers(models, request, folder, lang, command)
    from layerlab.api.stages.logs import judge_runs

    return judge_runs(
        given,
        LogColumns(arm=arm, seed=seed, loss=column, step=step, line=line, name=name),
        judged={"at": at, "last": last, "nan_diverged": nan_diverged, "target": target_loss},
        asked={**asked, "strict": strict, "higher": higher},
        folder=folder,
        lang=lang,
        command=command,
    )


def _judge_answers(
    models: Sequence[AnsweredModel],
    asked: PairedRequest,
    folder: Path | None,
    lang: str,
    command: str,
) -> PairedEvaluations:
    """Judge models by their answers, and write what was asked for."""
    check_confidence(asked.confidence)
    check_margin(asked.margin)
    if folder is not None:
        check_paired_folder(folder)
    content = judge_models(models, asked)
    if folder is None:
        return PairedEvaluations(content)
    found = PairedEvaluations({**content, "command": command})
    found.save(folder, render(found.content, lang))
    return found


def _refuse(options: Mapping[str, Any], kind: str) -> None:
    """Refuse options that say nothing of what was given."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name} says nothing of {kind}, which these are; leave it out")


def _command(logs: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the command that judges the same again."""
    argv = ["layerlab", "judge", *logs]
    for name, value in options.items():
        if isinstance(value, bool):
            argv += [f"--{name}"] if value else []
        elif isinstance(value, tuple):
            argv += [word for one in value for word in (f"--{name}", str(one))]
        elif value is not None:
            argv += [f"--{name}", str(value)]
    return join_words(argv)
