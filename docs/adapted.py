"""What recipes for adaptation came to, for the page of all results; part of `make docs`."""

import json
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.verdict import number
from layerlab.recipes.adaptation import AdaptationRecipe

PARTS = runpy.run_path(str(Path(__file__).with_name("table.py")))
table, listed = PARTS["table"], PARTS["listed"]
Json = Mapping[str, Any]
OUT = "docs/results"
# Standard errors to either side, and the share of scores by chance that lie beyond.
WIDE, ALPHA = 1.96, 0.05
PICTURES = {"domain.svg": "Text of the domain", "general.svg": "General text"}


def adapted(folder: Path, recipes: Sequence[AdaptationRecipe]) -> str:
    """Return the parts of the page that are about adaptation; recipes without a result say so."""
    parts: list[str] = []
    for recipe in recipes:
        file = folder / recipe.name / "result.json"
        parts.append(f"## {recipe.name}")
        if file.is_file():
            parts += _result(folder, json.loads(file.read_text(encoding="utf-8")))
        else:
            parts += _missing(recipe)
    return "\n\n".join(parts) + "\n"


def _missing(recipe: AdaptationRecipe) -> list[str]:
    device = recipe.run.device
    where = "" if device == "cpu" else f" It is for another device ({device})."
    return [recipe.about, f"**Not run yet.**{where} `layerlab adapt {recipe.name} --out {OUT}`"]


def _result(folder: Path, content: Json) -> Iterator[str]:
    name = content["name"]
    yield content["about"]
    if content["inferred"]:
        yield f"Inferred: {content['inferred']}"
    done = [one for one in content["stages"] if one["finished"]]
    hours = sum(one["seconds"] for one in done) / 3600
    yield (
        f"{len(done)} of {len(content['stages'])} stages are finished, in {hours:.2f} hours; "
        f"layerlab {content['layerlab']}."
    )
    yield _scores(content)
    if asked := _asked(content):
        yield asked
    if content["changes"]:
        yield "\n".join(f"- {_said(one)}" for one in content["changes"])
    for file, title in PICTURES.items():
        if (folder / name / "pictures" / file).is_file():
            yield f"![{title}: {name}]({name}/pictures/{file})"
    told = [*content["remarks"], *(f"{one['what']}: {one['why']}" for one in content["left_out"])]
    if told:
        yield f"Caveats:\n\n{listed(told)}"
    yield f"To repeat it: `layerlab adapt {name} --out {OUT}`"


def _scores(content: Json) -> str:
    """Return a table of the scores of every model; benchmarks in percent, with standard errors."""
    rows = []
    for row in content["table"]["rows"]:
        percent = row["unit"] == "score"
        chance = "-" if row["chance"] is None else f"{100 * row['chance']:.1f}"
        cells = (_cell(one, percent) for one in row["cells"])
        unit = "%" if percent else row["unit"]
        rows.append((f"{row['title']} ({row['kind']})", unit, *cells, chance))
    return table(("", "unit", *content["table"]["columns"], "chance"), rows)


def _asked(content: Json) -> str:
    """Say how many questions the scores rest on, and whether they differ from chance."""
    rows = [row for row in content["table"]["rows"] if row["unit"] == "score"]
    counts = {row["title"]: [one["n"] for one in row["cells"] if one] for row in rows}
    if not rows or not all(counts.values()):
        return ""
    limit = (content["recipe"].get("evaluate") or {}).get("limit")
    said = [f"At most {limit} questions of each subject are asked." if limit else ""]
    asked = ", ".join(f"{max(found)} of {name}" for name, found in counts.items())
    said.append(f"The scores are of {asked} questions.")
    beside = [row for row in rows if row["chance"] is not None]
    cells = [(one, row["chance"]) for row in beside for one in row["cells"] if one and one["error"]]
    if cells:
        away = sum(abs(one["score"] - chance) > WIDE * one["error"] for one, chance in cells)
        guess = ", ".join(f"{100 * row['chance']:g} on {row['title']}" for row in beside)
        least = len(cells) * ALPHA
        judged = "nothing is decided" if away <= 1 + least else "some may be more than chance"
        said.append(
            f"A guess scores {guess}; of {len(cells)} scores there {away} "
            f"{'lies' if away == 1 else 'lie'} further from that than 1.96 standard errors, and "
            f"{least:.1f} would by chance alone: {judged}."
        )
    return " ".join(filter(None, said))


def _cell(cell: Json | None, percent: bool) -> str:
    if cell is None or cell["score"] is None:
        return "-"
    scale, digits = (100, 1) if percent else (1, 4)
    error = "" if cell["error"] is None else f" ± {scale * cell['error']:.{digits}f}"
    return f"{scale * cell['score']:.{digits}f}{error}"


def _said(change: Json) -> str:
    what = "forgetting" if change["kind"] == "general" else f"{change['kind']} text"
    baseline = "" if change["against"] == "before" else f", against {change['against']}"
    interval = ""
    if change["low"] is not None:
        ends = f"{number(change['low'], True)} to {number(change['high'], True)}"
        interval = f" (95 % interval {ends}, over {change['n']} {change['over']})"
    value = number(change["value"], True)
    return f"{change['arm']}, {what}: {value} bits per byte{baseline}{interval}"
