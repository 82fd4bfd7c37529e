"""Writes what declarations say: docs/measures/*.md, variants.md, studies.md, README.md's table.

Run by `make docs`; `tests/test_house.py` fails while a page differs from its declaration.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from layerlab.blocks.part import SLOTS
from layerlab.blocks.spec import Variant
from layerlab.measures.measure import Bound, Measure
from layerlab.model.option import options_of
from layerlab.model.preset import Preset, presets
from layerlab.registry import measures, studies
from layerlab.studies.study import Study
from layerlab.variants.inventory import home, variants

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- measures: written by make docs -->", "<!-- end of measures -->"

# The columns that name a row mean the same in every frame.
PLACES = {
    "model": "name of the model, as it was given",
    "sequence": "number of the text, from 0",
    "layer": "number of the block, from 0",
    "head": "attention head, from 0",
    "place": "stream (after the block), attention or ffn (what each adds to the stream)",
    "sublayer": "attention or ffn",
    "format": "the number format, as it was asked for",
    "by": "component, layer, pair (of components), cross (component and layer)",
    "part": "what was rounded, alone",
    "component": "part of the block",
    "mode": "as-run (float32 where the code asks for it) or flat (every result in the format)",
}
# Where a frame has a row for the embedding output, it is layer 0 and the first block is layer 1.
LAYERS = {
    **dict.fromkeys(
        ("diversity", "dimension", "stream", "lipschitz", "rounding"),
        "0 is the embedding output, 1 the first block",
    ),
    "condition": "1 is the first block",
    "gradients": "0 is what stands before the blocks, 1 the first block; the last, what follows",
    **dict.fromkeys(
        ("spectrum", "attention", "querykey", "gain"), "0 is the first attention layer"
    ),
}


def pages() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    found = measures().values()
    written = {ROOT / "docs" / "measures" / f"{one.name}.md": page(one) for one in found}
    readme = ROOT / "README.md"
    own = {name: one for name, one in variants().items() if home(name).startswith("layerlab.")}
    written[ROOT / "docs" / "variants.md"] = catalogue(own, presets().values())
    written[ROOT / "docs" / "studies.md"] = claims(studies().values())
    return {**written, readme: with_table(readme.read_text("utf-8"), found)}


def page(measure: Measure) -> str:
    """The page of one measure."""
    per = {name: _place(name, measure) for name in ("model", *measure.per)}
    parts = [
        f"# {measure.title}",
        f"{measure.about}",
        f"`layerlab inspect MODEL --measures {measure.name}` gives the frame `{measure.name}`.",
        "## Definition",
        f"```text\n{measure.equation}\n```",
        "\n".join(
            [
                f"- **Unit**: {measure.unit}",
                f"- **Source**: {measure.source.rstrip('.')} (see [sources](../sources.md))",
                f"- **Healthier**: {measure.better or 'no direction in general'}",
                f"- **Reads**: {', '.join(sorted(measure.needs))}",
                f"- **Part of the default set**: {'yes' if measure.default else 'no'}",
            ]
        ),
        "## Columns",
        _table(
            ("column", "meaning"), [(f"`{k}`", v) for k, v in {**per, **measure.columns}.items()]
        ),
    ]
    if measure.options:
        options = [
            (f"`{name}`", f"`{value!r}`", str(measure.domain(name) or "anything"))
            for name, value in measure.options.items()
        ]
        parts += ["## Options", _table(("option", "default", "takes"), options)]
    if measure.bound:
        parts += ["## Bounds", _table(("what holds", "source"), map(_bound, measure.bound))]
    return "\n\n".join(parts) + "\n"


def with_table(readme: str, found: Iterable[Measure]) -> str:
    """The README with its table of measures written anew."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    rows = [
        (
            f"[`{one.name}`](docs/measures/{one.name}.md)"
            + ("" if one.default else " (on request)"),
            one.title,
            ", ".join(f"`{name}`" for name in one.columns),
        )
        for one in found
    ]
    table = _table(("measure", "what it is", "columns"), rows)
    return f"{before}{START}\n{table}\n{END}{after}"


def catalogue(own: Mapping[str, Variant], shapes: Iterable[Preset]) -> str:
    """The page of all variants, by file, and of the published shapes."""
    parts = [
        "# Variants",
        "What `layerlab variants` lists and `layerlab.build` builds. *Unsaid* is what the source "
        "leaves open: in words, or as options, whose defaults are our reading; `layerlab variants "
        "NAME` shows them with their values, beside parameters, FLOPs and a picture of the block. "
        "Keys of sources are resolved in [sources](sources.md).",
    ]
    for place, names in groupby(own, key=home):
        rows = [_variant(own[name]) for name in names]
        head = ("variant", "equation", "source", "compared with", "unsaid")
        parts += [f"## {place.removeprefix('layerlab.variants.')}", _table(head, rows)]
    rows = [
        (f"`{one.name}`", f"`{one.variant}`", one.source, one.published, one.unsaid)
        for one in shapes
    ]
    head = ("preset", "variant", "source", "published", "not published")
    parts += [
        "## Presets",
        'A preset stands where a variant may: `layerlab.build("llama-7b", device="meta")`. Its '
        "shape fits every other variant too: `--preset`, or `preset=` in Python.",
        _table(head, rows),
    ]
    return "\n\n".join(parts) + "\n"


def claims(found: Iterable[Study]) -> str:
    """The page of all studies: what each judges, and what it costs."""
    rows = [
        (
            f"`{one.name}`",
            one.claim,
            one.source,
            str(one.draws),
            one.cost,
            ", ".join(f"`{name}={value}`" for name, value in one.options.items()),
        )
        for one in found
    ]
    parts = [
        "# Studies",
        "`layerlab study NAME` repeats one figure or claim of a source and says whether it holds, "
        "fails, or is not decided, with the number and its 95 % interval from resampled draws. It "
        "writes `study.html`, `study.json` and `tables/*.csv` into `layerlab-studies/NAME` (`--out "
        "DIR`), and pictures as PNG where the extra `figures` is installed. Finished batches are "
        "kept until then: after Ctrl-C the same command goes on where it was, `--restart` begins "
        "anew. `--draws N` takes fewer random initialisations than the source, `--threads N` says "
        'how many batches run at once; in Python, `layerlab.study("NAME", draws=500).verdict`.',
        "Costs are those of two free cores. Options are given as `--option NAME=VALUE`. Keys of "
        "sources are resolved in [sources](sources.md); what came out is in the [log](log.md).",
        _table(("study", "claim", "source", "draws", "cost", "options"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def _variant(one: Variant) -> tuple[str, ...]:
    open_ = [
        f"`{slot}.{name}`"
        for slot in SLOTS
        for name, option in options_of(one.spec, slot).items()
        if option.unsaid
    ]
    unsaid = " ".join(filter(None, [one.unsaid, f"Options: {', '.join(open_)}." if open_ else ""]))
    return f"`{one.name}`", f"`{one.equation}`", one.source, f"`{one.baseline}`", unsaid


def _place(name: str, measure: Measure) -> str:
    if name == "layer" and measure.name in LAYERS:
        return LAYERS[measure.name]
    return PLACES.get(name, name)


def _bound(bound: Bound) -> tuple[str, str]:
    sign = {"upper": "<=", "lower": ">=", "beside": "drawn beside"}[bound.side]
    return f"`{bound.column}` {sign} `{bound.limit}`", bound.source


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    # A bar ends a cell, also inside code; ||X|| is common here.
    return text.replace("|", "\\|")


def main() -> None:
    """Write every page that differs."""
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
