"""The proof of a vocabulary as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from layerlab.adaptation.proof import Proof, Tally
from layerlab.domain import shown

# Tokens that are named; the file names all.
NAMED = 8
WIDTH = 24


def drawn(proof: Proof) -> RenderableType:
    """All of it, the verdict first."""
    parts: list[RenderableType] = [_lines(proof), Text(), _tallies(proof.tallies)]
    if proof.published:
        parts += [Text(), _published(proof.published)]
    return Group(*parts)


def _lines(proof: Proof) -> Text:
    now = f"{proof.entries_base:,} entries are now {proof.entries:,}"
    lines = [f"{now}: {proof.added:,} added, {proof.removed:,} removed"]
    if proof.coverage is not None:
        lines.append(f"kept: {proof.coverage:.2%} of the corpus's tokens")
    of = "new" if proof.added else "kept"
    lines.append(f"out of reach: {len(proof.unreachable):,}{_named(proof.unreachable)}")
    lines.append(f"{of} tokens in none of these texts: {proof.unused:,}")
    if proof.added:
        lines.append(f"new, not whole characters: {len(proof.partial):,}{_named(proof.partial)}")
    if proof.terms is not None:
        terms = proof.terms
        lines.append(
            f"{terms.terms:,} terms: {terms.base / terms.terms:.2f} tokens each before, "
            f"{terms.new / terms.terms:.2f} now; one token: {terms.whole_base:,} before, "
            f"{terms.whole:,} now"
        )
    text = Text("proved" if proof.holds else "NOT proved", style="bold")
    return text.append("\n" + "\n".join(lines), style="not bold")


def _named(tokens: Sequence[str]) -> str:
    if not tokens:
        return ""
    more = " ..." if len(tokens) > NAMED else ""
    return f" ({' '.join(map(shown, tokens[:NAMED]))}{more})"


def _tallies(tallies: Sequence[Tally]) -> Group:
    sizes = _table("", "tokens/char", "now", "tokens/byte", "bytes/token", "ratio")
    counts = _table("", "texts", "come back", "changed", "longer", "only joined")
    for one in tallies:
        name, new = _short(one.name), one.new
        rates = (one.base.per_character, new.per_character, new.per_byte, new.bytes / new.tokens)
        sizes.add_row(Text(name), *(f"{rate:.4f}" for rate in (*rates, one.ratio)))
        found = (new.texts, one.back, one.changed, one.longer, one.coarser)
        counts.add_row(Text(name), *(f"{count:,}" for count in found))
    return Group(sizes, Text(), counts)


def _published(content: Mapping[str, Any]) -> Group:
    table = _table("tokenizer", "entries", "rate", "from")
    for row in content["rows"]:
        origin = "published" if row["published"] else "measured here"
        cells = (f"{row['entries']:,}", f"{row['rate']:.3f}", origin)
        table.add_row(Text(_short(row["tokenizer"])), *cells)
    left = [f"{_short(name)} is left out: {why}" for name, why in content["left_out"].items()]
    return Group(table, Text("\n".join([content["about"], *left]), style="dim"))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    return table


def _short(name: str) -> str:
    """A name without what steers a terminal."""
    plain = "".join(one if one.isprintable() else " " for one in name)
    return plain if len(plain) <= WIDTH else f"...{plain[3 - WIDTH :]}"
