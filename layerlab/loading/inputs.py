"""Turns text into token sequences: cut, counted, never padded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.loading.model import LoadedModel
from layerlab.loading.options import AUTO
from layerlab.loading.text_input import CONTEXT, SAMPLES, TextInput, sample
from layerlab.tokenization.load import describe_missing

BATCH = 2048  # tokens that are run side by side


def passage(
    texts: Any = None,
    *,
    input_ids: Any = None,
    attention_mask: Any = None,
    samples: Any = None,
    context: Any = None,
) -> TextInput:
    """Check and return the input given to the Python function; what a command has read passes.

    Raises:
        UserError: both texts and ids, an empty text, ids of the wrong kind, a mask with holes.
    """
    if input_ids is not None:
        if texts is not None:
            raise UserError("both texts and input_ids were given; give one of them")
        ids = _unpad(input_ids, attention_mask)
        return TextInput(source="input_ids", ids=ids, samples=samples, context=context)
    if attention_mask is not None:
        raise UserError("attention_mask was given without input_ids; give both, or texts")
    if texts is None:
        return sample(samples=SAMPLES if samples is None else samples, context=context)
    if isinstance(texts, TextInput):
        return texts
    if not isinstance(texts, (str, Sequence)):
        raise UserError(f"texts is a {type(texts).__name__}; expected a string or a list of them")
    given = (texts,) if isinstance(texts, str) else tuple(texts)
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise UserError(f"text {index} is a {type(text).__name__}; expected a string")
        if not text.strip():
            raise UserError(f"text {index} is empty; expected some words to read")
    if not given:
        raise UserError("texts is empty; give at least one text, or leave it out")
    return TextInput(source="texts", texts=given, samples=samples, context=context)


def sequences(passage: TextInput, subject: LoadedModel) -> list[Tensor]:
    """Return token ids as this model's tokenizer makes them, each at most one context long.

    Raises:
        UserError: no tokenizer, fewer than two tokens, or more than the model can read.
    """
    limit = subject.context
    if passage.context is not None and limit is not None and passage.context > limit:
        raise UserError(
            f"--context {passage.context} is longer than the {limit} positions of "
            f"{subject.name}; give at most {limit}"
        )
    given = [ids.to(torch.int64) for ids in passage.ids]
    pieces = _pieces(passage, subject, given or tokenize(passage, subject))
    for index, ids in enumerate(pieces):
        if len(ids) < 2:
            raise UserError(
                f"text {index} has {len(ids) or 'no'} token for {subject.name}; two are the least "
                "that attention and a next-token loss can be measured on"
            )
        if limit is not None and len(ids) > limit:
            raise UserError(
                f"text {index} has {len(ids)} tokens, the context of {subject.name} is {limit}; "
                f"give context={limit} to cut it into samples"
            )
        check_ids(ids, subject, f"text {index}")
    return [ids.to(subject.device) for ids in pieces]


def check_ids(ids: Tensor, subject: LoadedModel, holder: str) -> None:
    """Check that a model has an entry for each token.

    Args:
        holder: of the tokens, in words.

    Raises:
        UserError: it has none for one of them.
    """
    vocab = subject.entries
    strange = ids[(ids < 0) | (ids >= vocab)]
    if len(strange):
        raise UserError(
            f"{holder} holds token {int(strange[0])}, the vocabulary of {subject.name} "
            f"has {vocab} entries from 0; is it the right tokenizer?"
        )


def tokenize(passage: TextInput, subject: LoadedModel) -> list[Tensor]:
    """Return the token ids of each text, as long as it is.

    Raises:
        UserError: the model has no tokenizer, or one that cannot read the text.
    """
    if subject.tokenizer is None:
        raise UserError(
            f"{subject.name} {describe_missing(subject.folder)}; put its tokenizer files into the "
            "folder, or in Python give tokenizer= (layerlab.inspect takes input_ids= too)"
        )
    return [_ids(subject, text) for text in passage.texts]


def _pieces(passage: TextInput, subject: LoadedModel, texts: list[Tensor]) -> list[Tensor]:
    """Return the token vectors, cut into samples where that was asked for."""
    if passage.samples is None and passage.context is None:
        return texts
    length = passage.context or reading_length(subject)
    most = None if passage.samples == AUTO else passage.samples
    return [part for ids in texts for part in _cut(ids, length)][:most]


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The sequences that are read.

    Attributes:
        each: those that every measure reads.
        more: others of the same length, for measures of all tokens together, in batches.
        short: the text has fewer tokens than were wanted.
    """

    each: list[Tensor]
    more: tuple[Tensor, ...] = ()
    short: bool = False


def divide(pieces: list[Tensor], tokens: int) -> Pieces:
    """Divide samples of one length into those that every measure reads, and others up to a number.

    Args:
        tokens: how many are wanted in all.
    """
    length = len(pieces[0])
    count = -(-tokens // length)
    more = [one for one in pieces[SAMPLES:count] if len(one) == length]
    batches = torch.stack(more).split(max(1, BATCH // length)) if more else ()
    return Pieces(each=pieces[:SAMPLES], more=tuple(batches), short=len(pieces) < count)


def reading_length(subject: LoadedModel) -> int:
    """Return the default number of tokens of a sample.

    Unit: tokens.
    """
    return min(CONTEXT, subject.context or CONTEXT)


def placeholder(passage: TextInput, subject: LoadedModel) -> list[Tensor]:
    """Return tokens of the right number for measures that read weights and no text."""
    length = passage.context or reading_length(subject)
    return [(torch.arange(length) % subject.entries).to(subject.device)]


def _cut(ids: Tensor, length: int) -> list[Tensor]:
    """Cut into samples of equal length; a shorter rest is used only if it is all there is."""
    parts = list(ids.split(length))
    return [part for part in parts if len(part) == length] or parts


def _ids(subject: LoadedModel, text: str) -> Tensor:
    assert subject.tokenizer is not None
    try:
        ids = subject.tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"]
    except Exception as error:  # every tokenizer library raises its own kind
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"the tokenizer of {subject.name} cannot read the text: {message}; mend its files"
        ) from None
    return torch.tensor(ids, dtype=torch.int64)


def _unpad(input_ids: Any, attention_mask: Any) -> tuple[Tensor, ...]:
    """Return one vector per row, without its padding."""
    ids = _matrix("input_ids", input_ids, "rows of equal length, padded, with attention_mask")
    if ids.dim() != 2 or ids.is_floating_point() or ids.is_complex():
        raise UserError(
            f"input_ids has shape {tuple(ids.shape)} and dtype {ids.dtype}; expected integers, "
            "batch x token"
        )
    if not len(ids):
        raise UserError("input_ids has no row; expected at least one, batch x token")
    if attention_mask is None:
        return tuple(ids)
    rows = []
    for index, (row, valid) in enumerate(zip(ids, _read_mask(attention_mask, ids), strict=True)):
        places = valid.nonzero().flatten()
        if len(places) and len(places) != places[-1] - places[0] + 1:
            raise UserError(
                f"row {index} of attention_mask has a hole; expected padding at one end"
            )
        rows.append(row[valid])
    return tuple(rows)


def _matrix(name: str, given: Any, expected: str) -> Tensor:
    """Return rows of numbers as a tensor; of no inference mode, where gradients fail."""
    try:
        found = torch.atleast_2d(torch.as_tensor(given))
    except (TypeError, ValueError, RuntimeError) as error:  # of a dict it is the last
        raise UserError(f"{name} cannot be made into one tensor; give {expected}") from error
    if found.is_meta:
        raise UserError(f"{name} is on the meta device, which holds no numbers; give {expected}")
    return found.clone() if found.is_inference() else found


def _read_mask(attention_mask: Any, ids: Tensor) -> Tensor:
    """Return which tokens are kept."""
    mask = _matrix("attention_mask", attention_mask, "a 1 or a 0 for each of input_ids")
    if mask.shape != ids.shape:
        raise UserError(
            f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(ids.shape)}; "
            "expected the same"
        )
    strange = mask[(mask != 0) & (mask != 1)]
    if len(strange):
        raise UserError(
            f"attention_mask holds {strange[0].item():g}; expected 1 for a token and 0 for "
            "padding: of a mask that is added to the scores, type attention_mask=mask == 0"
        )
    return mask.bool()
