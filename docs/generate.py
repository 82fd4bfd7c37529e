"""Writes what declarations say: pages of measures, variants, studies, and three pages' tables.

Those are the settings of recipes in training.md and adaptation.md, and the recipes of the package
in comparison.md. `block.py` is the pages of variants, `manual.py` api.md and examples.md;
`digest.py` and `adapted.py` are the page of results/: what comparisons and adaptations came to;
`architecture.py` is that of the house itself, `layers.py` its picture.

Run by `make docs`; `tests/house/test_house.py` fails while a page differs from its declaration.
"""

import json
import re
import runpy
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from layerlab.measures.measure import Measure
from layerlab.model.design import design
from layerlab.model.listing.card import card
from layerlab.model.preset import presets
from layerlab.plugins import list_measures
from layerlab.recipes.adaptation import AdaptationRecipe as Course
from layerlab.recipes.adaptation import list_packaged as lessons
from layerlab.recipes.adaptation import load_adaptation
from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe
from layerlab.recipes.training_sections import Source
from layerlab.records.renamed_settings import NAMES
from layerlab.studies.engine.discovery import studies
from layerlab.studies.support.stored_readings import FOLDER, fold_readings
from layerlab.variants.registry import home, variants

ROOT = Path(__file__).resolve().parents[1]


def beside(name: str) -> dict[str, Any]:
    """Return what another file of this folder defines."""
    return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))


table, bounds = (beside("table")[name] for name in ("table", "bounds"))
block, manual = beside("block"), beside("manual")
digest, adapted = beside("digest"), beside("adapted")["adapted"]
studied, holds = beside("studied"), beside("holds")
architecture, layers = beside("architecture")["architecture"], beside("layers")["layers"]
registry, covered = beside("cited")["registry"], beside("covered")["covered"]

# The columns that name a row mean the same in every frame.
PLACES = {
    "model": "name of the model, as it was given",
    "sequence": "number of the text, from 0",
    "layer": "number of the block, from 0",
    "head": "attention head, from 0",
    "place": "stream (after the block), attention or ffn (what each adds to the stream)",
    "sublayer": "attention or ffn",
    "statement": "the theorem; `gated` where the feed-forward is, which theorems leave out",
    "format": "the number format, as it was asked for",
    "by": "component, layer, pair (of components), cross (component and layer); of `gap` also"
    " token, operation and remedy; of `swap` all, layer, and matrix in its block",
    "part": "what was rounded, or swapped, alone",
    "component": "part of the block",
    "matrix": "name of the weight inside its block, without the number of an expert",
    "expert": "number of the expert, empty where the matrix is no expert's",
    "position": "of the token in the text, from 0; long texts are reported in part",
    "token": "the token as text",
    "mode": "as-run (float32 where the code asks for it), flat (every result in the format) or"
    " autocast (parameters and stream in float32)",
}
# Where a frame has a row for what the first block reads.
LAYERS = {
    **dict.fromkeys(
        "diversity dimension features stream lipschitz rounding saliency lens".split(),
        f"{PLACES['layer']}; -1 is the embedding",
    ),
    "matrices": f"{PLACES['layer']}; -1 in front of them, their count behind them",
    "gradients": f"{PLACES['layer']}; -1 is the embedding, their count what follows them",
}
# What needs no word where it is declared, and one in a table.
PLAIN = {
    "preset": "a published shape, of those in [variants](variants.md)",
    "width": "of the stream",
    "layers": "blocks",
    "heads": "of attention, per layer",
    "kv_heads": "key-value heads, which groups of heads share",
    "head_width": "of one head",
    "inner": "width of the feed-forward; a number with a point is a multiple of `width`",
    "context": "tokens that the model sees at most",
    "beta1": "AdamW's, of the mean",
    "beta2": "AdamW's, of the square",
    "epsilon": "AdamW's",
    "partition": "of the cluster",
    "account": "that is charged",
    "qos": "quality of service",
    "gpus": "of each job",
    "cpus": "of each job; at least the threads of its processes",
    "memory_gb": "of each job",
    "parallel": "jobs of the array at once, at most",
}


def pages() -> dict[Path, str]:
    """Return every generated file with the text that it should have."""
    found = list_measures().values()
    written = {ROOT / "docs" / "measures" / f"{one.name}.md": page(one) for one in found}
    written[ROOT / "docs" / "measures" / "README.md"] = measured(found)
    own = {name: one for name, one in variants().items() if home(name).startswith("layerlab.")}
    written[ROOT / "docs" / "variants.md"] = block["catalogue"](own, presets().values())
    for name in own:
        sheet = block["sheet"](card(design(name)))
        written[ROOT / "docs" / "variants" / f"{name}.md"] = sheet
    known = studies()
    written[ROOT / "docs" / "studies.md"] = studied["claims"](known.values())
    judged = studied["stored"](ROOT / "docs" / "results" / "studies", known.values())
    contests = holds["contested"](ROOT / "docs" / "results", known)
    written[ROOT / "docs" / "what-holds.md"] = holds["holds"](judged, known, contests)
    places = covered(ROOT, holds["judge"](judged, known, contests))
    for name, content in judged.items():
        place = ROOT / "docs" / "results" / "studies" / name
        sheet = studied["page"](known[name], content, place)
        written[ROOT / "docs" / "studies" / f"{name}.md"] = sheet
    written |= registry(ROOT)
    written[ROOT / "docs" / "architecture.md"] = architecture()
    written[ROOT / "docs" / "architecture.svg"] = layers()
    written[ROOT / "docs" / "api.md"] = manual["reference"]()
    written[ROOT / "docs" / "examples.md"] = manual["examples"](ROOT / "examples")
    results = ROOT / "docs" / "results"
    written[results / "README.md"] = "\n".join(
        (
            digest["digest"](results, digest["declared"](results)),
            adapted(results, [load_adaptation(name) for name in lessons()]),
        )
    )
    for name, title, text in (
        ("training", "settings", "\n\n".join([*settings(TrainingRecipe), older_names()])),
        ("adaptation", "settings", "\n\n".join(settings(Course))),
        ("comparison", "recipes", recipes(list_packaged())),
        ("sources", "places", places),
    ):
        path = ROOT / "docs" / f"{name}.md"
        written[path] = with_part(path.read_text("utf-8"), title, text)
    return written


def older_names() -> str:
    """Return the table of what settings were called in 0.1, whose recipes are still read."""
    rows = [
        (f"`{f'{place}.' if place else ''}{old}`", f"`{new}`")
        for place, names in NAMES.items()
        for old, new in names.items()
    ]
    about = (
        "Most names are those of transformers' `TrainingArguments` and of TRL. A recipe with the "
        "names of 0.1 is still read, with one line that says so; a setting under both names is "
        "refused. `layerlab adapt clean` and `layerlab.clean_text` read those of `clean` likewise."
    )
    return f"### Names of 0.1\n\n{about}\n\n{table(('in 0.1', 'today'), rows)}"


def page(measure: Measure) -> str:
    """Return the page of one measure."""
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
                f"- **Part of the default set**: {'yes' if measure.default else 'no'}"
                + (", of models that have such modules" if measure.rare else ""),
            ]
        ),
        "## Columns",
        table(
            ("column", "meaning"), [(f"`{k}`", v) for k, v in {**per, **measure.columns}.items()]
        ),
    ]
    if measure.use:
        parts += ["## Use", measure.use]
    if measure.options:
        options = [
            (f"`{name}`", f"`{value!r}`", str(measure.domain(name) or "anything"))
            for name, value in measure.options.items()
        ]
        parts += ["## Options", table(("option", "default", "takes"), options)]
    parts += bounds(measure.bound)
    return "\n\n".join(parts) + "\n"


def with_part(text: str, name: str, part: str) -> str:
    """Return a page with its part of this name written anew."""
    start, end = f"<!-- {name}: written by make docs -->", f"<!-- end of {name} -->"
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{part}\n{end}{after}"


def measured(found: Iterable[Measure]) -> str:
    """Return the page of all measures."""
    rows = [
        (
            f"[`{one.name}`]({one.name}.md)" + ("" if one.default else " (on request)"),
            one.title,
            ", ".join(f"`{name}`" for name in one.columns),
        )
        for one in found
    ]
    parts = [
        "# Measures",
        "`layerlab inspect MODEL` takes those that are not marked; `--measures NAME,NAME` takes "
        "the ones that it names. What `layer` counts stands on each page.",
        table(("measure", "what it is", "columns"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def settings(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield a table for each section of a recipe: every setting's values, default and meaning."""
    schema = section.model_json_schema()
    about, meanings = _documented(section)
    for kind in section.__mro__[1:]:
        meanings = _documented(kind)[1] | meanings
    yield f"### {f'[{path}]' if path else 'At the top'}\n\n{about}"
    inside: dict[str, type[BaseModel]] = {}
    rows = []
    for name, field in section.model_fields.items():
        nested = _section(field.annotation)
        taken = schema["properties"][name]
        kinds = {one.get("type") for one in (taken, *taken.get("anyOf", ()))}
        if nested in (None, TrainingRecipe) or "array" in kinds:
            meaning = meanings.get(name) or PLAIN.get(name, "")
            row = f"`{name}`", _takes(taken), _default(field), meaning.removesuffix(".")
            rows.append(row)
        # A recipe of training inside another has its tables on a page of its own.
        # Of two lists of one section, the first has its table.
        if nested is not None and nested is not TrainingRecipe and nested not in inside.values():
            inside[name] = nested
    if rows:
        yield table(("setting", "takes", "default", "meaning"), rows)
    for name, nested in inside.items():
        yield from settings(nested, f"{path}.{name}" if path else name)


def recipes(names: Iterable[str]) -> str:
    """Return the recipes of the package, and what of each is an inference."""
    found = {name: load_recipe(name) for name in names}
    rows = [(f"`{name}`", one.about, *_extent(one)) for name, one in found.items()]
    inferred = [f"- `{name}`: {one.inferred}" for name, one in found.items() if one.inferred]
    listed = table(("recipe", "for", "arms x seeds", "text", "length", "device"), rows)
    return f"{listed}\n\nInferred, and so no part of what a source says:\n\n" + "\n".join(inferred)


def _extent(recipe: TrainingRecipe) -> tuple[str, ...]:
    train, many = recipe.train, recipe.compare
    size = "1" if many is None else f"{len(many.arms)} x {len(many.seeds)}"
    if many is not None and many.learning_rates:
        size += f" x {len(many.learning_rates)} rates"
    if (ladder := recipe.ladder) is not None:
        size += f" x {ladder.steps} sizes"
    lengths = {"updates": train.max_steps, "tokens": train.tokens, "epochs": train.num_train_epochs}
    (length,) = (f"{most:,} {name}" for name, most in lengths.items() if most is not None)
    length = length.replace(".0 ", " ")
    if ladder is not None and ladder.tokens_per_parameter is not None:
        length = f"{ladder.tokens_per_parameter:g} tokens a parameter"
    texts = ", ".join(f"`{source.text}`" for source in recipe.data.sources)
    return size, texts, f"{length}, {train.batch_size:,} sequences each", recipe.run.device


def _documented(section: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """Return the first paragraphs of a docstring, and its attributes by name."""
    about, _, listed = cleandoc(section.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^    (\w+): (.+?)(?=^    \w|\Z)", listed, re.MULTILINE | re.DOTALL)
    return about.strip(), {name: " ".join(text.split()) for name, text in entries}


def _section(kind: Any) -> type[BaseModel] | None:
    """Return the section that a setting holds, or a list of which it holds."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    inside = (_section(one) for one in getattr(kind, "__args__", ()))
    return next((one for one in inside if one is not None), None)


def _takes(schema: Mapping[str, Any]) -> str:
    """Return what a setting takes, from its JSON schema."""
    if "$ref" in schema:
        return "a table"
    if "anyOf" in schema:
        kinds = [_takes(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type")
    if kind == "array":
        return f"list: {_takes(schema['items'])}"
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true, false",
        "object": "a table",
    }
    limits = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "exclusiveMaximum": "below {}",
    }
    said = [limits[key].format(f"{schema[key]:g}") for key in limits if key in schema]
    return " ".join([words.get(str(kind), "text"), *said])


def _default(field: FieldInfo) -> str:
    """Return a default as TOML has it; nothing where a setting may be left out."""
    if field.is_required():
        return "required"
    given = field.get_default(call_default_factory=True, validated_data={})
    return "" if given is None else f"`{_written(given)}`"


def _written(given: Any) -> str:
    if isinstance(given, BaseModel):  # what it differs in from an empty one is not its content
        return _written({"text": given.text} if isinstance(given, Source) else {})
    if isinstance(given, dict):
        return f"{{{', '.join(f'{key} = {_written(one)}' for key, one in given.items())}}}"
    if isinstance(given, tuple):
        return f"[{', '.join(map(_written, given))}]"
    return json.dumps(given)


def _place(name: str, measure: Measure) -> str:
    if name == "layer" and measure.name in LAYERS:
        return LAYERS[measure.name]
    return PLACES.get(name, name)


def main() -> None:
    """Write every page that differs, and fold what studies left in the folder of results."""
    if (results := ROOT / "docs" / "results").joinpath(FOLDER).exists():
        fold_readings(results)
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
