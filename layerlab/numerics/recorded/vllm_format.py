"""What vLLM returns of a prompt: at each place the tokens that were looked at, by their ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.plain_format import TokensRead
from layerlab.validation import short_repr


def read_vllm(row: Mapping[str, Any], holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    A place is null or `{"ID": {"logprob": ..., "rank": ..., "decoded_token": ...}, ...}`, and
    with older versions `{"ID": LOGPROB, ...}`. What was written behind the prompt stands in
    `outputs`.

    Args:
        row: a `RequestOutput` as JSON, or the answer of a server.
        holder: of the row, in words.

    Raises:
        UserError: a place lacks its token.

    Example:
        >>> places = [None, {"7": {"logprob": -0.5, "rank": 2}, "3": {"logprob": -0.4, "rank": 1}}]
        >>> read_vllm({"prompt_token_ids": [5, 7], "prompt_logprobs": places}, "it")
        ([5, 7], [None, -0.5])
    """
    first = _first(row.get("choices"))
    prompt = row.get("prompt_logprobs", first.get("prompt_logprobs"))
    output = _first(row.get("outputs"))
    written = output.get("logprobs")
    if not isinstance(prompt, list) and not isinstance(written, list):
        return None
    ids = row.get("prompt_token_ids", first.get("prompt_token_ids"))
    if ids is None:
        ids = [_only(place, number, holder) for number, place in enumerate(prompt or [], 0)]
    places = prompt if isinstance(prompt, list) else [None] * len(ids)
    if isinstance(written, list):
        ids = [*ids, *output.get("token_ids", ())]
        places = [*places, *written]
    if len(ids) != len(places):
        return ids, places  # told by what checks every format
    read = [_read(place, token, holder) for place, token in zip(places, ids, strict=True)]
    return ids, read


def _first(given: Any) -> Mapping[str, Any]:
    found = given[0] if isinstance(given, Sequence) and given else {}
    return found if isinstance(found, Mapping) else {}


def _only(place: Any, number: int, holder: str) -> int:
    """Return the one token of a place, where nothing else says which it was."""
    if isinstance(place, Mapping) and len(place) == 1:
        return int(next(iter(place)))
    raise UserError(
        f"{holder} does not say which token stands at {number}; ask the engine for "
        "prompt_token_ids as well"
    )


def _read(place: Any, token: Any, holder: str) -> Any:
    if place is None:
        return None
    found = place.get(str(token), place.get(token)) if isinstance(place, Mapping) else None
    if found is None:
        raise UserError(
            f"{holder} has no log-probability of its own token {token} in {short_repr(place)}"
        )
    return found.get("logprob") if isinstance(found, Mapping) else found
