"""Records in a file of JSON lines, in any of the forms that are known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.openai_format import read_openai
from layerlab.numerics.recorded.plain_format import read_plain
from layerlab.numerics.recorded.record import TokenRecord, make_record
from layerlab.numerics.recorded.vllm_format import read_vllm
from layerlab.records.parse import json_of
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

KNOWN = (
    '{"token_ids": [...], "logprobs": [null, ...]}, what vLLM returns with prompt_logprobs, or '
    "what OpenAI-type servers return with logprobs"
)


def read_records(path: Path, vocabulary: int, tokenizer: Any = None) -> list[TokenRecord]:
    """Return the texts that an engine recorded, one a line, or one JSON of all of them.

    Args:
        path: of the file.
        vocabulary: how many tokens the model knows.
        tokenizer: of the model, for records whose tokens are texts.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        text = read_whole(path).decode()
    except OSError as error:
        raise UserError(f"the record {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"the record {path} is no text in UTF-8; expected JSON, a line a text"
        ) from None
    rows = _parse(text, path)
    if not rows:
        raise UserError(f"the record {path} is empty; expected {KNOWN}")
    return [
        _read(row, vocabulary, tokenizer, f"text {number} of {path}")
        for number, row in enumerate(rows, 1)
    ]


def _parse(text: str, path: Path) -> list[Any]:
    try:
        whole = json_of(text) if text.strip() else []
    except ValueError:
        pass
    else:
        return whole if isinstance(whole, list) else [whole]
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(json_of(line))
            except ValueError as error:
                raise UserError(
                    f"line {number} of the record {path} is not JSON: {error}"
                ) from None
    return rows


def _read(row: Any, vocabulary: int, tokenizer: Any, holder: str) -> TokenRecord:
    if not isinstance(row, Mapping):
        raise UserError(f"{holder} is {short_repr(row)}; expected {KNOWN}")
    found = read_plain(row) or read_vllm(row, holder) or read_openai(row, tokenizer, holder)
    if found is None:
        keys = f"the keys {', '.join(map(str, row))}" if row else "no keys"
        raise UserError(f"{holder} has {keys}; expected {KNOWN}")
    return make_record(*found, vocabulary, holder)
