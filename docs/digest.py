"""The page of all results, from the comparisons that lie beside it; part of `make docs`."""

import json
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.console.units import difference
from layerlab.experiments.analysis.ladder_table import HEADS, list_cells, list_sentences
from layerlab.experiments.analysis.verdict import number
from layerlab.recipes.comparison_sections import Claim
from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.renamed_settings import current_settings
from layerlab.studies.engine.scale import comparison_scale
from layerlab.studies.engine.study import claimant
from layerlab.studies.support.false_discovery import find_p_value, format_rate, rates

PARTS = runpy.run_path(str(Path(__file__).with_name("table.py")))
table, listed = PARTS["table"], PARTS["listed"]
Json = Mapping[str, Any]
OUT = "docs/results"
RECIPE = "recipe.toml"
ORDER = ("holds", "smaller than asked", "fails", "not decided")
# A study of the comparison has its pictures already.
SHOWN = {
    "Differences to the baseline": ("studies/{}/difference.svg", "{}/pictures/forest.svg"),
    "Learning curves": ("studies/{}/curve.svg", "{}/pictures/curves.svg"),
    "Gradients by block": ("studies/{}/gradient-mean.svg", "{}/pictures/gradients.svg"),
}

HEAD = f"""# Results

What the comparisons of the package came to, and what they say of the claims of the sources.
`make docs` writes this page from the files beside it: a `comparison.json` for each recipe, and its
runs folded into two files: `manifests.parquet` with recipe, manifest and result of each, and
`curves.parquet` with the journals line by line, to be drawn with pandas. `--fold` behind either
command writes both.

```sh
layerlab compare NAME --out {OUT}            # carries out what is missing, then judges
layerlab compare NAME --out {OUT} --judge    # judges what is there
make docs                                          # writes this page
```

The first two unfold the runs into `runs/` as they were, byte for byte, and skip what is finished:
a comparison goes on where it stopped; models and checkpoints are not kept. Beside these a run
on another machine or of other versions is refused: give it another `--out`. How to read the
numbers: [comparison](../comparison.md). Keys of sources: [sources](../sources.md)."""

RULE = """A claim is made of pairs of arms, compared seed by seed. It **holds** where every
pair is as it says, and **fails** where one is surely not, after Holm's correction for all
tests of its recipe; else it is **not decided** by so few seeds, which speaks neither for nor
against it. What is *alike*, or *no better*, is so within the margin that is given. A verdict is
one on the size, the text and the length of its recipe, which stands behind it: the sources
trained far more."""


ACROSS = """Holm's correction is for the tests of one recipe. Nothing is corrected across recipes:
beside each verdict stands **q**, the false-discovery rate of Benjamini and Hochberg over all those
of this page, of claims and of arms. Of those up to a q of 0.05 one in twenty, at most, is expected
to be chance."""


def declared(folder: Path) -> list[TrainingRecipe]:
    """Return the recipes of the package, and those beside results on a text that is not public."""
    files = sorted(folder.glob(f"*/{RECIPE}"))
    return [load_recipe(one) for one in (*list_packaged(), *files)]


def digest(folder: Path, recipes: Sequence[TrainingRecipe]) -> str:
    """Return the whole page; recipes without a comparison say so."""
    many = [recipe for recipe in recipes if recipe.compare is not None]
    found = {recipe.name: _read(folder / recipe.name / "comparison.json") for recipe in many}
    found = _discovered(found)
    parts = [HEAD, "## Claims of the sources", RULE, ACROSS, *_claims(many, found)]
    for recipe in many:
        content = found[recipe.name]
        parts.append(f"## {recipe.name}")
        parts += _missing(recipe) if content is None else _result(folder, content)
    return "\n\n".join(parts) + "\n"


def _read(file: Path) -> Json | None:
    if not file.is_file():
        return None
    found: Json = json.loads(file.read_text(encoding="utf-8"))
    return found


def _discovered(found: Mapping[str, Json | None]) -> dict[str, Json | None]:
    """Add to every word its false-discovery rate, over all claims and arms of the page."""
    words = [
        (name, kind, one)
        for name, content in found.items()
        for kind in ("claims", "rows")
        for one in (content or {}).get(kind) or ()
    ]
    found_rates = rates(
        [find_p_value(one) if kind == "claims" else one["p"] for _, kind, one in words]
    )
    rated: dict[str, dict[str, list[Json]]] = {name: {"claims": [], "rows": []} for name in found}
    for (name, kind, one), rate in zip(words, found_rates, strict=True):
        rated[name][kind].append({**one, "q": rate})
    return {name: one and {**one, **rated[name]} for name, one in found.items()}


def _claims(recipes: Sequence[TrainingRecipe], found: Mapping[str, Json | None]) -> Iterator[str]:
    judged = {name: one["claims"] for name, one in found.items() if one and one.get("claims")}
    rows = [(name, one) for name, claims in judged.items() for one in claims]
    if rows:
        own = [one for _, one in rows if claimant(one["source"]) == "Own"]
        theirs = [one for _, one in rows if one not in own]
        yield f"- claims of the sources: {_counted(theirs)}\n- claims of our own: {_counted(own)}"
        yield table(
            ("source", "claim", "verdict", "q", "number", "recipe"),
            [
                (*_judged(one, found[name] or {}), _number(one["said"]), _link(name))
                for name, one in rows
            ],
        )
    waiting = {one.name: len(_of(one)) for one in recipes if one.name not in judged and _of(one)}
    if waiting:
        names = ", ".join(f"{_link(name)} {count}" for name, count in waiting.items())
        yield f"Claims that wait for runs: {names}."


def _counted(claims: Sequence[Json]) -> str:
    counts = Counter(one["verdict"] for one in claims)
    return ", ".join(f"{word} {counts[word]}" for word in ORDER)


def _judged(claim: Json, content: Json) -> tuple[str, ...]:
    """Return a claim's source, its text, its word with the scale of its arms, and a rate."""
    scale = comparison_scale(content, claim["arms"])
    word = f"**{claim['verdict']}**{f' at {scale}' if scale else ''}"
    return claim["source"], claim["says"], word, format_rate(claim["q"])


def _of(recipe: TrainingRecipe) -> Sequence[Claim]:
    return recipe.compare.claims if recipe.compare else ()


def _number(said: str) -> str:
    """Return a verdict's sentence without the verdict, which stands beside it."""
    return said.partition(": ")[2]


def _link(name: str) -> str:
    return f"[`{name}`](#{name})"


def _missing(recipe: TrainingRecipe) -> list[str]:
    device = recipe.run.device
    where = "" if device == "cpu" else f" It is for another device ({device})."
    claims = "\n".join(f"- {one.statement} ({one.source})" for one in _of(recipe))
    said = f"**Not run yet.**{where} `layerlab compare {recipe.name} --out {OUT}`"
    return [recipe.about, said, *([f"It will judge:\n\n{claims}"] if claims else [])]


def _result(folder: Path, content: Json) -> Iterator[str]:
    name = content["name"]
    yield content["about"]
    if content["inferred"]:
        yield f"Inferred: {content['inferred']}"
    yield " ".join([_extent(content), *_machines(folder / name)])
    if ladder := content.get("ladder"):
        yield table(HEADS, list_cells(content))
        yield listed(list_sentences(ladder))
    yield _rows(content)
    for title, files in SHOWN.items():
        places = [one.format(name) for one in files]
        if there := next((one for one in places if (folder / one).is_file()), None):
            yield f"![{title}: {name}]({there})"
    claims = content.get("claims") or ()
    if claims:
        yield "\n".join(f"- {one['says']} ({one['source']}) {_said(one)}" for one in claims)
    if content["remarks"]:
        yield f"Caveats:\n\n{listed(content['remarks'])}"
    if (folder / name / RECIPE).is_file():
        yield f"To judge it again: `layerlab compare {OUT}/{name} --judge`"
    else:
        yield f"To repeat it: `layerlab compare {name} --out {OUT}`"


def _said(claim: Json) -> str:
    """Return a claim's sentence with its verdict in bold."""
    word = str(claim["verdict"])
    return f"**{word[:1].upper()}{word[1:]}**{str(claim['said']).removeprefix(word)}"


def _extent(content: Json) -> str:
    compare = current_settings(content["recipe"])["compare"]
    tried = (
        compare["trials"]
        if compare["search"] == "optuna"
        else max(1, len(compare["learning_rates"]))
    )
    planned = len(content["arms"]) * len(content["seeds"]) * tried
    if ladder := content.get("ladder"):
        runs = sum(one["runs"] for one in ladder["sizes"])
        return f"{runs} runs of {len(ladder['sizes'])} sizes."
    done = [run for run in content["runs"] if run["finished"]]
    lengths = sorted({f"{run['updates']:,}" for run in done if run.get("updates")})
    tokens = sorted({f"{run['tokens']:,}" for run in done if run.get("tokens")})
    said = f"{len(done)} of {planned} runs are finished"
    if lengths:
        said += f", of {' or '.join(lengths)} updates and {' or '.join(tokens)} tokens"
    timed = [run["seconds"] for run in done if run.get("seconds")]
    hours = f"{sum(timed) / 3600:.1f} hours of training together"
    if len(timed) < len(done):
        each = sum(timed) / max(1, len(timed))
        hours = f"{each:.0f} seconds of training in each of {len(timed)} runs whose time counts"
    return f"{said}; {hours}."


def _machines(folder: Path) -> Iterator[str]:
    """Yield where the runs happened, from their manifests."""
    seen = set()
    unfold_runs(folder)
    for file in sorted(folder.glob("runs/*/manifest.json")):
        manifest = json.loads(file.read_text(encoding="utf-8"))
        machine, versions = manifest["machine"], manifest["versions"]
        threads = machine.get("threads")
        each = f", {threads} {'thread' if threads == 1 else 'threads'} a run" if threads else ""
        seen.add(
            f"{machine['processor']} ({machine['device']}{each}); torch {versions['torch']}, "
            f"transformers {versions['transformers']}, layerlab {versions['layerlab']}."
        )
    yield from sorted(seen)


def _rows(content: Json) -> str:
    unit = "bits per byte" if content["metric"] == "bits_per_byte" else "nats"
    head = ("arm", "against", "differs in", "seeds", unit, "difference", "interval", "p (Holm)")
    head = (*head, "q", "verdict")
    return table(head, [_row(row, content["metric"]) for row in content["rows"]])


def _row(row: Json, metric: str) -> tuple[str, ...]:
    interval = "-"
    if row["low"] is not None:
        interval = f"{number(row['low'], True)} to {number(row['high'], True)}"
    return (
        f"`{row['arm']}`",
        "-" if row["against"] == row["arm"] else f"`{row['against']}`",
        _differs(row.get("differs")),
        str(row["n"]),
        "-" if row[metric] is None else f"{row[metric]:.4f}",
        "-" if row["difference"] is None else number(row["difference"], True),
        interval,
        "-" if row["holm"] is None else f"{row['holm']:.2g}",
        format_rate(row["q"]),
        row["verdict"],
    )


def _differs(found: Json | None) -> str:
    """Return the slots, stack and size that differ, and by how much the parameters do."""
    if not found:
        return "-"
    places = ", ".join(dict.fromkeys(one["place"] for one in found["factors"])) or "nothing"
    count = found["parameters"]
    if not count or not count["difference"]:
        return places
    return f"{places} ({difference(count['percent'], 1)} % parameters)"
