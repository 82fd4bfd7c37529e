"""Records of servers that follow OpenAI's: tokens as texts, and their log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.plain_format import TokensRead
from layerlab.numerics.recorded.vllm_format import (
    NO_PROMPT,
    NUMBER,
    PROMPT,
    check_list,
    find_first,
    read_prompt,
)
from layerlab.validation import short_repr

ID = "token_id:"  # how some servers spell tokens on request
PARTIAL = "\ufffd"  # of a token that ends within a character


def read_openai(row: Mapping[str, Any], tokenizer: Any, holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    Completions have `logprobs: {tokens, token_logprobs}`, chats
    `logprobs: {content: [{token, logprob, bytes}]}`; the prompt is among the tokens (`echo`), so
    that nothing is known of the first, or its ids stand beside them as `prompt_token_ids`, with
    `prompt_logprobs` where vLLM was asked for them, and the answer's as `token_ids`.

    Args:
        row: the answer of a server with one choice, or that choice.
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
    choice = find_first(row, "choices") or row
    read = choice.get("logprobs")
    if not isinstance(read, Mapping):
        return None
    if isinstance(read.get("content"), list):
        texts = [_read_text(one, holder) for one in read["content"]]
        logprobs = [one.get("logprob") for one in read["content"]]
    elif isinstance(read.get("tokens"), list):
        texts = [_read_text({"token": one}, holder) for one in read["tokens"]]
        logprobs = check_list(read.get("token_logprobs"), f"the token_logprobs of {holder}")
    else:
        return None
    prompt = read_prompt(row, choice, holder)
    own = choice.get("token_ids")
    if own is None:
        ids = _find_ids(texts, tokenizer, holder)
    else:
        echoed = prompt[0] if prompt and logprobs and logprobs[0] is None else []
        ids = [*echoed, *check_list(own, f"the token_ids of {holder}")]
    if logprobs and logprobs[0] is None:
        if prompt is not None and ids[: len(prompt[0])] != prompt[0]:
            raise UserError(
                f"{holder} echoes other tokens than those of {PROMPT}; leave one of them out"
            )
        return ids, logprobs
    if prompt is None:
        raise UserError(NO_PROMPT.format(holder=holder, name=PROMPT))
    return [*prompt[0], *ids], [*prompt[1], *logprobs]


def _read_text(row: Any, holder: str) -> bytes:
    """Return the text of a token, which its bytes say better where it ends within a character."""
    given = row.get("bytes") if isinstance(row, Mapping) else None
    if isinstance(given, list) and all(isinstance(one, int) and one in range(256) for one in given):
        return bytes(given)
    if given is None and isinstance(row, Mapping) and isinstance(row.get("token"), str):
        # Half of a pair of surrogates is no character; no tokenizer makes what it is read as.
        return str(row["token"]).encode(errors="surrogatepass")
    raise UserError(
        f'{holder} has the token {short_repr(row)}; expected {{"token": TEXT, "logprob": NUMBER}}, '
        "with bytes from 0 to 255 where there are any"
    )


def _find_ids(texts: Sequence[bytes], tokenizer: Any, holder: str) -> list[int]:
    """Return the ids of tokens given as texts: those of the whole text, if it is cut the same."""
    spelled = [one.decode(errors="replace") for one in texts]
    if all(one.startswith(ID) and NUMBER.fullmatch(one[len(ID) :]) for one in spelled):
        return [int(one[len(ID) :]) for one in spelled]
    if tokenizer is None:
        raise UserError(f"{holder} has tokens as texts, and the model no tokenizer to read them by")
    text = b"".join(texts).decode(errors="replace")
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    same = len(ids) == len(texts) and tokenizer.decode(ids) == text
    # What a model wrote may be cut otherwise than its tokenizer cuts the text, into as many.
    if not same or not all(map(_is_alike, texts, (tokenizer.decode([one]) for one in ids))):
        raise UserError(
            f"{holder} has {len(texts)} tokens whose text the model's tokenizer cuts into "
            f"{len(ids)} others; ask the engine for token ids"
        )
    return ids


def _is_alike(recorded: bytes, decoded: str) -> bool:
    """Return whether a token is the recorded one; alone, some lose the blank before them."""
    text = recorded.decode(errors="replace")
    return text.strip() == decoded.strip() or PARTIAL in decoded
