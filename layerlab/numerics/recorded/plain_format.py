"""Our own form of a record: `{"token_ids": [...], "logprobs": [null, ...]}`."""

from collections.abc import Mapping
from typing import Any

TokensRead = tuple[Any, Any]


def read_plain(row: Mapping[str, Any]) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    Example:
        >>> read_plain({"token_ids": [5, 7], "logprobs": [None, -0.5]})
        ([5, 7], [None, -0.5])
    """
    if "token_ids" not in row or "logprobs" not in row:
        return None
    return row["token_ids"], row["logprobs"]
