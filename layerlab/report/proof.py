"""The page of a changed vocabulary: what was proved of it, text by text; no script.

The content is the dict that `proof.json` holds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from layerlab import disk
from layerlab.report import ledger, page, setting

_HERE = Path(__file__).parent
_STYLES = ("page.css", "comparison.css", "curriculum.css")
PAGE = "proof.html"
# Tokens that are shown of a list; the file has all.
MOST = 200

Json = dict[str, Any]


def render(content: Mapping[str, Any]) -> str:
    """The whole page of a proof."""
    asked = {name: value for name, value in content["asked"].items() if value is not None}
    return (
        page.environment()
        .get_template("proof.html")
        .render(
            content=content,
            base=Path(content["asked"]["tokenizer"]).name,
            facts=list(_facts(content)),
            tables=list(_tables(content)),
            tokens=list(_tokens(content)),
            options=setting.toml(asked),
            most=MOST,
            policy=page.policy([]),
            style=Markup("\n".join((_HERE / name).read_text("utf-8") for name in _STYLES)),
        )
    )


def save_proof(content: Mapping[str, Any], folder: Path) -> Path:
    """Write proof.html beside proof.json, whole or not at all.

    Returns:
        The page.

    Raises:
        UserError: the folder cannot be written.
    """
    return disk.write_file(folder / PAGE, render(content))


def _facts(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield "Entries before", content["entries_base"]
    yield "Entries now", content["entries"]
    yield "Added", content["added"]
    yield "Removed", content["removed"]
    yield "Out of reach", len(content["unreachable"])
    if content["coverage"] is not None:
        yield "Of the corpus's tokens kept", f"{content['coverage']:.2%}"


def _tables(content: Mapping[str, Any]) -> Iterable[Json]:
    yield from ledger.vocabularies({"vocabulary": [content]})
    yield _compressions(content["texts"])
    if content["terms"]:
        yield _terms(content["terms"])
    if content["published"]:
        yield _published(content["published"])


def _compressions(texts: Iterable[Mapping[str, Any]]) -> Json:
    keys = ("tokens_per_character", "tokens_per_byte", "bytes_per_token")
    rows = [
        [one["name"], *(one[side][key] for key in keys for side in ("base", "new"))]
        for one in texts
    ]
    words = ("tokens a character", "tokens a byte", "bytes a token")
    head = ("text", *(f"{word}, {side}" for word in words for side in ("before", "now")))
    return ledger.table("compression", "Compression", head, rows)


def _terms(terms: Mapping[str, Any]) -> Json:
    rows = [
        ["before", terms["base"], terms["base"] / terms["terms"], terms["whole_base"]],
        ["now", terms["new"], terms["new"] / terms["terms"], terms["whole"]],
    ]
    title = f"{terms['terms']:,} expressions of the domain"
    return ledger.table("terms", title, ("", "tokens", "each", "of one token"), rows)


def _published(found: Mapping[str, Any]) -> Json:
    rows = [[one["tokenizer"], one["entries"], one["rate"], _origin(one)] for one in found["rows"]]
    left = [f"{name} is left out: {why}." for name, why in found["left_out"].items()]
    head = ("tokenizer", "entries", "rate", "from")
    hint = " ".join([found["about"], *left])
    return ledger.table("published", "The source's table beside ours", head, rows, hint)


def _origin(row: Mapping[str, Any]) -> str:
    return "published" if row["published"] else "measured here"


def _tokens(content: Mapping[str, Any]) -> Iterable[tuple[str, list[str], int]]:
    """Tokens that have to be looked at, by what they are."""
    for title, name in (
        ("Out of reach", "unreachable"),
        ("New, and not whole characters", "partial"),
    ):
        if found := content[name]:
            yield title, list(found[:MOST]), len(found)
