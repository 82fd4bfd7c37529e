"""A report of schema 1, as this layerlab counts layers.

Schema 1 counted what the stream passes from the embedding, 0, on, so that the first block was 1;
measures of attention counted attention layers from 0. Schema 2 counts blocks from 0 everywhere.
"""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from layerlab.errors import UserError
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.report.findings.find import find
from layerlab.report.results.schema import SCHEMA, check_schema
from layerlab.report.views.tables import decode_table, encode_table

OLDER = 1
_BY_ATTENTION = frozenset({"attention", "spectrum", "querykey", "gain"})
_OUTPUT = re.compile(r"(?<=^output of )layer (\d+)$")
_PART = re.compile(r"^layer (\d+)$")
_FROM = re.compile(r"(?<=from )layer (\d+)(?= on)")


def renumber(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report of schema 1 with the layers of schema 2; its findings are made again.

    Raises:
        UserError: a part of it is damaged.
    """
    try:
        return _renumber(content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError("this is not a layerlab report: a part of schema 1 is damaged") from error


def _renumber(content: Mapping[str, Any]) -> dict[str, Any]:
    checked = check_schema({name: part for name, part in content.items() if name != "frames"})
    frames = {
        str(name): _shift(str(name), decode_table(str(name), table))
        for name, table in content.get("frames", {}).items()
    }
    checked["models"] = [
        {**card, "faults": [_fault(one) for one in card["faults"]]} for card in checked["models"]
    ]
    mixed = [str(c["name"]) for c in checked["models"] if c["attention_layers"] != c["layers"]]
    checked["measures"] = [{**one, "notes": _notes(one, mixed)} for one in checked["measures"]]
    checked["pictures"] = {
        name: {model: _picture(one) for model, one in models.items()}
        for name, models in checked["pictures"].items()
    }
    checked["details"] = dict(_detail(*entry) for entry in checked["details"].items())
    checked["findings"] = [finding.to_dict() for finding in find(checked, frames)]
    tables = {name: encode_table(table) for name, table in frames.items()}
    return {**checked, "schema": SCHEMA, "frames": tables}


def _shift(name: str, table: pd.DataFrame) -> pd.DataFrame:
    if name == "attribution":
        parts = table["part"].replace("before the blocks", layer_name(EMBEDDING))
        return table.assign(part=parts.str.replace(_PART, _rename, regex=True))
    if name in _BY_ATTENTION or "layer" not in table:
        return table
    return table.assign(layer=table["layer"] + EMBEDDING)


def _rename(match: re.Match[str]) -> str:
    return layer_name(int(match[1]) + EMBEDDING)


def _fault(fault: Mapping[str, Any]) -> dict[str, Any]:
    layer = fault.get("layer")
    # Schema 1 wrote -1 for weights outside the blocks.
    where = None if layer is None or layer < 0 else int(layer) + EMBEDDING
    return {**fault, "layer": where, "name": _OUTPUT.sub(_rename, str(fault["name"]))}


def _picture(picture: Mapping[str, Any]) -> dict[str, Any]:
    return {**picture, "layers": [int(layer) + EMBEDDING for layer in picture["layers"]]}


def _detail(key: str, detail: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if detail["kind"] != "channels":
        return key, dict(detail)
    layer = int(detail["layer"]) + EMBEDDING
    return f"{key.rpartition('/')[0]}/{layer}", {**detail, "layer": layer}


def _notes(measure: Mapping[str, Any], mixed: list[str]) -> list[str]:
    notes = [_FROM.sub(_rename, str(note)) for note in measure["notes"]]
    if measure["name"] in _BY_ATTENTION:
        notes += [f"{name}: its layers are its attention layers, counted from 0" for name in mixed]
    return notes
