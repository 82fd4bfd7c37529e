"""Schema of `report.json`: its parts, the kind of each, and the default of one that is absent.

`options` and `versions` and `machine` say enough to repeat a run; `frames` is in table.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.parse import one_line
from layerlab.report.findings.rule import Finding

SCHEMA = 2
_PARTS: dict[str, Any] = {
    "layerlab": "",
    "created": "",
    "options": {},
    "versions": {},
    "machine": {},
    "models": [],
    "text": {},
    "measures": [],
    "findings": [],
    "details": {},
    "notes": [],
    "pictures": {},
}
# A card's entry is None where the model has none; others are lists and flags.
_CARD: dict[str, Any] = {
    **dict.fromkeys(("source", "revision", "weights_hash", "family", "class", "parameters")),
    **dict.fromkeys(("layers", "attention_layers", "width", "heads", "kv_heads", "head_width")),
    **dict.fromkeys(("softcap", "vocab", "context", "dtype", "device", "attention", "step")),
    "loss_nats": None,
    "card": None,
    "faults": [],
    "reads_ahead": False,
    "tokens": [],
}
_TEXT: dict[str, Any] = {
    **dict.fromkeys(("source", "hash", "hashed"), ""),
    **{"sequences": [], "remarks": []},
}
_MEASURE: dict[str, Any] = {
    **dict.fromkeys(("title", "unit", "source", "about", "equation"), ""),
    "per": [],
    "columns": {},
    "plot": [],
    "roles": {},
    "typed": [],
    "better": None,
    "bounds": [],
    "limits": [],
    "band": None,
    "not_applicable": [],
    "notes": [],
}


def check_schema(content: Mapping[str, Any]) -> dict[str, Any]:
    """Check that every part of the content is of its kind, and fill in what is absent.

    Raises:
        UserError: a part is of another kind, or a model, a measure or a finding cannot be read.
    """
    checked = _fill(content, _PARTS, "")
    checked["text"] = _fill(checked["text"], _TEXT, " of its text")
    checked["models"] = [
        _fill(card, _CARD, " of a model") for card in _check_names(checked, "models")
    ]
    labels = [card["name"] for card in checked["models"]]
    if twice := [name for name in dict.fromkeys(labels) if labels.count(name) > 1]:
        raise UserError(f"two models of the report are called {twice[0]!r}; give each its own name")
    checked["measures"] = [
        _fill(one, _MEASURE, " of a measure") for one in _check_names(checked, "measures")
    ]
    try:
        checked["findings"] = [Finding.from_dict(entry).to_dict() for entry in checked["findings"]]
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError("this is not a layerlab report: a finding is damaged") from error
    return checked


@contextmanager
def explain_damage(file: Path | None) -> Iterator[None]:
    """Turn what fails while a report is shown into one line, if the report came from a file.

    Measures say what they draw, and what they say has no schema of its own.
    """
    from jinja2 import TemplateError  # late: a report that is only read needs no templates

    try:
        yield
    except (
        *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
        *(RecursionError, TemplateError),
    ) as error:
        if file is None:  # it was made just now, and is no stranger's
            raise
        raise UserError(
            f"{file} is damaged, and cannot be shown: {one_line(error)}; inspect the model again"
        ) from error


def _fill(given: Mapping[str, Any], defaults: Mapping[str, Any], owner: str) -> dict[str, Any]:
    for name, default in defaults.items():
        if default is not None and not isinstance(given.get(name, default), type(default)):
            raise UserError(f"this is not a layerlab report: {name!r}{owner} is damaged")
    absent = {name: type(d)() if d is not None else None for name, d in defaults.items()}
    return {**absent, **given}


def _check_names(content: Mapping[str, Any], part: str) -> list[Any]:
    for entry in content[part]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise UserError(f"this is not a layerlab report: one of {part!r} has no name")
    return list(content[part])
