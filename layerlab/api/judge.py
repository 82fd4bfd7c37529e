"""`layerlab.judge`: a verdict on anybody's runs, from their logs."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.warnings import disclose_added_seeds
from layerlab.experiments.judge_logs import JudgeRequest, check_request, judge_logs
from layerlab.experiments.log_values import JudgedStep
from layerlab.experiments.page_folder import check_page_folder
from layerlab.logs.read import find_logs, read_logs
from layerlab.logs.training_log import LogColumns
from layerlab.records.run_files import COMPARISON
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.comparison import save_comparison
from layerlab.system.files import File

CONFIDENCE = 0.95


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
    last: int = 1,
    at: float | None = None,
    nan_diverged: bool = False,
    allow: Sequence[str] = (),
    strict: bool = False,
    confidence: float = CONFIDENCE,
    out: File | None = None,
    lang: str = ENGLISH,
) -> Comparison:
    """Judge runs of any trainer by their logs: each arm against a baseline, over seeds.

    Reads CSV, JSONL and Parquet, as W&B and MLflow export them too, trainer_state.json of Hugging
    Face, event files of TensorBoard, lines of plain text, and run folders of layerlab. Seeds that
    two arms share are paired; arms that share none are compared as two samples; one run an arm
    gives a difference and no verdict.

    Args:
        logs: files and folders.
        arm: column that says what a run tries; its path where no column does.
        seed: column that tells the runs of an arm apart, as for `arm`.
        loss: column that is judged, lower is better; found by its usual names if left out.
        step: column that readings are ordered by, as for `loss`.
        line: regular expression of a line of plain text, with groups named step and loss.
        name: regular expression of a path, with groups named arm and seed.
        baseline: arm that the others are judged against; the first if left out.
        margin: test, too, whether each arm is within it of the baseline.
        target_loss: judge, too, the steps to this loss; runs that never reach it are counted.
        last: judge the mean of so many readings.
        at: judge at this step; at the last one, which must be the same for all, if left out.
        nan_diverged: count a run that ends without a finite loss as diverged.
        allow: settings in which arms may differ, with * for any part of a name.
        strict: refuse arms that differ in others, or of whose settings nothing is known.
        confidence: of the intervals.
        out: folder for the page, comparison.json, tables and pictures; none is written without it.
        lang: language of the page.

    Raises:
        UserError: a log cannot be read, columns are missing, there is one arm, two logs are of one
            run, or runs end at different steps.
    """
    language(lang)  # an unknown one is refused before the work is done
    place = None if out is None else Path(out)
    if place is not None:
        check_page_folder(place)
    asked = JudgeRequest(
        judged=JudgedStep(at=at, last=last, nan_diverged=nan_diverged, target=target_loss),
        baseline=baseline,
        margin=margin,
        allowed=tuple(allow),
        strict=strict,
        confidence=confidence,
        name="judge" if place is None else place.resolve().name,
    )
    check_request(asked)
    given = [logs] if isinstance(logs, str | PathLike) else list(logs)
    columns = LogColumns(arm=arm, seed=seed, loss=loss, step=step, line=line, name=name)
    found = list(read_logs(find_logs([fspath(one) for one in given]), columns))
    comparison = judge_logs(found, asked)
    if place is None:
        return comparison
    command = _command(
        given,
        {
            "arm": arm,
            "seed": seed,
            "loss": loss,
            "step": step,
            "line": line,
            "name": name,
            "baseline": baseline,
            "margin": margin,
            "target-loss": target_loss,
            "last": None if last == 1 else last,
            "at": at,
            "nan-diverged": nan_diverged,
            "allow": tuple(allow),
            "strict": strict,
            "confidence": None if confidence == CONFIDENCE else confidence,
            "out": fspath(place),
        },
    )
    content = disclose_added_seeds({**comparison.content, "command": command}, place / COMPARISON)
    save_comparison(content, place, lang)
    return Comparison(content)


def _command(logs: Sequence[File], options: Mapping[str, Any]) -> str:
    """Return the command that judges the same again."""
    words = ["layerlab", "judge", *(str(one) for one in logs)]
    for name, value in options.items():
        if isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif isinstance(value, tuple):
            words += [word for one in value for word in (f"--{name}", str(one))]
        elif value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
