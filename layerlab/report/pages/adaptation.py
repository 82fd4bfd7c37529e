"""The page of an adaptation: one file, no network, beside its numbers.

The content is the dict that `result.json` holds. Whatever of it is missing is left out of the page;
what came from outside reaches it escaped, as in `page.py`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from layerlab.errors import UserError
from layerlab.recipes import toml
from layerlab.records.json_values import Json, json_values
from layerlab.records.parse import find_table, seal
from layerlab.records.renamed_settings import current_settings
from layerlab.report.figures import comparison_svg
from layerlab.report.i18n.language import ENGLISH, Label, Language, label, language
from layerlab.report.pages import adaptation_tables
from layerlab.report.pages.shell import DRAWING, fill_page
from layerlab.report.views import command, text
from layerlab.report.views.curves import short
from layerlab.report.views.forest_plot import format_signed
from layerlab.system import files
from layerlab.system.csv_text import csv_of
from layerlab.system.own_page import check_own_links, is_own_page, mark_of

_STYLES = ("page.css", "comparison.css", "adaptation.css")
PAGE, DATA, TABLES, PICTURES = "report.html", "result.json", "tables", "pictures"
ROWS = 200
NAME = 60
# Colours that can be told apart on white and on black.
COLOURS = ("#2f93c8", "#d55e00", "#00805d", "#b8588f", "#bf7f00")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "cross", "x")
KINDS = ("domain", "general")
_LISTS = (
    *("arms", "stages", "base", "texts", "contamination", "vocabulary", "embedding"),
    *("pretrain", "changes", "tune", "scores", "differences", "samples", "left_out", "remarks"),
)
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("name", "about", "inferred", "created", "layerlab"), str),
    **dict.fromkeys(_LISTS, list),
    **dict.fromkeys(("recipe", "table"), dict),
}
_KEPT = ("scores", "changes", "differences", "stages", "samples", "left_out")


def render(content: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of an adaptation.

    Raises:
        UserError: a part of the content is of another kind than an adaptation's, or there is no
            page in this language.
    """
    checked = _check(content)
    names = frozenset(map(str, checked["arms"]))
    translator = language(lang, names)
    recipe = current_settings(checked["recipe"])
    pictures = [one for kind in KINDS if (one := _picture(checked["pretrain"], kind, translator))]
    return fill_page(
        "adaptation.html",
        _STYLES,
        lang,
        content=checked,
        facts=list(_facts(checked)),
        said=list(_describe(checked)),
        open=sum(not one.get("finished") for one in checked["stages"]),
        sections=adaptation_tables.sections(checked, len(pictures)),
        samples=_samples(checked),
        stages=[adaptation_tables.stages(checked)],
        pictures=pictures,
        names=names,
        recipe=toml.write_toml(command.recipe_from_anywhere(recipe)),
        command=command.run_recipe("adapt", recipe),
        most=ROWS,
        scripts=[DRAWING, "study.js"],
        data={"pictures": pictures},
    )


def check_adaptation_folder(folder: Path) -> None:
    """Refuse a folder with files that a report would replace and that no earlier one wrote.

    Raises:
        UserError: there is one.
    """
    foreign = None
    if not (folder / DATA).exists():
        foreign = next(
            (name for name in (PAGE, TABLES, PICTURES) if (folder / name).exists()), None
        )
    elif not _is_adaptation(folder / DATA):
        foreign = DATA
    elif (folder / PAGE).exists() and not is_own_page(folder / PAGE, mark_of("adapt")):
        foreign = PAGE
    if foreign is not None:
        raise UserError(
            f"{folder} holds something other than an adaptation: {foreign}; move it away, or name "
            "another folder with --out"
        )
    check_own_links(folder, (DATA, PAGE, TABLES, PICTURES))


def _is_adaptation(file: Path) -> bool:
    found = find_table(file)
    kinds = {"recipe": dict, "arms": list, "stages": list}
    return all(isinstance(found.get(name), kind) for name, kind in kinds.items())


def save_adaptation(content: Mapping[str, Any], folder: Path, lang: str = ENGLISH) -> Path:
    """Write report.html, result.json, tables/ and pictures/ into the folder of an adaptation.

    All are written or none, and nothing else in the folder is touched.

    Args:
        content: what result.json holds.
        folder: of the adaptation.
        lang: of the page; whatever else is written is English.

    Returns:
        The page.

    Raises:
        UserError: the content cannot be read, or the folder cannot be written or holds other files.
    """
    checked = _check(content)
    written = render(checked, lang)
    check_adaptation_folder(folder)
    # First: it tells that what lies beside it was written here.
    sealed = seal(json_values(content))
    data = json.dumps(sealed, allow_nan=False, ensure_ascii=False, indent=1)
    contents = {DATA: data + "\n"}
    for name in _KEPT:
        contents[f"{TABLES}/{name}.csv"] = csv_of(pd.DataFrame(checked[name]))
    for kind in KINDS:
        drawing = comparison_svg.curve_picture(_race(checked, kind))
        if drawing:
            contents[f"{PICTURES}/{kind}.svg"] = drawing
    files.write_files(folder, {**contents, PAGE: written})
    return folder / PAGE


def _check(content: Mapping[str, Any]) -> Json:
    """Check the content, as plain JSON values with every part present.

    Raises:
        UserError: a part is of another kind.
    """
    checked: Json = json_values(dict(content))
    for name, kind in _KINDS.items():
        found = kind() if checked.get(name) is None else checked[name]
        if not isinstance(found, kind):
            raise UserError(
                f"this is no content of an adaptation: {name!r} is damaged; "
                "type layerlab adapt RECIPE.toml to make it anew"
            )
        checked[name] = found
    return checked


def _facts(content: Json) -> Iterable[tuple[str, Any]]:
    for one in content["base"][:1]:
        yield label("Parameters of the base"), one.get("parameters")
    for one in content["vocabulary"][:1]:
        yield label("Vocabulary before"), one.get("entries_base")
        yield label("Vocabulary after"), one.get("entries")
    yield label("Arms"), len(content["arms"])
    seconds = [one.get("seconds") or 0 for one in content["stages"]]
    yield label("Minutes of all stages"), round(sum(seconds) / 60, 1)


def _describe(content: Json) -> Iterable[str]:
    """Describe what was learned and forgotten, in sentences."""
    for one in content["changes"]:
        baseline = one.get("against")
        more = "" if baseline == "before" else f", against {baseline}"
        if one.get("low") is not None:
            low, high = format_signed(one["low"]), format_signed(one["high"])
            over = f"{one.get('n')} {one.get('over')}"
            more += f" (95 % interval {low} to {high}, over {over})"
        arm, size = one.get("arm"), format_signed(one.get("value"))
        if one.get("kind") == "general":
            yield f"{arm}: {size} bits per byte on general text, which is what it forgot{more}"
        else:
            yield f"{arm}: {size} bits per byte on text of the domain{more}"


def _samples(content: Json) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for one in content["samples"]:
        answer = (Label(adaptation_tables.name_model(one)), str(one.get("answer")))
        found.setdefault(str(one.get("prompt")), []).append(answer)
    return found


def _picture(runs: Sequence[Mapping[str, Any]], kind: str, translator: Language) -> Json | None:
    """Plot bits per byte along the tokens: of an arm a colour and a dash, of a seed a mark."""
    arms = list(dict.fromkeys(str(run.get("arm")) for run in runs))
    seeds = list(dict.fromkeys(str(run.get("seed")) for run in runs))
    traces = []
    for run in runs:
        curves = run.get("curves") or {}
        if not curves.get(kind):
            continue
        arm = str(run.get("arm"))
        rank, seed = arms.index(arm), seeds.index(str(run.get("seed")))
        # Plotly reads a little HTML in every text it draws.
        named = translator.translate(f"{arm}, seed {run.get('seed')}")
        name = escape(text.prose(named, NAME), quote=False)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": curves.get("tokens") or [],
                "y": [short(value) for value in curves[kind]],
                "name": name,
                "line": {"color": COLOURS[rank % len(COLOURS)], "dash": DASHES[rank % len(DASHES)]},
                "marker": {"symbol": SYMBOLS[seed % len(SYMBOLS)], "size": 8},
            }
        )
    if not traces:
        return None
    title = label("General text, held out")
    if kind == "domain":
        title = label("Text of the domain, held out")
    along, bits = map(
        translator.label, (label("tokens of continued pretraining"), label("bits per byte"))
    )
    axis = {"gridcolor": "rgba(128,128,128,.25)", "zeroline": False}
    layout = {
        "height": 340,
        "margin": {"l": 62, "r": 14, "t": 14, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 13},
        "xaxis": {**axis, "title": {"text": along}},
        "yaxis": {**axis, "title": {"text": bits}, "automargin": True},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
    }
    return {"name": kind, "title": title, "data": traces, "layout": layout}


def _race(content: Json, kind: str) -> Json:
    """Return the curves of a kind in the form that a comparison has."""
    runs = [run for run in content["pretrain"] if (run.get("curves") or {}).get(kind)]
    names = [f"{run.get('arm')}-s{run.get('seed')}" for run in runs]
    return {
        "name": f"{content['name']}: {kind} text",
        "metric": "bits_per_byte",
        "arms": content["arms"],
        "seeds": sorted({run.get("seed") or 0 for run in runs}),
        "runs": [{"run": name, "finished": True} for name in names],
        "curves": [
            {
                "run": name,
                "arm": run.get("arm"),
                "chosen": True,
                "evaluation": {
                    "update": run["curves"].get("update") or [],
                    "bits_per_byte": run["curves"][kind],
                },
            }
            for name, run in zip(names, runs, strict=True)
        ],
    }
