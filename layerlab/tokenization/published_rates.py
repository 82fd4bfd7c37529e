"""The source's own table of tokenizers on JEC-QA, and the same texts under those at hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.data.archives import read_members
from layerlab.data.places import data_folder
from layerlab.errors import UserError
from layerlab.tokenization.compression import compression
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.request import JEC_QA

# Where it lies in the data folder, and in what lies there.
ARCHIVE = "agieval/agieval-v1.tar.gz"
PARTS = ("v1/jec-qa-kd.jsonl", "v1/jec-qa-ca.jsonl")
TOKENIZERS = "tokenizers"


@dataclass(frozen=True)
class Rate:
    """A line of the table.

    Attributes:
        rate: printed by the source without a unit, measured in tokens per character; lower is
            shorter.
        published: whether the source says it; else it is measured here.
    """

    tokenizer: str
    entries: int
    rate: float
    published: bool = False


TABLE = (
    Rate("LLaMA2", 32_000, 1.479, published=True),
    Rate("InternLM", 103_168, 0.657, published=True),
    Rate("Baichuan2", 125_696, 0.605, published=True),
    Rate("PanGu", 100_883, 0.649, published=True),
    Rate("YunShan", 110_428, 0.606, published=True),
)
ABOUT = (
    "published: pangu23, Table 7, of which neither the unit nor the exact texts are stated; "
    "measured: tokens per character of question and options of the JEC-QA in AGIEval"
)


def questions() -> list[str]:
    """Return the questions of JEC-QA with their options, a line each.

    Raises:
        UserError: they are not in the data folder.
    """
    path = data_folder() / ARCHIVE
    try:
        found = dict(read_members(path, PARTS.__contains__))
        lines = [line for name in PARTS for line in found[name].splitlines()]
    except (UserError, KeyError):
        raise UserError(
            f"{JEC_QA} is not here: LAYERLAB_DATA names no folder with {ARCHIVE}; "
            "leave it out, or name a file of texts"
        ) from None
    rows = [json.loads(line) for line in lines]
    return ["\n".join([row["question"], *row["options"]]) for row in rows]


def tokenizers_here() -> tuple[dict[str, PreTrainedTokenizerFast], dict[str, str]]:
    """Return the tokenizers of the data folder, and why others there cannot be read."""
    found: dict[str, PreTrainedTokenizerFast] = {}
    left: dict[str, str] = {}
    for folder in sorted((data_folder() / TOKENIZERS).glob("*/")):
        try:
            found[folder.name] = load_or_convert(str(folder))
        except UserError as error:
            left[folder.name] = str(error)
    return found, left


def measure_rates(
    tokenizers: Mapping[str, PreTrainedTokenizerFast], texts: Sequence[str]
) -> list[Rate]:
    """Measure the tokenizers that are here, in rows of the same form as the published ones."""
    return [
        Rate(name, len(one), compression(one, texts).per_character)
        for name, one in tokenizers.items()
    ]


def add_published(rows: Sequence[Rate], left: Mapping[str, str]) -> dict[str, Any]:
    """Return the published rows and the measured ones, and what was left out and why."""
    every = [{**vars(row)} for row in (*TABLE, *rows)]
    return {"about": ABOUT, "rows": every, "left_out": dict(left)}
