"""Records of a prompt by vLLM: at each place the tokens that were looked at, by their ids."""

import re
from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.plain_format import TokensRead
from layerlab.validation import short_repr

PROMPT, PLACES = "prompt_token_ids", "prompt_logprobs"
NUMBER = re.compile(r"\d{1,18}")  # an id as text; one of thousands of digits Python does not read
NO_PROMPT = (
    "{holder} has the tokens of an answer without those of its prompt; ask the server to echo the "
    "prompt, or put {name} beside them"
)


def read_vllm(row: Mapping[str, Any], holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    A place is null or `{"ID": {"logprob": ..., "rank": ..., "decoded_token": ...}, ...}`, and
    with older versions `{"ID": LOGPROB, ...}`. What was written behind the prompt stands in
    `outputs`.

    Args:
        row: a `RequestOutput` as JSON with one output, or the answer of a server of which the
            prompt alone was looked at.
        holder: of the row, in words.

    Raises:
        UserError: a place lacks its token, or the prompt is missing.

    Example:
        >>> places = [None, {"7": {"logprob": -0.5, "rank": 2}, "3": {"logprob": -0.4, "rank": 1}}]
        >>> read_vllm({"prompt_token_ids": [5, 7], "prompt_logprobs": places}, "it")
        ([5, 7], [None, -0.5])
    """
    choice, output = find_first(row, "choices"), find_first(row, "outputs")
    written = output.get("logprobs")
    has_prompt = find_beside(row, choice, PLACES) is not None
    if choice.get("logprobs") is not None or not (has_prompt or isinstance(written, list)):
        return None
    prompt = read_prompt(row, choice, holder)
    if not isinstance(written, list):
        return prompt
    if prompt is None:
        raise UserError(NO_PROMPT.format(holder=holder, name=PROMPT))
    ids = check_list(output.get("token_ids"), f"the token_ids of the output of {holder}")
    return [*prompt[0], *ids], [*prompt[1], *_read_places(written, ids, holder)]


def read_prompt(
    row: Mapping[str, Any], choice: Mapping[str, Any], holder: str
) -> TokensRead | None:
    """Return token ids of a prompt and what was recorded of them; None where it is missing.

    Args:
        row: the answer of a server.
        choice: one of it, which may have a prompt of its own.
        holder: of the row, in words.

    Raises:
        UserError: they are no lists, or a place lacks its token.
    """
    ids, places = (find_beside(row, choice, name) for name in (PROMPT, PLACES))
    if ids is not None:
        ids = check_list(ids, f"the {PROMPT} of {holder}")
    if places is None:
        return None if ids is None else (ids, [None] * len(ids))
    places = check_list(places, f"the {PLACES} of {holder}")
    if ids is None:
        ids = [_only(entry, number, holder) for number, entry in enumerate(places)]
    return ids, _read_places(places, ids, holder)


def find_first(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the first of a row's choices or outputs; none of its keys where there is none."""
    given = row.get(name)
    found = given[0] if isinstance(given, list) and given else {}
    return found if isinstance(found, Mapping) else {}


def find_beside(row: Mapping[str, Any], choice: Mapping[str, Any], name: str) -> Any:
    """Return what a choice has of its own, or its row for all."""
    own = choice.get(name)
    return row.get(name) if own is None else own


def check_list(given: Any, name: str) -> list[Any]:
    """Return a list.

    Raises:
        UserError: it is none.
    """
    if not isinstance(given, list):
        raise UserError(f"{name} are {short_repr(given)}; expected a list")
    return given


def _only(entry: Any, number: int, holder: str) -> int:
    """Return the one token of a place, where nothing else says which it was."""
    if isinstance(entry, Mapping) and len(entry) == 1 and NUMBER.fullmatch(str(next(iter(entry)))):
        return int(next(iter(entry)))
    raise UserError(
        f"{holder} does not say which token stands at {number}; ask the engine for {PROMPT} as well"
    )


def _read_places(places: list[Any], ids: list[Any], holder: str) -> list[Any]:
    if len(places) != len(ids):
        return places  # told by what checks every format
    return [_read(entry, token, holder) for entry, token in zip(places, ids, strict=True)]


def _read(entry: Any, token: Any, holder: str) -> Any:
    if entry is None:
        return None
    found = entry.get(str(token)) if isinstance(entry, Mapping) else None
    if found is None:
        raise UserError(
            f"{holder} has no log-probability of its own token {token} in {short_repr(entry)}"
        )
    return found.get("logprob") if isinstance(found, Mapping) else found
