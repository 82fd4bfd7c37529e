"""The check of a vocabulary as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from layerlab.console.tables import grid, grids, printable
from layerlab.tokenization.vocabulary.verify import TokenizerComparison, VocabularyCheck
from layerlab.validation import short_repr

# Tokens that are named; the file names all.
NAMED = 8
WIDTH = 24


def render_check(check: VocabularyCheck, width: int) -> RenderableType:
    """Render the whole check, the verdict first, for a terminal of so many characters."""
    parts: list[RenderableType] = [_lines(check), Text(), _tallies(check.tallies, width)]
    if check.published:
        parts += [Text(), _published_table(check.published)]
    return Group(*parts)


def _lines(check: VocabularyCheck) -> Text:
    now = f"{check.entries_base:,} entries are now {check.entries:,}"
    lines = [f"{now}: {check.added:,} added, {check.removed:,} removed"]
    if check.coverage is not None:
        lines.append(f"kept: {check.coverage:.2%} of the corpus's tokens")
    of = "new" if check.added else "kept"
    lines.append(f"out of reach: {len(check.unreachable):,}{_list_tokens(check.unreachable)}")
    lines.append(f"{of} tokens in none of these texts: {check.unused:,}")
    if check.added:
        lines.append(
            f"new, not whole characters: {len(check.partial):,}{_list_tokens(check.partial)}"
        )
    if check.terms is not None:
        terms = check.terms
        lines.append(
            f"{terms.terms:,} terms: {terms.base / terms.terms:.2f} tokens each before, "
            f"{terms.new / terms.terms:.2f} now; one token: {terms.whole_base:,} before, "
            f"{terms.whole:,} now"
        )
    text = Text("proved" if check.holds else "NOT proved", style="bold")
    return text.append("\n" + "\n".join(lines), style="not bold")


def _list_tokens(tokens: Sequence[str]) -> str:
    if not tokens:
        return ""
    more = " ..." if len(tokens) > NAMED else ""
    return f" ({' '.join(map(short_repr, tokens[:NAMED]))}{more})"


def _tallies(tallies: Sequence[TokenizerComparison], width: int) -> Group:
    rates = [
        (one.base.per_character, new.per_character, new.per_byte, new.bytes / new.tokens, one.ratio)
        for one in tallies
        for new in (one.new,)
    ]
    counts = [(one.new.texts, one.back, one.changed, one.longer, one.coarser) for one in tallies]
    names = [_short(one.name) for one in tallies]
    sizes = ("", "tokens/char", "now", "tokens/byte", "bytes/token", "ratio")
    returns = ("", "texts", "come back", "changed", "longer", "only joined")
    return Group(
        grids(sizes, _rows(names, rates, ".4f"), ("",), width),
        Text(),
        grids(returns, _rows(names, counts, ","), ("",), width),
    )


def _rows(
    names: Sequence[str], numbers: Sequence[Sequence[int | float]], style: str
) -> list[list[str]]:
    return [
        [name, *(format(number, style) for number in row)]
        for name, row in zip(names, numbers, strict=True)
    ]


def _published_table(content: Mapping[str, Any]) -> Group:
    rows = [
        (
            _short(row["tokenizer"]),
            f"{row['entries']:,}",
            f"{row['rate']:.3f}",
            "published" if row["published"] else "measured here",
        )
        for row in content["rows"]
    ]
    table = grid(("tokenizer", "entries", "rate", "from"), rows, ("tokenizer",))
    left = [f"{_short(name)} is left out: {why}" for name, why in content["left_out"].items()]
    return Group(table, Text("\n".join([content["about"], *left]), style="dim"))


def _short(name: str) -> str:
    """Return a name, or the end of a long one."""
    text = printable(name)
    return text if len(text) <= WIDTH else f"...{text[3 - WIDTH :]}"
