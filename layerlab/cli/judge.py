"""`layerlab judge`: a verdict on anybody's runs; heavy imports only inside."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.options import (
    ArmOption,
    AsJson,
    AtOption,
    Lang,
    LastOption,
    LineOption,
    LossOption,
    NameOption,
    SeedOption,
    StepOption,
)
from layerlab.console.tables import show_result


def judge(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Logs: tables, trainer_state.json, event files, texts, runs, or folders of them; "
            "or evaluations: folders of lm-eval's --log_samples, or of layerlab evaluate.",
        ),
    ],
    arm: ArmOption = None,
    seed: SeedOption = None,
    loss: LossOption = None,
    step: StepOption = None,
    line: LineOption = None,
    name: NameOption = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="Judged against; the first if left out.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Test, too, whether arms are within it of the baseline; of evaluations in units "
            "of the score: 0.01 is a percentage point.",
        ),
    ] = None,
    target_loss: Annotated[
        float | None, typer.Option(metavar="X", help="Judge, too, the steps to this loss.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of evaluations: the score of a question; NAME=lower or NAME=higher says what is "
            "better.",
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="Of evaluations: what names a question's document, or none."
        ),
    ] = None,
    last: LastOption = 1,
    at: AtOption = None,
    nan_diverged: Annotated[
        bool, typer.Option("--nan-diverged", help="Count runs that end in NaN as diverged.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING",
            help="Arms may differ in it; may be repeated. Of evaluations: prompts, questions, "
            "tasks, marks.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse arms that differ in other settings.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(metavar="P", help="Confidence of the intervals.")
    ] = 0.95,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the page and its numbers there.")
    ] = None,
    lang: Lang = "en",
    as_json: AsJson = False,
) -> None:
    """Judge runs by their logs, or models by their answers.

    Each arm against a baseline, over seeds: paired where they are the same. Models
    that answered the same questions are paired by question. Runs nothing, and needs
    nothing of layerlab's.
    """
    from layerlab.api.judge import judge as judge_paths

    found = judge_paths(
        logs,
        arm=arm,
        seed=seed,
        loss=loss,
        step=step,
        line=line,
        name=name,
        baseline=baseline,
        margin=margin,
        target_loss=target_loss,
        metric=metric,
        cluster=cluster or (),
        last=last,
        at=at,
        nan_diverged=nan_diverged,
        allow=allow or (),
        strict=strict,
        confidence=confidence,
        out=out,
        lang=lang,
    )
    pages = [] if out is None else [f"The page: {out / 'report.html'}"]
    show_result(found, as_json, found.table, *pages)
