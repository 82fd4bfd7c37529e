"""Records in a file of JSON lines, in any of the forms that are known."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.openai_format import read_openai
from layerlab.numerics.recorded.plain_format import read_plain
from layerlab.numerics.recorded.record import TokenRecord, make_record
from layerlab.numerics.recorded.sglang_format import read_sglang
from layerlab.numerics.recorded.vllm_format import read_vllm
from layerlab.records.parse import json_of
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

ANSWERS = ("choices", "outputs")
KNOWN = (
    '{"token_ids": [...], "logprobs": [null, ...]}, what vLLM returns with prompt_logprobs, what '
    "SGLang returns with return_logprob, or what OpenAI-type servers return with logprobs"
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
        text = read_whole(path).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"the record {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"the record {path} is no text in UTF-8; expected JSON, a line a text"
        ) from None
    found = [
        _read(one, vocabulary, tokenizer, f"{part}text {number} of {path}")
        for number, row in enumerate(_parse(text, path), 1)
        for part, one in _divide(row)
    ]
    if not found:
        raise UserError(f"the record {path} is empty; expected {KNOWN}")
    return found


def _divide(row: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an engine returned with one answer at a time, and which it is, in words."""
    name = next((one for one in ANSWERS if isinstance(row, Mapping) and row.get(one)), "")
    answers = row[name] if name else None
    if not isinstance(answers, list) or len(answers) == 1:
        yield "", row
        return
    for number, one in enumerate(answers, 1):
        yield f"{name}[{number - 1}] of ", {**row, name: [one]}


def _parse(text: str, path: Path) -> Iterator[Any]:
    """Yield the rows of one JSON, or of a line at a time: a million of them take 1 GB together."""
    try:
        content = json_of(text) if text.strip() else []
    except ValueError:
        pass
    else:
        yield from _flatten(content)
        return
    # Not by splitlines, since texts in JSON may hold what separates lines elsewhere.
    for number, line in enumerate(re.finditer(r"[^\n]*\n?", text), 1):
        if line[0].strip():
            try:
                content = json_of(line[0])
            except ValueError as error:
                raise UserError(
                    f"line {number} of the record {path} is not JSON: {error}"
                ) from None
            yield from _flatten(content)


def _flatten(content: Any) -> list[Any]:
    """Return the rows of one JSON, in which engines put the answers to one question in a list."""
    rows = content if isinstance(content, list) else [content]
    several = [one if _is_batch(one) else [one] for one in rows]
    return [row for one in several for row in one]


def _is_batch(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(one, Mapping) for one in row)


def _read(row: Any, vocabulary: int, tokenizer: Any, holder: str) -> TokenRecord:
    if not isinstance(row, Mapping):
        raise UserError(f"{holder} is {short_repr(row)}; expected {KNOWN}")
    found = (
        read_plain(row, holder)
        or read_vllm(row, holder)
        or read_sglang(row, holder)
        or read_openai(row, tokenizer, holder)
    )
    if found is None:
        keys = f"the keys {', '.join(map(str, row))}" if row else "no keys"
        raise UserError(f"{holder} has {keys}; expected {KNOWN}")
    return make_record(*found, vocabulary, holder)
