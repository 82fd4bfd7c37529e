"""`layerlab ledger`: a campaign of ideas that cannot fool itself; heavy imports only inside."""

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
from layerlab.console.help_group import HelpGroup
from layerlab.console.tables import say, say_wrapped, show, show_json, show_result
from layerlab.errors import UserError
from layerlab.validation import short_repr

# How `layerlab ledger judge` ends, for whoever searches unattended; 2 is an error, as everywhere.
CODES = {"adopted": 0, "refuted": 3, "undecided": 4}

ledger = typer.Typer(
    cls=HelpGroup,
    help="Keep a campaign of ideas: declared first, then judged.",
    rich_markup_mode=None,
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the ledger.")]
Idea = Annotated[str, typer.Argument(metavar="IDEA", help="Name of the idea, as the logs have it.")]


def parse_seeds(given: str) -> list[int]:
    """Return the seeds of `1,2,3`.

    Raises:
        UserError: they are no whole numbers.

    Example:
        >>> parse_seeds("1, 2,3")
        [1, 2, 3]
    """
    seeds = [one.strip() for one in given.split(",")]
    if not all(one.isascii() and one.isdigit() and len(one) < 1000 for one in seeds):
        raise UserError(f"--seeds is {short_repr(given)}; expected whole numbers, as 1,2,3")
    return [int(one) for one in seeds]


@ledger.command()
def new(
    folder: Folder,
    baseline: Annotated[str, typer.Option(metavar="ARM", help="Every idea is held against it.")],
    fdr: Annotated[
        float, typer.Option(metavar="P", help="Share of false ones among the adopted, at most.")
    ] = 0.1,
    alpha: Annotated[
        float,
        typer.Option(metavar="P", help="Chance to adopt anything where nothing works, at most."),
    ] = 0.05,
    never: Annotated[
        bool,
        typer.Option(
            "--never",
            help="In place of --fdr: the chance that even one idea is adopted falsely, in the "
            "whole campaign, is --alpha at most; fewer are found.",
        ),
    ] = False,
    loss: LossOption = None,
    at: AtOption = None,
    last: LastOption = 1,
    as_json: AsJson = False,
) -> None:
    """Begin a campaign of ideas against one baseline."""
    from layerlab.api.ledger import create_ledger
    from layerlab.ledger.table import describe_campaign

    found = create_ledger(
        folder, baseline=baseline, fdr=fdr, alpha=alpha, never=never, loss=loss, at=at, last=last
    )
    show_result(found, as_json, describe_campaign(found))


@ledger.command()
def add(
    folder: Folder,
    idea: Idea,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Seeds of its runs; fresh ones to confirm it.")
    ],
    says: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is changed, in a sentence.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="loss, or steps:2.5 for the steps to a loss of 2.5."),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Fresh runs of an idea that looks better.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write an idea down before its runs, or a confirmation of it."""
    from layerlab.api.ledger import add_idea
    from layerlab.ledger.table import describe_trial

    numbers = parse_seeds(seeds)
    found = add_idea(folder, idea, seeds=numbers, says=says, measure=measure, confirm=confirm)
    show_result(found, as_json, describe_trial(found))


@ledger.command()
def judge(
    folder: Folder,
    idea: Idea,
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS", help="Logs of its runs and the baseline's, as for judge."),
    ],
    arm: ArmOption = None,
    seed: SeedOption = None,
    step: StepOption = None,
    line: LineOption = None,
    name: NameOption = None,
    as_json: AsJson = False,
) -> None:
    """Judge an idea by its runs, once.

    Ends with 0 where it is adopted, 3 where it is refuted and 4 where it is
    undecided; 2 is an error.
    """
    from layerlab.api.ledger import judge_idea

    found = judge_idea(folder, idea, logs, arm=arm, seed=seed, step=step, line=line, name=name)
    show_result(found, as_json, "\n".join([found.said, *found.remarks]))
    raise typer.Exit(CODES[found.verdict])


@ledger.command()
def status(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page and its numbers there.")
    ] = None,
    lang: Lang = "en",
    as_json: AsJson = False,
) -> None:
    """Say what was tried, what came of it, and what is left to spend."""
    from layerlab.api.ledger import read_ledger
    from layerlab.ledger.table import describe_campaign, draw_ideas

    found = read_ledger(folder, out=out, lang=lang)
    if as_json:
        show_json(found.to_dict())
        return
    say_wrapped(describe_campaign(found))
    if found.trials:
        show(draw_ideas(found))
    if out is not None:
        say(f"The page: {out / 'report.html'}")
