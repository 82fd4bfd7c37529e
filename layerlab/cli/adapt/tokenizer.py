"""`layerlab adapt vocabulary`, where adaptation and its page meet; heavy imports only inside."""

from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.options import AsJson, FieldOption, Lang, Quiet
from layerlab.console.tables import say, show, show_json
from layerlab.system.files import from_here


def vocabulary(
    tokenizer: Annotated[
        str, typer.Option(metavar="T", help="A folder, tokenizer.json, .model, or Hub name.")
    ],
    corpus: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="Text of the domain, or a folder; may be repeated."),
    ],
    size: Annotated[str, typer.Option(metavar="+N|V", help="Add N entries, or cut down to V.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the tokenizer and its check; what an earlier call left there goes.",
        ),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Other text to verify it on, or jec-qa; may be repeated."
        ),
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Expressions of the domain, one a line.")
    ] = None,
    field: FieldOption = "text",
    lang: Lang = "en",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Extend a tokenizer on a domain's text, or cut it down.

    What the tokenizer gives is verified text by text.
    """
    from layerlab.api.stages.adaptation import change_vocabulary

    changed = change_vocabulary(
        tokenizer,
        corpus,
        size,
        out,
        against=against or (),
        terms=terms,
        field=field,
        lang=lang,
        progress=not quiet,
    )
    from layerlab.report.pages.vocabulary import PAGE
    from layerlab.tokenization.vocabulary.change import PROOF
    from layerlab.tokenization.vocabulary.table import render_check

    if as_json:
        show_json((out / PROOF).read_text("utf-8"))
    else:
        show(lambda width: render_check(changed.check, width))
        say(f"The tokenizer and its check: {out}\nThe page: {from_here((out / PAGE).resolve())}")
    if not changed.check.holds:
        raise typer.Exit(1)
