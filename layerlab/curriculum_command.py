"""`layerlab adapt RECIPE.toml`: all stages of a recipe; heavy imports only inside."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.adaptation.command import DEFAULT, adapt
from layerlab.archive import limit_archives
from layerlab.command import Json, Lang, Quiet, Setting, paused, settings
from layerlab.trust import trustable
from layerlab.vocabulary_command import vocabulary

__all__ = ["adapt", "vocabulary"]

OUT = Path("layerlab-adaptations")


@adapt.command(DEFAULT)
@limit_archives
@trustable
def carry_out(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="A TOML file, or a name; the list if left out."),
    ] = None,
    setting: Setting = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of all recipes' stages.")] = OUT,
    planned: Annotated[
        bool, typer.Option("--plan", help="Print stages, tokens, time, what is finished; run none.")
    ] = False,
    lang: Lang = "en",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Carry out all stages of a recipe, and report what moved; type the same again to resume."""
    if recipe is None:
        _catalogue()
        return
    from layerlab import curriculum

    found = curriculum.prepared(recipe, out, settings(setting or ()), lang)
    if planned:
        expected = curriculum.expected(found)
        _printed(expected.to_json()) if as_json else _drawn(expected.table())
        return
    with paused():
        adapted = curriculum.carried_out(found, progress=not quiet)
    if as_json:
        _printed(adapted.content)
        return
    _drawn(adapted.table)
    typer.echo(f"The page: {adapted.page}")


def _catalogue() -> None:
    """Name and purpose of the package's recipes."""
    from rich.table import Table
    from rich.text import Text

    from layerlab.adaptation.recipe import load_adaptation, packaged

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("recipe", "for"):
        table.add_column(heading)
    for name in packaged():
        table.add_row(Text(name, style="bold", no_wrap=True), Text(load_adaptation(name).about))
    _drawn(table)


def _printed(content: Any) -> None:
    import json

    sys.stdout.write(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    sys.stdout.flush()


def _drawn(table: Any) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    console.print(table(console.width) if callable(table) else table)
