"""The page of a comparison, or of a single run: one file, no network, beside its numbers.

The content is the dict that `comparison.json` holds; manifests and events are read from the folders
of the runs. Whatever of it is missing is left out of the page; what came from outside reaches it
escaped, as in `page.py`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layerlab.errors import UserError
from layerlab.recipes import toml
from layerlab.records import run_files
from layerlab.records.json_values import Json, json_values
from layerlab.records.parse import get_table, seal
from layerlab.records.renamed_settings import current_settings
from layerlab.report.figures import comparison_svg
from layerlab.report.figures.ladder import ladder_pictures
from layerlab.report.i18n.language import ENGLISH, label, language
from layerlab.report.pages.ladder import check_ladder, tabulate_sweeps
from layerlab.report.pages.shell import DRAWING, fill_page
from layerlab.report.views import command, equal_terms, forest_plot, monitor_timeline, text
from layerlab.report.views import curves as curve
from layerlab.system import files
from layerlab.system.csv_text import csv_of
from layerlab.system.own_page import is_own_page, mark_of

_SCRIPTS = (
    *(DRAWING, "figure.js", "glance.js", "jump.js", "curve.js", "lapse.js", "comparison.js"),
)
_STYLES = ("page.css", "comparison.css")
PAGE, TABLES, PICTURES = "report.html", "tables", "pictures"
ROWS = 200
NAME = 60
UNITS = {"nats": label("nats per token"), "bits_per_byte": label("bits per byte")}
# What a monitor reads, where it is no column of a measure.
MONITORED = {
    "score": label("largest attention score"),
    "attention_norm": label("spectral norm of attention"),
    "sink_mass": label("attention to the first token"),
    "stream_norm": label("norm of the residual stream"),
    "querykey_norm": label("spectral norm of W_k^T W_q"),
    "relative_residual": label("share of the stream that differs between tokens"),
    "growth": label("growth of the residual stream"),
    "gradient": label("norm of the gradient"),
}
# How a remark on a declared difference begins.
_DIFFER = "declared to differ"
# The parts that are long: only their numbers are drawn, and each is checked as it is read.
_BULK = ("curves", "monitor")
# Lists of rows, other lists, tables, texts: whatever is missing is empty.
_ROWS = (
    *("rows", "interactions", "measures", "claims", "runs", "curves", "paired", "gradients"),
    *("monitor", "alarms", "notes", "samples"),
)
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("name", "about", "inferred", "baseline", "created", "layerlab"), str),
    **dict.fromkeys(("command", "metric", "match"), str),
    **dict.fromkeys((*_ROWS, "arms", "remarks"), list),
    **dict.fromkeys(("recipe", "manifests", "elsewhere"), dict),
}
_NAMED = {"rows": ("arm", "against"), "runs": ("run",), "measures": ("measure", "arm", "against")}
_CURVES = {"train": ("loss",), "evaluation": ("nats", "bits_per_byte", "accuracy")}
# Tables that are left out where they have no rows.
_IF_ANY = ("ladder", "measures")
# Columns of a table without rows.
_POINT = ("run", "arm", "seed", "rate", "chosen")
_HEADS = {
    "rows": ("arm", "n", "nats", "difference", "low", "high", "holm", "verdict"),
    "runs": ("run", "arm", "seed", "rate", "nats", "finished", "diverged"),
    "measures": (*_NAMED["measures"], "seed", "value", "baseline", "difference"),
    "paired": ("arm", "tokens", "n", "difference", "low", "high"),
    "monitor": ("run", "arm", "seed", "update", "layer", "head", "measure", "value"),
    **{kind: (*_POINT, *run_files.COLUMNS[kind]) for kind in _CURVES},
}


def render(content: Mapping[str, Any], lang: str = ENGLISH, *, single: bool = False) -> str:
    """Render the whole page of a comparison.

    Args:
        content: that `comparison.json` holds.
        lang: of the page.
        single: whether it is of one run, which is one arm without rows.

    Raises:
        UserError: a part of the content is of another kind than a comparison's, or there is no page
            in this language.
    """
    return _render(_check(content), lang, single=single)


def save_comparison(
    content: Mapping[str, Any], folder: Path, lang: str = ENGLISH, *, shared: Path | None = None
) -> Path:
    """Write report.html, comparison.json, tables/ and pictures/ into the folder of a comparison.

    All are written or none, and nothing else in the folder is touched.

    Args:
        content: what comparison.json holds.
        folder: of the comparison.
        lang: of the page; whatever else is written is English.
        shared: folder that holds `runs/`, where it is another one.

    Returns:
        The page.

    Raises:
        UserError: the content cannot be read, or the folder cannot be written.
    """
    checked = _check(run_files.gather_run_files(content, shared or folder))
    written = _render(checked, lang, single=False)
    # First: it tells that what lies beside it was written here.
    kept = {**content, "curves": _brief(content.get("curves"))} if "curves" in content else content
    sealed = seal(json_values(kept))
    data = json.dumps(sealed, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    contents = {run_files.COMPARISON: data + "\n"}
    contents |= _tables(checked, [*_HEADS, *(one for one in _IF_ANY if checked[one])])
    drawn = {**comparison_svg.pictures(checked), **ladder_pictures(checked)}
    pictures = {f"{PICTURES}/{name}": drawing or None for name, drawing in drawn.items()}
    files.write_files(folder, {**contents, **pictures, PAGE: written})
    return folder / PAGE


def check_run_page(folder: Path) -> None:
    """Refuse the folder of a run with a page of the user's own.

    Raises:
        UserError: there is one.
    """
    if (folder / PAGE).exists() and not is_own_page(folder / PAGE, mark_of("train")):
        raise UserError(
            f"{folder} holds a {PAGE} that is no page of layerlab train; move it away, or name "
            "another folder with --out"
        )


def save_run(folder: Path, lang: str = ENGLISH) -> Path:
    """Write report.html and tables/ into the folder of a run, read from its files.

    Args:
        folder: of the run.
        lang: of the page.

    Returns:
        The page.

    Raises:
        UserError: no run has begun there, or the folder cannot be written or has another page.
    """
    check_run_page(folder)
    checked = _check(run_files.describe_single(folder))
    tables = _tables(checked, [*_CURVES, *(["monitor"] if checked["monitor"] else [])])
    files.write_files(folder, {**tables, PAGE: _render(checked, lang, single=True)})
    return folder / PAGE


def view(content: Mapping[str, Any]) -> Json:
    """Return what the page draws of a checked content: curves, differences, rates, the monitor."""
    names = _arms(content)
    metric = content["metric"]
    chosen = {str(run.get("arm")) for run in content["runs"] if run.get("chosen")}
    runs = [_run(run, names, metric, chosen) for run in content["runs"]]
    judged = [run["run"] for run, own in zip(content["runs"], runs, strict=True) if own["judged"]]
    counts = [sum(run["arm"] == index for run in runs) for index in range(len(names))]
    by_name = {str(one.get("run")): one for one in content["curves"]}
    points = [by_name.get(run["run"], {}) for run in content["runs"]]
    curves = {kind: curve.curve_columns(points, kind, values) for kind, values in _CURVES.items()}
    drawn = [one for kind in curves.values() for one in kind["runs"].values()]
    return {
        "models": [{"name": text.prose(n, NAME), "step": None, "layers": 0} for n in names],
        "aligned": False,
        "baseline": curve.find_arm(content["baseline"], names),
        "metric": metric,
        "higher": content.get("higher_is_better", False),
        "unit": UNITS.get(metric, text.prose(metric, NAME)),
        "runs": runs,
        "several": any(not run["judged"] for run in runs),
        "timed": any(one["seconds"] is not None for one in drawn),
        "curves": curves,
        "widths": curve.shares(_confidence(content), counts),
        "paired": curve.paired_columns(content["paired"], names),
        "monitor": monitor_timeline.monitor_timeline(content["monitor"], judged, names),
    }


def _render(content: Mapping[str, Any], lang: str, *, single: bool) -> str:
    data, translator, rows = view(content), language(lang), content["rows"]
    recipe = current_settings(content["recipe"])
    section = get_table(recipe, "compare")
    declared = [str(one) for one in section.get("allowed_differences") or ()]
    return fill_page(
        "comparison.html",
        _STYLES,
        lang,
        content=content,
        single=single,
        ladder=content["ladder"],
        sweeps=tabulate_sweeps(content["ladder"], content["metric"]),
        pictures=ladder_pictures(content, translator.label),
        names=_arms(content),
        confidence=f"{100 * _confidence(content):g} %",
        forest=forest_plot.forest(
            rows,
            content["baseline"],
            _arms(content),
            higher=content["higher_is_better"],
        ),
        equality=equal_terms.equality(content["manifests"], declared),
        declared=declared,
        mixed=any(row["against"] not in ("", row["arm"], content["baseline"]) for row in rows),
        differed=[one for one in content["remarks"] if str(one).startswith(_DIFFER)],
        section=section,
        recipe=toml.write_toml(command.recipe_from_anywhere(recipe)),
        command=command.run_recipe("train" if single else "compare", recipe),
        rates=len({run["rate"] for run in data["runs"]}) > 1,
        view=data,
        most=ROWS,
        signed=forest_plot.format_signed,
        quantity=curve.quantity,
        monitored=lambda name: quantity_name(str(name), lang),
        scripts=_SCRIPTS,
        data=data,
        texts=[data["unit"]],
        columns={name: quantity_name(name, lang) for name in data["monitor"]["measures"]},
    )


def quantity_name(name: str, lang: str) -> str:
    """Name what a monitor reads: by its name in English, else translated with its name behind.

    Example:
        >>> quantity_name("stream_norm", "en"), quantity_name("stream_norm", "zh")
        ('stream_norm', '残差流的范数 (stream_norm)')
    """
    translator = language(lang)
    if lang == ENGLISH or name not in MONITORED:
        return translator.column(name)
    return f"{translator.label(MONITORED[name])} ({name})"


def _check(content: Mapping[str, Any]) -> Json:
    """Check the content, as plain JSON values with every part present.

    Raises:
        UserError: a part is of another kind.
    """
    checked: Json = dict(json_values({k: v for k, v in content.items() if k not in _BULK}))
    checked |= {name: content[name] for name in _BULK if name in content}
    for name, kind in _KINDS.items():
        found = kind() if checked.get(name) is None else checked[name]
        if not isinstance(found, kind) or (name in _ROWS and not _mappings(found)):
            raise UserError(
                f"this is no content of a comparison: {name!r} is damaged; "
                "type layerlab compare RECIPE.toml to make it anew"
            )
        checked[name] = found
    checked["ladder"] = check_ladder(checked.get("ladder"))
    checked["metric"] = checked["metric"] or "nats"
    checked["higher_is_better"] = checked.get("higher_is_better") is True
    checked["arms"] = [str(name) for name in checked["arms"]]
    for part, keys in _NAMED.items():
        for row in checked[part]:
            row.update({key: str(row.get(key, "")) for key in keys})
    for row in checked["measures"]:
        seeds = row.get("seeds")
        row["seeds"] = seeds if isinstance(seeds, list) and _mappings(seeds) else []
    return checked


def _mappings(rows: Any) -> bool:
    return all(isinstance(row, Mapping) for row in rows)


def _arms(content: Mapping[str, Any]) -> list[str]:
    """Return the names of the arms, in the order of the recipe, then of whatever else ran."""
    ran = [str(run.get("arm", "")) for run in content["runs"]]
    return list(dict.fromkeys([*content["arms"], *(row["arm"] for row in content["rows"]), *ran]))


def _run(run: Mapping[str, Any], names: Sequence[str], metric: str, chosen: set[str]) -> Json:
    arm, seed = str(run.get("arm", "")), run.get("seed")
    return {
        "arm": names.index(arm),
        "seed": seed if isinstance(seed, int) else None,
        "rate": curve.short(run.get("rate"), 6),
        "value": curve.short(run.get(metric)),
        # While nothing of an arm has finished, all of it is shown.
        "judged": bool(run.get("chosen")) or arm not in chosen,
        "lost": bool(run.get("diverged")),
        "finished": bool(run.get("finished")),
    }


def _tables(content: Mapping[str, Any], names: Sequence[str] | Json) -> dict[str, str]:
    """Return tables as CSV by the paths of their files."""
    found = {}
    for name in names:
        rows = [{key: _cell(one) for key, one in row.items()} for row in _rows(content, name)]
        table = pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(_HEADS[name]))
        written = csv_of(table).encode("utf-8", "backslashreplace").decode()
        found[f"{TABLES}/{name}.csv"] = written
    return found


def _cell(value: Any) -> Any:
    """Return a cell of a table; a value that is not plain is written as JSON."""
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(json_values(value), ensure_ascii=False)
    return value


def _rows(content: Mapping[str, Any], name: str) -> list[Any]:
    """Return the rows of a table; of curves, a row is a point."""
    if name == "ladder":
        sizes = content[name]["sizes"]
        return [
            {"size": size["parameters"], "tokens": size["tokens"], **row}
            for size in sizes
            for row in size["rows"]
        ]
    if name == "measures":
        each = ((row, at) for row in content[name] for at in row["seeds"])
        return [{**{key: row[key] for key in _NAMED[name]}, **at} for row, at in each]
    if name == "paired":
        points = [(one.get("arm"), p) for one in content[name] for p in one.get("points") or ()]
        return [{"arm": arm, **point} for arm, point in points]
    if name not in _CURVES:
        return list(content[name])
    return [
        {**{key: one.get(key) for key in _POINT}, **dict(zip(columns, point, strict=True))}
        for one in content["curves"]
        if (columns := get_table(one, name))
        for point in zip(*columns.values(), strict=False)
    ]


def _brief(value: Any) -> Any:
    """Round curves to the digits that a picture shows; the journals of the runs have all."""
    if isinstance(value, Mapping):
        return {name: _brief(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(one) for one in value]
    return curve.short(value, 7) if isinstance(value, float) else value


def _confidence(content: Mapping[str, Any]) -> float:
    given = content.get("confidence")
    return given if isinstance(given, float) and 0 < given < 1 else 0.95
