"""Our own form of a record: `{"token_ids": [...], "logprobs": [null, ...]}`."""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError

OTHERS = ("choices", "outputs", "prompt_logprobs", "prompt_token_ids")
TokensRead = tuple[Any, Any]


def read_plain(row: Mapping[str, Any], holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    Args:
        row: of a record.
        holder: of the row, in words.

    Raises:
        UserError: tokens stand elsewhere in it, too.

    Example:
        >>> read_plain({"token_ids": [5, 7], "logprobs": [None, -0.5]}, "it")
        ([5, 7], [None, -0.5])
    """
    if "token_ids" not in row or "logprobs" not in row or isinstance(row["logprobs"], Mapping):
        return None
    beside = [name for name in OTHERS if row.get(name) is not None]
    if beside:
        raise UserError(
            f"{holder} has token_ids and logprobs, and {beside[0]} beside them; expected either "
            "the tokens of the whole text, or what the engine returned"
        )
    return row["token_ids"], row["logprobs"]
