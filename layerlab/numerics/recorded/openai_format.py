"""What servers return that follow OpenAI's: tokens as texts, and their log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.plain_format import TokensRead

ID = "token_id:"  # how some servers spell tokens on request
PROMPT = "prompt_token_ids"


def read_openai(row: Mapping[str, Any], tokenizer: Any, holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    Completions have `logprobs: {tokens, token_logprobs}`, chats
    `logprobs: {content: [{token, logprob, bytes}]}`; the prompt is among the tokens (`echo`), or
    its ids stand beside them as `prompt_token_ids`.

    Args:
        row: the answer of a server, or one of its choices.
        tokenizer: of the model, by which texts become ids.
        holder: of the row, in words.

    Raises:
        UserError: the tokenizer makes other tokens of the text, or the prompt is missing.

    Example:
        >>> row = {"logprobs": {"tokens": ["token_id:5", "token_id:7"]}}
        >>> row["logprobs"]["token_logprobs"] = [None, -0.5]
        >>> read_openai(row, None, "it")
        ([5, 7], [None, -0.5])
    """
    choices = row.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else row
    read = choice.get("logprobs") if isinstance(choice, Mapping) else None
    if not isinstance(read, Mapping):
        return None
    if isinstance(read.get("content"), list):
        rows = [one for one in read["content"] if isinstance(one, Mapping)]
        texts = [_bytes(one) for one in rows]
        logprobs = [one.get("logprob") for one in rows]
    elif isinstance(read.get("tokens"), list) and isinstance(read.get("token_logprobs"), list):
        texts = [str(one).encode() for one in read["tokens"]]
        logprobs = read["token_logprobs"]
    else:
        return None
    ids = _find_ids(texts, tokenizer, holder)
    prompt = row.get(PROMPT, choice.get(PROMPT))
    if isinstance(prompt, list):
        return [*prompt, *ids], [*[None] * len(prompt), *logprobs]
    if logprobs and logprobs[0] is not None:
        raise UserError(
            f"{holder} has the tokens of an answer without those of its prompt; ask the server to "
            f"echo the prompt, or put {PROMPT} beside them"
        )
    return ids, logprobs


def _bytes(row: Mapping[str, Any]) -> bytes:
    given = row.get("bytes")
    return bytes(given) if isinstance(given, list) else str(row.get("token")).encode()


def _find_ids(texts: Sequence[bytes], tokenizer: Any, holder: str) -> list[int]:
    """Return the ids of tokens given as texts: those of the whole text, if it is cut the same."""
    spelled = [one.decode(errors="replace") for one in texts]
    if all(one.startswith(ID) and one[len(ID) :].isdecimal() for one in spelled):
        return [int(one[len(ID) :]) for one in spelled]
    if tokenizer is None:
        raise UserError(f"{holder} has tokens as texts, and the model no tokenizer to read them by")
    text = b"".join(texts).decode(errors="replace")
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != len(texts) or tokenizer.decode(ids) != text:
        raise UserError(
            f"{holder} has {len(texts)} tokens whose text the model's tokenizer cuts into "
            f"{len(ids)} others; ask the engine for token ids"
        )
    return ids
