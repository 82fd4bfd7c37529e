"""The page of all variants, and one of each, from what they declare; part of `make docs`."""

import runpy
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from layerlab.blocks.part import SLOTS
from layerlab.blocks.spec import Variant
from layerlab.model.listing.card import Card, Setting
from layerlab.model.listing.listing import percent
from layerlab.model.option import options_of
from layerlab.model.preset import Preset
from layerlab.variants.registry import home

table = runpy.run_path(str(Path(__file__).with_name("table.py")))["table"]


def catalogue(own: Mapping[str, Variant], shapes: Iterable[Preset]) -> str:
    """Return the page of all variants, by file, and of the published shapes."""
    parts = [
        "# Variants",
        "What `layerlab variants` lists and `layerlab.build` builds; a name leads to its page. "
        "*Unsaid* is what the source leaves open: in words, or as options, whose defaults are our "
        "reading. Keys of sources are resolved in [sources](sources.md); a block of your own is "
        "[one file](add-a-variant.md).",
    ]
    for place, names in groupby(own, key=home):
        rows = [_row(own[name]) for name in names]
        head = ("variant", "equation", "source", "compared with", "unsaid")
        parts += [f"## {_file(place)}", table(head, rows)]
    rows = [
        (f"`{one.name}`", f"`{one.variant}`", one.source, one.published, one.unsaid)
        for one in shapes
    ]
    head = ("preset", "variant", "source", "published", "not published")
    parts += [
        "## Presets",
        'A preset stands where a variant may: `layerlab.build("llama-7b", device="meta")`. Its '
        "shape fits every other variant too: `--preset`, or `preset=` in Python.",
        table(head, rows),
    ]
    return "\n\n".join(parts) + "\n"


def sheet(one: Card) -> str:
    """Return the page of one variant."""
    return "\n\n".join(_parts(one)) + "\n"


def _parts(one: Card) -> Iterator[str]:
    yield f"# {one.name}"
    yield one.about
    yield (
        f"`layerlab variants {one.name}` shows it at any size; in Python, "
        f'`layerlab.build("{one.name}")`. All variants: [the list](../variants.md).'
    )
    yield "## Definition"
    yield f"```text\n{one.equation}\n```"
    yield "\n".join(f"- **{name}**: {text}" for name, text in _facts(one))
    yield "## The block"
    yield f"```text\n{one.picture}\n```"
    if one.settings:
        yield "## Options"
        yield table(("option", "default", "takes", "meaning"), map(_option, one.settings))
    yield "## What it costs"
    shape = one.shape
    yield (
        f"At width {shape.width}, {shape.layers} layers, {shape.heads} heads, inner {shape.inner}, "
        f"vocabulary {shape.vocab}, context {shape.context}:"
    )
    baseline = one.baseline if one.name != one.baseline else ""
    head = ("", one.name, *([baseline, "difference"] if baseline else []))
    yield table(head, _costs(one, bool(baseline)))


def _facts(one: Card) -> Iterator[tuple[str, str]]:
    yield "Source", f"{one.source.rstrip('.')} (see [sources](../sources.md))"
    if one.name != one.baseline:
        yield "Compared with", f"[`{one.baseline}`]({one.baseline}.md)"
        same = one.start == "identity"
        yield (
            "At step 0",
            f"the same function as `{one.baseline}`" if same else "a function of its own",
        )
    if one.unsaid:
        yield "Unsaid by the source", one.unsaid
    if one.cost:
        yield "Cost", one.cost
    yield "File", f"`{one.home.replace('.', '/')}.py`"


def _option(one: Setting) -> tuple[str, ...]:
    unsaid = " (unsaid by the source)" if one.unsaid else ""
    return f"`{one.slot}.{one.name}`", f"`{one.value}`", one.domain, one.about + unsaid


def _costs(one: Card, beside: bool) -> Iterator[tuple[str, ...]]:
    own, other = one.account, one.against
    for name, count, baseline in (
        ("parameters", own.parameters, other.parameters),
        ("FLOPs of one token, forward", own.forward, other.forward),
        ("numbers per token carried across layers", own.carry, other.carry),
        ("numbers per sequence cached beside keys and values", own.cached, other.cached),
    ):
        if beside:
            share = f"{percent(100 * (count - baseline) / baseline)} %" if baseline else "-"
            yield name, f"{count:,}", f"{baseline:,}", share
        else:
            yield name, f"{count:,}"


def _row(one: Variant) -> tuple[str, ...]:
    open_ = [
        f"`{slot}.{name}`"
        for slot in SLOTS
        for name, option in options_of(one.spec, slot).items()
        if option.unsaid
    ]
    unsaid = " ".join(filter(None, [one.unsaid, f"Options: {', '.join(open_)}." if open_ else ""]))
    name = f"[`{one.name}`](variants/{one.name}.md)"
    return name, f"`{one.equation}`", one.source, f"`{one.baseline}`", unsaid


def _file(place: str) -> str:
    return place.rpartition(".")[2]
