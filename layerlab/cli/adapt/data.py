"""`layerlab adapt clean`, `contamination` and `catalogue`; heavy imports only inside."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from layerlab.cli.arguments.options import AsJson, FieldOption
from layerlab.console.tables import printable, show_result


class Form(StrEnum):
    """The forms in which Unicode is normalized."""

    nfc = "NFC"
    nfkc = "NFKC"
    none = "none"


def name_today(option: str) -> str:
    """Return what an option of `clean` is called today; one of 0.1 is told of in one line."""
    from layerlab.recipes.load import rename_settings

    given = {"clean": {option.replace("-", "_"): None}}
    (name,) = rename_settings(given, "adapt clean")["clean"]
    return str(name).replace("_", "-")


def clean(
    source: Annotated[str, typer.Argument(help="A file, a folder or hf:NAME, as in a recipe.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for text.jsonl and the report.")],
    unicode_form: Annotated[Form, typer.Option(help="Unicode normalization form.")] = Form.nfc,
    min_chars: Annotated[int, typer.Option(help="Fewest characters of a document.")] = 50,
    max_chars: Annotated[int, typer.Option(help="Most characters of a document.")] = 10_000_000,
    max_broken_ratio: Annotated[
        float,
        typer.Option(help="Largest share of broken characters: U+FFFD and control characters."),
    ] = 0.005,
    max_symbol_ratio: Annotated[float, typer.Option(help="Most # and ellipses per word.")] = 0.1,
    min_word_ratio: Annotated[
        float, typer.Option(help="Smallest share of words with a letter.")
    ] = 0.8,
    max_bullet_ratio: Annotated[
        float, typer.Option(help="Largest share of lines that begin with a bullet.")
    ] = 0.9,
    max_ellipsis_ratio: Annotated[
        float, typer.Option(help="Largest share of lines that end in an ellipsis.")
    ] = 0.3,
    max_repeated_ratio: Annotated[
        float, typer.Option(help="Largest share of characters in repeated runs of 10.")
    ] = 0.5,
    repetition: Annotated[
        bool, typer.Option(help="Drop documents that repeat lines, paragraphs or words.")
    ] = True,
    exact_dedup: Annotated[
        bool, typer.Option(help="Drop a second document of the same words.")
    ] = True,
    near_duplicate_threshold: Annotated[
        float, typer.Option(help="Similarity from which documents are duplicates; 0 keeps them.")
    ] = 0.8,
    field: FieldOption = "text",
    as_json: AsJson = False,
) -> None:
    """Normalize, filter and deduplicate text; report what went."""
    from layerlab.api.stages.adaptation import clean_text

    found = clean_text(
        source,
        out,
        unicode_form=unicode_form.value,
        min_chars=min_chars,
        max_chars=max_chars,
        max_broken_ratio=max_broken_ratio,
        max_symbol_ratio=max_symbol_ratio,
        min_word_ratio=min_word_ratio,
        max_bullet_ratio=max_bullet_ratio,
        max_ellipsis_ratio=max_ellipsis_ratio,
        max_repeated_ratio=max_repeated_ratio,
        repetition=repetition,
        exact_dedup=exact_dedup,
        near_duplicate_threshold=near_duplicate_threshold,
        field=field,
    )
    show_result(found, as_json, found.table(), *found.notes, f"What is left: {found.file}")


def contamination(
    source: Annotated[str, typer.Argument(help="Training text: a file, a folder or hf:NAME.")],
    benchmark: Annotated[
        list[str],
        typer.Option(
            metavar="DIR",
            help="Questions: a folder or a file, also by its place in the data folder; repeatable.",
        ),
    ],
    field: FieldOption = "text",
    most: Annotated[int, typer.Option(help="Most questions to list.")] = 20,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write everything as JSON to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for the questions of benchmarks in training text."""
    from layerlab.api.stages.adaptation import find_contamination

    found = find_contamination(source, benchmark, field=field, out=out)
    # One line each, whatever a question is called.
    lines = [
        f"{one.covered:4.0%}  {printable(one.benchmark)} {printable(one.id)} in document "
        f"{one.document}: {printable(one.run)}"
        for one in found.matches[:most]
    ]
    if len(found.matches) > most:
        more = f"{len(found.matches) - most:,} more"
        lines.append(f"... and {more}; --most N or --out FILE lists them")
    show_result(found, as_json, found.table(), *lines, *found.notes)


def catalogue(as_json: AsJson = False) -> None:
    """List the corpora of the source and how to get them."""
    from layerlab.data import catalog

    rows = [entry.to_dict() for entry in catalog.list_corpora()]
    show_result(rows, as_json, catalog.table())
