"""What a saliency is asked about: a text that stops, the token that is to follow, and a rival."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from layerlab import UserError
from layerlab.domain import shown
from layerlab.measures.passage import Passage, sequences
from layerlab.measures.subject import Subject
from layerlab.shapes import Tokens

# A name that comes three times and is due a fourth time: does the model look back at it?
PROBE = (
    "The lamp on the pier was kept by Harriet. Every evening Harriet climbed the stairs with a can "
    "of oil, and every morning Harriet climbed down again. One night the lamp stayed dark. The "
    "fishermen stood below in the rain and called the name of"
)
NAME = " Harriet"

Word = str | int | None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Tokens, and which of the vocabulary are asked about.

    Attributes:
        position: the token after which the next one is predicted.
        target: the tokens of what is due, of which the first is asked about; empty for whatever
            the model predicts.
        foil: the token instead of which it is due, if one was named.
        remarks: what a reader must know, one sentence each.
    """

    tokens: Tokens
    position: int
    target: tuple[int, ...] = ()
    foil: int | None = None
    remarks: tuple[str, ...] = ()


def prompt(subject: Subject, options: Mapping[str, Any], read: Sequence[Tensor]) -> Prompt:
    """The prompt that the options `text`, `target`, `foil` and `position` describe.

    Source: Own.

    Args:
        read: what the other measures read; its first sequence stands in where `text` is None.

    Raises:
        UserError: no tokenizer, a text that does not fit, a token or position that is not there.
    """
    text = options["text"]
    tokens = read[0] if text is None else _tokens(subject, text)
    length, position = len(tokens), options["position"]
    if not -length <= position < length:
        raise UserError(
            f"position {position} is outside the prompt, which has {length} tokens for "
            f"{subject.name}; give one from {-length} to {length - 1}"
        )
    due: Word = options["target"]
    if due is None and text == PROBE and position in (-1, length - 1):
        due = NAME
    inside = None if position % length != length - 1 else text
    target = _word(subject, tokens, inside, due, "target")
    foil = _word(subject, tokens, inside, options["foil"], "foil")
    several = [(kind, word) for kind, word in (("target", target), ("foil", foil)) if len(word) > 1]
    return Prompt(
        tokens=tokens,
        position=position % length,
        target=target,
        foil=foil[0] if foil else None,
        remarks=tuple(_first(subject, kind, word) for kind, word in several),
    )


def _tokens(subject: Subject, text: str) -> Tensor:
    """The tokens of a text that goes on: what a tokenizer sets behind the end is left out."""
    if not text.strip():
        raise UserError("the text of a saliency is empty; give some words, as --saliency 'I am'")
    (whole,) = sequences(Passage(source="saliency", texts=(text,)), subject)
    assert subject.tokenizer is not None
    bare = subject.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    given = whole.tolist()
    ends = (end for end in range(len(given), 0, -1) if given[:end][-len(bare) :] == bare)
    return whole[: next(ends, len(given))]


def _word(
    subject: Subject, tokens: Tensor, text: str | None, word: Word, kind: str
) -> tuple[int, ...]:
    """The tokens of a word behind the text, as the tokenizer cuts the two together."""
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
            f"{subject.name} has no tokenizer to read the {kind} {shown(word)} with; give the "
            f"number of the token, as saliency({kind}=42)"
        )
    before = tokens.tolist()
    joint = [] if text is None else _tokens(subject, text + word).tolist()
    if joint[: len(before)] == before and len(joint) > len(before):
        return tuple(joint[len(before) :])
    alone = subject.tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
    if not alone:
        raise UserError(
            f"the {kind} {shown(word)} is no token of {subject.name}; give a word with the space "
            f"before it, as --{kind} ' the'"
        )
    return tuple(alone)


def _first(subject: Subject, kind: str, word: tuple[int, ...]) -> str:
    assert subject.tokenizer is not None
    first, whole = (shown(str(subject.tokenizer.decode(list(part)))) for part in (word[:1], word))
    return f"the {kind} {whole} is {len(word)} tokens here: the first, {first}, is asked about"


def earlier(prompt: Prompt) -> list[int]:
    """Positions up to the one asked at that belong to an earlier occurrence of the target.

    Source: Own.
    """
    tokens, size = prompt.tokens[: prompt.position + 1].tolist(), len(prompt.target)
    starts = [
        start
        for start in range(len(tokens) - size + 1)
        if size and tuple(tokens[start : start + size]) == prompt.target
    ]
    return sorted({place for start in starts for place in range(start, start + size)})
