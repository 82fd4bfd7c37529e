"""Checks of a model for the engine: a tokenizer, a longest input, logits that are numbers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.evaluation.harness.settle import close_rows
from layerlab.loading.inputs import check_ids
from layerlab.loading.model import LoadedModel

# Of a model without a longest input, whose tokenizer names none either.
UNBOUNDED = 2048
ENDLESS = 1 << 40  # what tokenizers write for no limit is more than this


def prepare_tokenizer(subject: LoadedModel) -> PreTrainedTokenizerBase:
    """Prepare a copy of the tokenizer that has an end of text and a token for padding.

    Raises:
        UserError: the model has no tokenizer, or one without an end and a beginning of text, or
            with an end of text that the model has no entry for.
    """
    given = subject.tokenizer
    if given is None:
        raise UserError(
            f"{subject.name} has no tokenizer, which questions have to be read with; "
            "save one beside it with tokenizer.save_pretrained(FOLDER)"
        )
    if not isinstance(given, PreTrainedTokenizerFast):
        raise UserError(
            f"the tokenizer of {subject.name} is a {type(given).__name__}; "
            "save a fast one (tokenizer.json) beside the model"
        )
    found = copy.deepcopy(given)
    found.eos_token = found.eos_token or found.bos_token or found.pad_token
    if found.eos_token is None:
        raise UserError(
            f"the tokenizer of {subject.name} has no token for the end or the beginning of a "
            "text; set its eos_token, and save it again"
        )
    check_ids(torch.tensor([found.eos_token_id]), subject, "the end of a text")
    # A token that was added for padding may have no entry in the model.
    if found.pad_token is None or found.pad_token_id >= subject.entries:
        found.pad_token = found.eos_token
    return found


def list_added(tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """Return the tokens that a tokenizer puts around every text by itself."""
    if tokenizer is None:
        return []
    return [str(one) for one in tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"])]


def list_appended(tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Return the ids of the tokens that a tokenizer puts behind every text by itself."""
    if tokenizer is None:
        return []
    found = tokenizer("a", return_special_tokens_mask=True)
    own = [at for at, mask in enumerate(found["special_tokens_mask"]) if not mask]
    return list(found["input_ids"][own[-1] + 1 :]) if own else []


def max_length(subject: LoadedModel) -> int:
    """Return how many tokens a model reads at once."""
    if subject.context is not None:
        return subject.context
    limit = getattr(subject.tokenizer, "model_max_length", None)
    return limit if isinstance(limit, int) and limit < ENDLESS else UNBOUNDED


@contextmanager
def record_logits(
    model: Any, apart: float, beams: int = 1
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Record which rows of a batch had a next-token logit of NaN or plus infinity, or two alike.

    A logit of minus infinity only forbids its token.

    Args:
        apart: how far the two largest may be apart and be alike, as `settle.close_rows` has it.
        beams: of each row, which the model is given one after the other.

    Yields:
        Two lists that hold one truth value for each row once the model has been run.
    """
    broken: list[Any] = []
    close: list[Any] = []

    def note(module: Any, given: Any, found: Any) -> None:
        last = found.logits[:, -1]
        rows = (last.isnan() | last.isposinf()).any(dim=-1)
        for kept, noted in ((broken, rows), (close, close_rows(last, apart))):
            own = noted.unflatten(0, (-1, beams)).any(dim=1)
            kept[:] = [kept[0] | own if kept else own]

    handle = model.register_forward_hook(note)
    try:
        yield broken, close
    finally:
        handle.remove()
