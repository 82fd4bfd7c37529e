"""The page of a changed vocabulary: what was proved of it, text by text.

The content is the dict that `proof.json` holds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.i18n.language import ENGLISH, Label, label, labels
from layerlab.report.pages import adaptation_tables
from layerlab.report.pages.shell import fill_page
from layerlab.report.views import command

_STYLES = ("page.css", "comparison.css", "adaptation.css")
PAGE = "proof.html"
# Tokens that are shown of a list; the file has all.
MOST = 200


def render(content: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of a proof.

    Raises:
        UserError: there is no page in this language.
    """
    asked = {name: value for name, value in content["asked"].items() if value is not None}
    return fill_page(
        "proof.html",
        _STYLES,
        lang,
        content=content,
        base=Path(content["asked"]["tokenizer"]).name,
        facts=list(_facts(content)),
        tables=list(_tables(content)),
        tokens=list(_tokens(content)),
        command=command.change_vocabulary(asked),
        most=MOST,
    )


def _facts(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield label("Entries before"), content["entries_base"]
    yield label("Entries now"), content["entries"]
    yield label("Added"), content["added"]
    yield label("Removed"), content["removed"]
    yield label("Out of reach"), len(content["unreachable"])
    if content["coverage"] is not None:
        yield label("Of the corpus's tokens kept"), f"{content['coverage']:.2%}"


def _tables(content: Mapping[str, Any]) -> Iterable[Json]:
    yield from adaptation_tables.vocabularies({"vocabulary": [content]})
    yield _compressions(content["texts"])
    if content["terms"]:
        yield _terms(content["terms"])
    if content["published"]:
        yield _list_published(content["published"])


def _compressions(texts: Iterable[Mapping[str, Any]]) -> Json:
    keys = ("tokens_per_character", "tokens_per_byte", "bytes_per_token")
    rows = [
        [Label(one["name"]), *(one[side][key] for key in keys for side in ("base", "new"))]
        for one in texts
    ]
    head = (
        *labels("text", "tokens a character, before", "tokens a character, now"),
        *labels("tokens a byte, before", "tokens a byte, now"),
        *labels("bytes a token, before", "bytes a token, now"),
    )
    return adaptation_tables.table("compression", label("Compression"), head, rows)


def _terms(terms: Mapping[str, Any]) -> Json:
    rows = [
        [label("before"), terms["base"], terms["base"] / terms["terms"], terms["whole_base"]],
        [label("now"), terms["new"], terms["new"] / terms["terms"], terms["whole"]],
    ]
    title = Label(f"{terms['terms']:,} expressions of the domain")
    head = labels("", "tokens", "each", "of one token")
    return adaptation_tables.table("terms", title, head, rows)


def _list_published(found: Mapping[str, Any]) -> Json:
    rows = [[one["tokenizer"], one["entries"], one["rate"], _origin(one)] for one in found["rows"]]
    left = [f"{name} is left out: {why}" for name, why in found["left_out"].items()]
    head = labels("tokenizer", "entries", "rate", "from")
    hint = " ".join([found["about"], *(f"{one}." for one in left)])
    return adaptation_tables.table(
        "published", label("The source's table beside ours"), head, rows, hint
    )


def _origin(row: Mapping[str, Any]) -> str:
    return label("published") if row["published"] else label("measured here")


def _tokens(content: Mapping[str, Any]) -> Iterable[tuple[str, list[str], int]]:
    """Yield the tokens that have to be looked at, by kind."""
    for title, name in (
        (label("Out of reach"), "unreachable"),
        (label("New, and not whole characters"), "partial"),
    ):
        if found := content[name]:
            yield title, list(found[:MOST]), len(found)
