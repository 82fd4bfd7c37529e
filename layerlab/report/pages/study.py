"""The page of a study: claim, verdicts, pictures, tables, settings; one file, no network."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.report.i18n.language import ENGLISH, Say, label, labels, language
from layerlab.report.pages.shell import DRAWING, fill_page
from layerlab.system.files import check_regular

ROWS = 200
TONES = {
    label("holds"): "info",
    label("smaller than asked"): "warning",
    label("fails"): "error",
    label("not decided"): "warning",
}
# Names of study.json, as a page says them.
TRAININGS = {
    "runs": label("runs judged"),
    "models": label("models trained"),
    "trained before": label("of these models trained before"),
    "hours": label("hours of training"),
    "processor": label("processor of training"),
    "device": label("device of training"),
    "threads": label("threads of training"),
    "versions": label("versions of training"),
}
_SETTINGS = (
    *labels("text", "width", "layers", "heads", "vocabulary", "context", "parameters"),
    *labels("sequences per update", "learning rate", "updates"),
)
RECIPE = {**{str(one): one for one in _SETTINGS}, "tokens": label("tokens of training")}
TIME = {str(one): one for one in labels("processor seconds", "wall seconds")}
JUDGING = {
    "processor seconds": label("processor seconds of judging"),
    "wall seconds": label("wall seconds of judging"),
}
MACHINE = {"system": label("system"), "threads": label("threads")}
_SPEAKS = re.compile(rb"<html lang=\"([^\"]+)\">")


def render(study: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of a study dict (the content of `study.json`).

    Raises:
        UserError: there is no page in this language.
    """
    pictures = translate_pictures(study["pictures"], lang)
    return fill_page(
        "study.html",
        ["page.css"],
        lang,
        study=study,
        tones=TONES,
        rows=list(list_settings(study)),
        tables={name: _rows(frame) for name, frame in study["frames"].items()},
        most=ROWS,
        scripts=[DRAWING, "study.js"],
        data={"pictures": pictures},
    )


def language_of(file: Path) -> str | None:
    """Return the language of a page, or None where there is no page.

    Raises:
        UserError: it is a pipe or a device.
    """
    check_regular(file)
    try:
        with file.open("rb") as source:
            found = _SPEAKS.search(source.read(200))
    except FileNotFoundError:
        return None
    return None if found is None else found[1].decode()


def translate_pictures(pictures: Sequence[Mapping[str, Any]], lang: str) -> list[dict[str, Any]]:
    """Translate the text in pictures: axes, legends and categories."""
    say = language(lang).translate
    return [
        {**one, "data": [_trace(trace, say) for trace in one["data"]], "layout": _layout(one, say)}
        for one in pictures
    ]


def _trace(trace: Mapping[str, Any], say: Say) -> dict[str, Any]:
    named = {"name": say(trace["name"])} if "name" in trace else {}
    return {**trace, **named, **{side: _texts(trace[side], say) for side in "xy" if side in trace}}


def _layout(picture: Mapping[str, Any], say: Say) -> dict[str, Any]:
    layout = dict(picture["layout"])
    for name in [name for name in layout if name.startswith(("xaxis", "yaxis"))]:
        axis = dict(layout[name])
        if "title" in axis:
            axis["title"] = {**axis["title"], "text": say(axis["title"]["text"])}
        if "ticktext" in axis:
            axis["ticktext"] = _texts(axis["ticktext"], say)
        layout[name] = axis
    return layout


def _texts(values: Sequence[Any], say: Say) -> list[Any]:
    return [say(value) if isinstance(value, str) else value for value in values]


def _rows(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first rows of a table, and how many there are."""
    columns = [frame["data"][name] for name in frame["columns"]]
    rows = list(zip(*columns, strict=True))
    return {"columns": frame["columns"], "rows": rows[:ROWS], "count": len(rows)}


def list_settings(study: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every setting of a study dict (the content of `study.json`)."""
    settings, trainings = dict(study["settings"]), study.get("trainings", {})
    yield study["unit"], settings.pop("draws")
    if study["fast"]:
        yield label("mode"), label("fast: few draws")
    yield from settings.items()
    yield from _label_known(study.get("recipe", {}), RECIPE)
    yield from _label_known(trainings, TRAININGS)
    batches = study.get("batches", {})
    if batches.get("all") and not trainings:
        yield label("batches"), batches["all"]
        yield label("of them from an earlier session"), batches["kept from an earlier run"]
    yield from _label_known(study["time"], JUDGING if trainings else TIME)
    yield from _label_known(study["machine"], MACHINE)
    yield label("versions"), ", ".join(f"{name} {one}" for name, one in study["versions"].items())


def _label_known(found: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, title in names.items():
        if name in found:
            yield title, label("not kept") if found[name] is None else found[name]
