"""`layerlab runs`: the index of a folder; heavy imports only inside."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.options import AsJson, Lang
from layerlab.console.tables import show_result

NEWEST = 20  # entries that are printed unasked


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that is searched, and those in it.")
    ] = Path(),
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="Write the list as a page: FILE, or DIR/runs.html."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Print all entries, not only the newest {NEWEST}.")
    ] = False,
    lang: Lang = "en",
    as_json: AsJson = False,
) -> None:
    """List what layerlab wrote into a folder, newest first.

    Runs, comparisons, reports, evaluations, adaptations and studies, each with its result.
    """
    from layerlab.api.list_runs import check_page, list_runs

    if html is not None:
        check_page(html, lang)
    found = list_runs(folder)
    page = None if html is None else found.save(html, lang)
    pages = [] if page is None else [f"The page: {page}"]
    show_result(found, as_json, found.table(None if every else NEWEST), *pages)
