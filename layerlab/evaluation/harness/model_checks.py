"""Checks of a model for the engine: a tokenizer, a longest input, logits that are numbers."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.evaluation.harness.settle import close_rows
from layerlab.loading.generation import special_ids
from layerlab.loading.inputs import check_ids
from layerlab.loading.model import LoadedModel
from layerlab.tokenization.load import describe_missing

# Of a model without a longest input, whose tokenizer names none either.
UNBOUNDED = 2048
ENDLESS = 1 << 40  # what tokenizers write for no limit is more than this
NEVER = 1 << 40  # tokens before what does not come
# Rows of the first batch where memory decides: more are no faster on a CPU. Emulated arithmetic
# takes the memory of several models.
ROWS, ROWS_ON_CPU, ROWS_EMULATED = 512, 32, 16


def prepare_tokenizer(subject: LoadedModel) -> PreTrainedTokenizerBase:
    """Prepare a copy of the tokenizer that has an end of text and a token for padding.

    Raises:
        UserError: the model has no tokenizer, or one without an end and a beginning of text, or
            with an end of text that the model has no entry for.
    """
    given = subject.tokenizer
    if given is None:
        raise UserError(
            f"{subject.name} {describe_missing(subject.folder)}, which questions have to be read "
            "with; save one beside it with tokenizer.save_pretrained(FOLDER)"
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


def list_ends(model: Any) -> list[int]:
    """Return the ids of the tokens that end a text, as a model's settings name them."""
    found = special_ids(model).get("eos_token_id", [])
    return [found] if isinstance(found, int) else list(found)


def max_length(subject: LoadedModel) -> int:
    """Return how many tokens a model reads at once."""
    if subject.context is not None:
        return subject.context
    limit = getattr(subject.tokenizer, "model_max_length", None)
    return limit if isinstance(limit, int) and limit < ENDLESS else UNBOUNDED


def first_rows(subject: LoadedModel, share: bool) -> int:
    """Return how many rows the first batch has where memory decides.

    Args:
        share: whether numbers are those of the model's own format.
    """
    if not share:
        return ROWS_EMULATED
    return ROWS_ON_CPU if subject.device.type == "cpu" else ROWS


@contextmanager
def record_logits(
    model: Any, apart: float, beams: int = 1
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Record when each row first had a next-token logit of NaN or plus infinity, or two alike.

    A logit of minus infinity only forbids its token.

    Args:
        apart: how far the two largest may be apart and be alike, as `settle.close_rows` has it.
        beams: of each row, which the model is given one after the other; several change places,
            and their rows are told from the beginning on.

    Yields:
        Two lists that hold one whole number for each row once the model has been run: the tokens
        that were written before, or `NEVER`.
    """
    broken: list[Any] = []
    close: list[Any] = []
    written = 0

    def note(module: Any, given: Any, found: Any) -> None:
        nonlocal written
        last = found.logits[:, -1]
        rows = (last.isnan() | last.isposinf()).any(dim=-1)
        for kept, noted in ((broken, rows), (close, close_rows(last, apart))):
            own = noted.unflatten(0, (-1, beams)).any(dim=1)
            now = torch.where(own, 0 if beams > 1 else written, NEVER)
            kept[:] = [torch.minimum(kept[0], now) if kept else now]
        written += 1

    handle = model.register_forward_hook(note)
    try:
        yield broken, close
    finally:
        handle.remove()


def find_unended(
    written: Tensor,
    steps: Tensor,
    *,
    ends: Sequence[int],
    stop: Sequence[str],
    decode: Callable[[list[int]], str],
) -> Tensor:
    """Return which answers have not ended before a step, each before its own.

    What a batch goes on to write behind the end of one of its rows is read by nobody.

    Args:
        written: row x token.
        steps: of each row, as `record_logits` has them.
        ends: tokens that end a text.
        stop: texts that do.
    """
    found = steps < written.shape[1]
    for row in found.nonzero().flatten().tolist():
        before = written[row, : int(steps[row])].tolist()
        text = decode(before)
        found[row] = not {*before} & {*ends} and not any(one in text for one in stop)
    return found


def split_joined(
    before: Sequence[int], whole: Sequence[int], begin: int
) -> tuple[list[int], list[int]]:
    """Split a text whose last token is partly of the prompt and partly of an option.

    Args:
        before: token ids of the prompt.
        whole: of prompt and option, no more of them.
        begin: id that stands before a text of which nothing else does.

    Example:
        >>> split_joined([7, 8], [7, 9], 0)
        ([7], [9])
    """
    pairs = enumerate(zip(before, whole[:-1], strict=False))
    alike = next(
        (at for at, (one, other) in pairs if one != other), min(len(before), len(whole) - 1)
    )
    return list(whole[:alike]) or [begin], list(whole[alike:])
