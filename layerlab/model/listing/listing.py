"""Output of `layerlab variants`: a table of what can be built, or the page of one variant."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from layerlab.console.units import amount
from layerlab.errors import UserError
from layerlab.model.cost.cost import Account, account
from layerlab.model.cost.match import Match, design_baseline, match
from layerlab.model.design import design
from layerlab.model.listing.card import Card, card
from layerlab.model.typed_options import check_match
from layerlab.system.files import from_here
from layerlab.variants.registry import home, variants

WIDE, AIRY = 118, 134  # from here on all columns fit; from here on with space between them
_FIRST = "layerlab.variants.models.reference"
_NARROW = ("emb.", "head", "block", "fwd", "carry", "par%", "FLOP%", "baseline")
_FULL = (
    *("embed.", "head", "blocks", "scalars", "forward", "backward", "carry", "par. %", "FLOP %"),
    *("total", "pointwise", "baseline"),
)
_LEGEND = (
    "Parameters of embedding, head, blocks (matrices) and scalars; exact FLOPs of one token's "
    "forward and backward pass in a full context; numbers per token carried from layer to layer; "
    "parameters and forward FLOPs beyond the baseline's, in percent."
)
_NOT_SHOWN = (
    f"Not shown in fewer than {WIDE} columns: scalars, backward, total, pointwise; --json has all."
)
_UNCOUNTED = "Not counted: activations that training keeps for the backward pass."
_COUNTED = "* counted on a model without memory, since a part does not say what it costs."


@dataclass(frozen=True, kw_only=True)
class Request:
    """The answer to one request for a listing.

    Attributes:
        cards: of what was named, or of everything.
        refused: why a variant does not exist at these sizes, by its name.
        matches: what was sought to make each on equal terms with another.
        named: whether a single one was named, which shows its page.
    """

    cards: Sequence[Card]
    refused: Mapping[str, str] = field(default_factory=dict)
    matches: Sequence[Match] = ()
    named: bool = False

    def render(self, width: int) -> Group:
        """Return the page of one variant or a sentence on each, for a terminal of this width."""
        if self.named:
            return page(self.cards[0], *self.matches)
        return sentences(self.cards, self.refused)

    def render_costs(self, width: int) -> Group:
        """Return the page of one variant or the numbers of several, for this width."""
        if self.named:
            return self.render(width)
        lines = [
            Text(f"{_show(one.name)} matched by {found.by}, {found}")
            for one, found in zip(self.cards, self.matches, strict=False)
        ]
        return Group(table(self.cards, self.refused, width), *lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and texts."""
        return {
            "schema": 1,
            "variants": {one.name: one.to_dict() for one in self.cards},
            "refused": dict(self.refused),
            "matches": [found.to_dict() for found in self.matches],
        }


def request(
    names: Sequence[str],
    *,
    sizes: Mapping[str, Any],
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    by: Any = None,
    against: str | None = None,
) -> Request:
    """Return the cards of some variants, or of all, file by file; resized where they are matched.

    Raises:
        UserError: one that was named cannot be, none can, or there is nothing to match.
    """
    check_match(names, by, against)
    if not names:
        return _everything(sizes, preset, options)
    found = [design(name, preset=preset, sizes=sizes, options=options) for name in names]
    if by is None:
        return Request(cards=[card(one) for one in found], named=len(found) == 1)
    cards, matches = [], []
    for own in found:
        other = design_baseline(own, against, sizes)
        target = account(other.spec, other.shape)
        matches.append(match(own.spec, own.shape, target, by=by))
        resized = card(replace(own, shape=matches[-1].shape))
        cards.append(replace(resized, baseline=against or resized.baseline, against=target))
    return Request(cards=cards, matches=matches, named=len(found) == 1)


def _everything(
    sizes: Mapping[str, Any], preset: str | None, options: Mapping[str, Any] | None
) -> Request:
    cards, refused = [], {}
    for name in _order():
        try:
            cards.append(card(design(name, preset=preset, sizes=sizes, options=options)))
        except UserError as error:
            refused[name] = str(error)
    if not cards:
        raise UserError(next(iter(refused.values())))
    return Request(cards=cards, refused=refused)


def sentences(found: Sequence[Card], refused: Mapping[str, str]) -> Group:
    """Return what each variant is in one sentence, grouped by file."""
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("variant", overflow="fold", style="bold")
    grid.add_column("idea")
    for key, group in groupby(found, key=lambda one: one.home):
        grid.add_row(Text(f"{_show(_heading(key))}:", style="dim"))
        for one in group:
            grid.add_row(Text(_show(one.name)), Text(first_sentence(_show(one.about))))
    return Group(grid, Text(), *_remarks(refused), Text("Their numbers: --costs", style="dim"))


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop.

    Example:
        >>> first_sentence("Adds 0.5 of it. Then stops.")
        'Adds 0.5 of it.'
    """
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)[0]


def table(found: Sequence[Card], refused: Mapping[str, str], width: int) -> Group:
    """Return a table with one line per variant, grouped by file, narrow enough for the terminal."""
    wide = width >= WIDE
    grid = Table(box=None, padding=(0, 2 if width >= AIRY else 1, 0, 0), pad_edge=False)
    grid.add_column("variant", overflow="fold", style="bold")
    for name in _FULL if wide else _NARROW:
        grid.add_column(name, no_wrap=True, justify="left" if name == "baseline" else "right")
    for key, group in groupby(found, key=lambda one: one.home):
        grid.add_row(Text(f"{_show(_heading(key))}:", style="dim"))
        for one in group:
            name = f"{' ' if wide else ''}{one.name}{'*' if one.account.counted else ''}"
            grid.add_row(Text(_show(name)), *_row(one, wide))
    notes = [Text(_LEGEND, style="dim"), *([] if wide else [Text(_NOT_SHOWN, style="dim")])]
    if any(one.account.counted for one in found):
        notes.append(Text(_COUNTED, style="dim"))
    return Group(Text(_sizes(found)), Text(), grid, Text(), *notes, *_remarks(refused))


def _remarks(refused: Mapping[str, str]) -> Iterator[Text]:
    for name, why in refused.items():
        yield Text(f"{name} is not here: {_show(why)}", "yellow")
    yield Text("One of them: layerlab variants NAME", style="dim")


def page(one: Card, matched: Match | None = None) -> Group:
    """Return all that is known of one variant."""
    parts: list[RenderableType] = [
        Text.assemble((_show(one.name), "bold"), f"  {_show(from_here(Path(one.home)))}"),
        Text(_show(one.about)),
        Text(),
        _facts(_describe(one)),
        Text(),
        Text(one.picture, no_wrap=True),
        Text(),
    ]
    if one.settings:
        parts += [_options(one), Text()]
    parts += [Text(_sizes([one])), _sums(one), Text(_UNCOUNTED, style="dim")]
    if one.account.counted:
        parts.append(Text(_COUNTED, style="dim"))
    if matched is not None:
        parts += [Text(), Text(f"matched by {matched.by} to {one.baseline}: {matched}")]
    return Group(*parts)


def figure(count: int) -> str:
    """Return a count in three digits, as narrow as a column wants it.

    Example:
        >>> figure(6738415616), figure(999), figure(15253504)
        ('6.74G', '999', '15.3M')
    """
    return amount(count).replace(" ", "")


def percent(share: float) -> str:
    """Return a difference in percent; 0 says that there is none.

    Example:
        >>> percent(0.0), percent(0.4567), percent(-34.2), percent(1e-4)
        ('0', '+0.46', '-34', '+0.00')
    """
    digits = 0 if abs(share) >= 9.95 else 1 if abs(share) >= 0.995 else 2
    return f"{share:+.{digits}f}" if share else "0"


def _order() -> list[str]:
    """Return the names: the reference first, then file by file as they are declared."""
    return sorted(variants(), key=lambda name: home(name) != _FIRST)


def _row(one: Card, wide: bool) -> Iterator[str]:
    own = one.account
    yield from map(figure, (own.embedding, own.head, own.blocks))
    if wide:
        yield figure(own.scalars)
    yield from map(figure, (own.forward, own.backward) if wide else (own.forward,))
    yield figure(own.carry)
    yield from (percent(one.extra["parameters"]), percent(one.extra["flops"]))
    if wide:
        yield figure(own.parameters)
        yield "?" if own.counted else figure(own.pointwise)
    yield _show(one.baseline)


def _sizes(found: Sequence[Card]) -> str:
    shape = found[0].shape
    inner = {one.shape.inner for one in found}
    label = f"inner {shape.inner}" if len(inner) == 1 else "inner as each variant has it"
    shared = f" ({shape.kv_heads} of keys and values)" if shape.kv_heads != shape.heads else ""
    preset = found[0].preset
    return (
        f"{f'{preset.name}: ' if preset else ''}width {shape.width}, {shape.layers} layers, "
        f"{shape.heads} heads{shared}, {label}, vocabulary {shape.vocab}, context {shape.context}"
    )


def _describe(one: Card) -> Iterator[tuple[str, str]]:
    yield "equation", one.equation
    yield "source", one.source
    if one.unsaid:
        yield "unsaid", one.unsaid
    if one.cost:
        yield "cost", one.cost
    if one.start == "identity" and one.name != one.baseline:
        yield "at step 0", f"the same function as {one.baseline}"
    if one.preset is not None:
        yield "preset", f"{one.preset.name} ({one.preset.source})"
        yield "published", one.preset.published
        yield "not published", one.preset.unsaid


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in rows:
        grid.add_row(name, Text(_show(text)))
    return grid


def _options(one: Card) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("option", "value", "takes", "meaning"):
        grid.add_column(name)
    for setting in one.settings:
        open_ = " (unsaid by the source)" if setting.unsaid else ""
        texts = (
            f"{setting.slot}.{setting.name}",
            _value(setting.value),
            setting.domain,
            setting.about + open_,
        )
        grid.add_row(*(Text(_show(text)) for text in texts))
    return grid


def _sums(one: Card) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("")
    for name in (one.name, one.baseline, "difference %"):
        grid.add_column(Text(_show(name)), justify="right")
    for name, count in _entries(one.account).items():
        other = _entries(one.against)[name]
        share = (
            percent(100 * (count - other) / other) if other else "0" if count == other else "new"
        )
        grid.add_row(name, f"{count:,}", f"{other:,}", share)
    return grid


def _entries(cost: Account) -> dict[str, int]:
    return {
        "embedding": cost.embedding,
        "head": cost.head,
        "blocks": cost.blocks,
        "scalars": cost.scalars,
        "parameters": cost.parameters,
        "FLOPs per token, forward": cost.forward,
        "FLOPs per token, backward": cost.backward,
        "other operations per token (estimate)": cost.pointwise,
        "numbers per token carried across layers": cost.carry,
        "numbers per sequence cached beside keys, values": cost.cached,
    }


def _value(value: Any) -> str:
    return ",".join(map(_value, value)) if isinstance(value, tuple) else str(value)


def _heading(home: str) -> str:
    """Return what stands above the variants of one module or file."""
    return Path(home).name if home.endswith(".py") else home.rpartition(".")[2]


def _show(text: str) -> str:
    """Return a text without what no reader could see; a file from outside may say anything."""
    return "".join(one for one in text if one.isprintable() or one == "\n")
