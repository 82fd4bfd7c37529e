"""Records of SGLang's own `/generate`: a log-probability and its token's id at each place."""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.recorded.plain_format import TokensRead
from layerlab.numerics.recorded.vllm_format import PROMPT as IDS
from layerlab.numerics.recorded.vllm_format import check_list
from layerlab.validation import short_repr

META = "meta_info"
PROMPT, ANSWER = "input_token_logprobs", "output_token_logprobs"


def read_sglang(row: Mapping[str, Any], holder: str) -> TokensRead | None:
    """Return token ids and log-probabilities; None where a row is something else.

    A place is `[LOGPROB, ID, TEXT]`; of the first nothing is known. Unless it is asked for all,
    SGLang returns the prompt from its last token on, and puts null there as well; then its ids
    stand beside the answer, as `prompt_token_ids`.

    Args:
        row: the answer to one text.
        holder: of the row, in words.

    Raises:
        UserError: a place is something else, or a part of the prompt is missing.

    Example:
        >>> places = [[None, 5, None], [-0.5, 7, None]]
        >>> read_sglang({"meta_info": {"prompt_tokens": 2, "input_token_logprobs": places}}, "it")
        ([5, 7], [None, -0.5])
    """
    meta = row.get(META)
    if not isinstance(meta, Mapping) or (meta.get(PROMPT) is None and meta.get(ANSWER) is None):
        return None
    prompt, answer = (
        check_list(meta.get(name) or [], f"the {name} of {holder}") for name in (PROMPT, ANSWER)
    )
    length = meta.get("prompt_tokens")
    if length != len(prompt) and row.get(IDS) is not None:
        prompt = [[None, token] for token in check_list(row[IDS], f"the {IDS} of {holder}")]
    if length != len(prompt):
        raise UserError(
            f"{holder} has {len(prompt)} {PROMPT}, and its prompt_tokens are {short_repr(length)};"
            f' ask SGLang with "logprob_start_len": 0, or put {IDS} beside {META}'
        )
    places = [_read(one, holder) for one in [*prompt, *answer]]
    return [token for _, token in places], [logprob for logprob, _ in places]


def _read(entry: Any, holder: str) -> tuple[Any, Any]:
    if not isinstance(entry, list) or len(entry) not in (2, 3):
        raise UserError(f"{holder} has the place {short_repr(entry)}; expected [LOGPROB, ID, TEXT]")
    return entry[0], entry[1]
