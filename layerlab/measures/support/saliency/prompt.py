"""Prompts of a saliency: a text that stops, the token that is to follow, and a foil."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.known_options import PROBE
from layerlab.loading.inputs import sequences
from layerlab.loading.model import LoadedModel
from layerlab.loading.text_input import TextInput
from layerlab.loading.token_text import PART, alone, token_strings
from layerlab.shapes import Tokens
from layerlab.tokenization.load import describe_missing
from layerlab.validation import short_repr

NAME = " Harriet"

AskedToken = str | int | None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Tokens, and which of the vocabulary are asked about.

    Attributes:
        position: the token after which the next one is predicted.
        target: the tokens of what is due, of which the first is asked about; empty for whatever
            the model predicts.
        foil: the token instead of which it is due, if one was named.
        words: target and foil as they were meant, where they are several tokens.
        remarks: what a reader must know, one sentence each.
    """

    tokens: Tokens
    position: int
    target: tuple[int, ...] = ()
    foil: int | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def prompt(subject: LoadedModel, options: Mapping[str, Any], read: Sequence[Tensor]) -> Prompt:
    """Return the prompt that the options `text`, `target`, `foil` and `position` describe.

    Args:
        read: what the other measures read; its first sequence stands in where `text` is None.

    Raises:
        NotApplicable: a text that does not fit, or target and foil begin alike.
        UserError: no tokenizer, a token or position that is not there.
    """
    text = options["text"]
    tokens = read[0] if text is None else _tokens(subject, text)
    length, position = len(tokens), options["position"]
    if not -length <= position < length:
        raise UserError(
            f"position {position} is outside the prompt, which has {length} tokens for "
            f"{subject.name}; give one from {-length} to {length - 1}"
        )
    due: AskedToken = options["target"]
    if due is None and text == PROBE and position in (-1, length - 1):
        due = NAME
    inside = None if position % length != length - 1 else text
    target = _word(subject, tokens, inside, due, "target")
    foil = _word(subject, tokens, inside, options["foil"], "foil")
    _differ(subject, target, foil)
    several = {kind: word for kind, word in (("target", target), ("foil", foil)) if len(word) > 1}
    words = {kind: _whole(subject, word) for kind, word in several.items()}
    return Prompt(
        tokens=tokens,
        position=position % length,
        target=target,
        foil=foil[0] if foil else None,
        words=words,
        remarks=tuple(_first(subject, kind, words[kind], several[kind]) for kind in several),
    )


def _differ(subject: LoadedModel, target: tuple[int, ...], foil: tuple[int, ...]) -> None:
    if foil and target[:1] == foil[:1]:
        (same,) = alone(subject, torch.tensor(foil[:1]))
        raise NotApplicable(
            f"target and foil begin with the same token of {subject.name}, {short_repr(same)}; "
            "give words that begin otherwise"
        )


def _tokens(subject: LoadedModel, text: str) -> Tensor:
    ids, limit = tokenize_unfinished(subject, text), subject.context
    if len(ids) < 2:
        raise NotApplicable(f"the prompt is {len(ids)} token; give it one word more")
    if limit is not None and len(ids) > limit:
        raise NotApplicable(
            f"the prompt has {len(ids)} tokens, and the context of {subject.name} is {limit}; "
            f"shorten it, or put it into a file and type --text FILE --context {limit} --measures "
            f"'saliency(text=None)', which asks behind its first {limit} tokens"
        )
    (tokens,) = sequences(TextInput(source="saliency", ids=(ids,)), subject)
    return tokens


def tokenize_unfinished(subject: LoadedModel, text: str) -> Tensor:
    """Return the tokens of an unfinished text.

    What a tokenizer sets behind the end is left out.
    """
    if subject.tokenizer is None:
        raise UserError(
            f"{subject.name} {describe_missing(subject.folder)} to read the text of a saliency "
            "with; ask about the tokens that it is given, as saliency(text=None)"
        )
    whole, bare = (
        subject.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        for special in (True, False)
    )
    ends = (end for end in range(len(whole), 0, -1) if whole[:end][-len(bare) :] == bare)
    return torch.tensor(whole[: next(ends, len(whole))], dtype=torch.int64)


def _word(
    subject: LoadedModel, tokens: Tensor, text: str | None, word: AskedToken, kind: str
) -> tuple[int, ...]:
    """Return the tokens of a word behind the text, as the tokenizer cuts the two together."""
    if word is None:
        return ()
    if isinstance(word, int):
        if not 0 <= word < subject.entries:
            raise UserError(
                f"{kind} {word} is no token of {subject.name}, whose vocabulary has "
                f"{subject.entries} entries from 0"
            )
        return (word,)
    if subject.tokenizer is None:
        raise UserError(
            f"{subject.name} {describe_missing(subject.folder)} to read the {kind} "
            f"{short_repr(word)} with; give the number of the token, as saliency({kind}=42)"
        )
    before = tokens.tolist()
    joint = [] if text is None else tokenize_unfinished(subject, text + word).tolist()
    if joint[: len(before)] == before and len(joint) > len(before):
        return tuple(joint[len(before) :])
    alone = subject.tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
    if not alone:
        raise UserError(
            f"the {kind} {short_repr(word)} is no token of {subject.name}; give a word with the "
            f"space before it, as --{kind} ' the'"
        )
    return tuple(alone)


def _whole(subject: LoadedModel, word: tuple[int, ...]) -> str:
    return "".join(token_strings(subject, torch.tensor(word))).replace(PART, "")


def _first(subject: LoadedModel, kind: str, whole: str, word: tuple[int, ...]) -> str:
    (first,) = alone(subject, torch.tensor(word[:1]))
    return (
        f"the {kind} {short_repr(whole)} is {len(word)} tokens here: the first, "
        f"{short_repr(first)}, is asked about"
    )


def earlier(prompt: Prompt) -> list[int]:
    """Return the positions, up to the one asked about, in earlier occurrences of the target."""
    tokens, size = prompt.tokens[: prompt.position + 1].tolist(), len(prompt.target)
    starts = [
        start
        for start in range(len(tokens) - size + 1)
        if size and tuple(tokens[start : start + size]) == prompt.target
    ]
    return sorted({index for start in starts for index in range(start, start + size)})
