"""Encodes conversations, and labels exactly the assistant's tokens."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from random import SystemRandom

import numpy as np
from jaxtyping import Bool, Int32
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.adaptation.sft.chat_template import PRIVATE, ChatTemplate, RenderedConversation
from layerlab.adaptation.sft.conversations import ASSISTANT, USER, Conversation, Turn
from layerlab.errors import UserError
from layerlab.system.untrusted.limits import check_work
from layerlab.tokenization.load import engine

TRIED = 32  # rows that a template is tried on


@dataclass(frozen=True)
class Example:
    """One conversation, or one answer of it behind the turns before.

    Attributes:
        ids: tokens.
        answer: which of them are learned: what the assistant says, the end of its turn included.
        ends: the place after the last token of each of its turns that are learned.
        conversation: what the examples of one conversation and of its copies have in common, where
            each answer is an example.
    """

    ids: Int32[np.ndarray, " token"]
    answer: Bool[np.ndarray, " token"]
    ends: tuple[int, ...]
    conversation: bytes = b""

    def cut(self, most: int) -> "Example":
        """Return an example of at most so many tokens.

        What does not fit whole, from a turn on, is left out.

        Nothing is left where not even the first turn of the assistant fits.
        """
        if len(self.ids) <= most:
            return self
        ends = tuple(end for end in self.ends if end <= most)
        last = ends[-1] if ends else 0
        return Example(self.ids[:last], self.answer[:last], ends)


class Encoder:
    """Turns conversations into tokens by a tokenizer's chat template.

    What the assistant says is encoded apart from what stands before it, as it is where a model
    writes it after a prompt: no token belongs to both. A text that holds the template's own marks
    is read as text, so nobody's words begin or end a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, day: date | None = None) -> None:
        """Find the template.

        Args:
            day: that the template takes for today; the present one where it is left out.

        Raises:
            UserError: there is none.
        """
        self.template = ChatTemplate(tokenizer, day)
        self._engine = engine(tokenizer)
        self._bare = _bare(self._engine)
        self._control = self._find_marks()

    def _find_marks(self) -> dict[str, int]:
        """Return the tokens that a text can only spell: special ones, and those that frame turns.

        Others that a template writes, as `<think>`, stand in answers that it takes apart by them.
        """
        added = self._engine.get_added_tokens_decoder()
        named = {token.content for token in added.values() if token.content.strip()}
        question, *edges = self.template.framing()
        framing = {name for name in named if name in question}
        for edge in edges:  # behind the mark that begins or ends an answer stands what is its own
            places = {edge.find(name): name for name in sorted(named, key=len) if name in edge}
            framing |= {places[min(places)]} if places else set()
        return {
            token.content: number
            for number, token in added.items()
            if token.special or token.content in framing
        }

    def check(self, rows: Sequence[Conversation]) -> None:
        """Try the template on random rows under limits: it may recognize a fixed text.

        Nobody knows which rows, so that a template that takes too much for many is found.

        Raises:
            UserError: they need more time or memory than rows do.
        """
        drawn = SystemRandom().sample(range(len(rows)), min(TRIED, len(rows)))
        check_work(
            lambda: [self.examples(rows[number]) for number in drawn],
            "the chat template",
            f"{len(drawn)} of the rows",
        )

    def examples(self, given: Conversation) -> list[Example]:
        """Return a conversation as tokens: one example, or one for each answer.

        Raises:
            UserError: the template refuses it, or cannot tell what the assistant says.
        """
        turns, marks = self._hide_marks(given.turns)
        found = []
        for rendered in self.template.render(turns, given.location):
            _check_whole(rendered.text, marks, given.location)
            ids, sides = self._encode(rendered, marks)
            last = np.flatnonzero(np.diff(sides, append=-1)) + 1
            ends = tuple(int(end) for end in last if sides[end - 1] >= rendered.earlier)
            found.append(Example(np.array(ids, np.int32), sides >= rendered.earlier, ends))
        return found

    def prompt(self, given: str | Sequence[Turn]) -> list[int]:
        """Return the tokens that a model reads before it answers."""
        turns = (Turn(USER, given),) if isinstance(given, str) else tuple(given)
        hidden, marks = self._hide_marks(turns)
        return self._encode(self.template.prompt(hidden), marks)[0]

    def closing(self) -> int | None:
        """Return the token that ends the assistant's turn; None where its last one is a word."""
        (found,) = self.examples(Conversation((Turn(USER, "a"), Turn(ASSISTANT, "b"))))
        closing, marks = None, {*self._control.values()}
        # Behind what is said some templates write blanks too, or the end of the whole text.
        for one in found.ids[found.answer].tolist()[::-1]:
            if one in marks:
                closing = one
            elif self._engine.decode([one], skip_special_tokens=False).strip():
                break
        return closing

    @property
    def notes(self) -> tuple[str, ...]:
        """Return remarks on the template."""
        found = self.template.notes
        with suppress(UserError):  # of a template that refuses the two turns that are tried
            if self.closing() is None:
                why = "the chat template ends no answer with a token of its own"
                found = (*found, f"{why}: the model does not learn to stop")
        return found

    def _hide_marks(self, turns: Sequence[Turn]) -> tuple[tuple[Turn, ...], str]:
        """Hide every mark that stands in a text between two unused characters."""
        text_of_all = "".join(turn.text for turn in turns)
        if not any(mark in text_of_all for mark in self._control):
            return tuple(turns), ""
        unused = (chr(code) for code in PRIVATE if chr(code) not in text_of_all)
        left, right = next(unused), next(unused)
        hidden = []
        for turn in turns:
            text = turn.text
            for span in _places(text, sorted(self._control, key=len, reverse=True)):
                text = f"{text[: span.start]}{left}{text[span]}{right}{text[span.stop :]}"
            hidden.append(replace(turn, text=text))
        return tuple(hidden), left + right

    def _encode(self, rendered: RenderedConversation, marks: str) -> tuple[list[int], np.ndarray]:
        """Return the tokens, and the number of the span that each is in, or -1."""
        rendering, plain = _show(rendered, marks)
        cuts = {
            0,
            len(rendering.text),
            *(edge for span in (*rendering.spans, *plain) for edge in span),
        }
        ids, sides = list[int](), list[int]()
        for start, end in pairwise(sorted(cuts)):
            literal = _number(start, plain) >= 0
            found = _tokens(self._bare if literal else self._engine, rendering.text, start, end)
            if literal and (made := {*found} & {*self._control.values()}):
                raise UserError(
                    f"the tokenizer makes the token {made.pop()} of plain text, so that a text "
                    "could end a turn; use another tokenizer"
                )
            ids += found
            sides += [_number(start, rendering.spans)] * len(found)
        if ids:
            sides[0] = -1  # nothing stands before it that could predict it
        return ids, np.array(sides, np.int64)


def _places(text: str, marks: Sequence[str]) -> list[slice]:
    """Return where marks stand: the longest first at each place, from the last to the first."""
    found, at = [], 0
    while at < len(text):
        mark = next((one for one in marks if text.startswith(one, at)), "")
        if mark:
            found.append(slice(at, at + len(mark)))
        at += len(mark) or 1
    return found[::-1]


def _check_whole(text: str, marks: str, location: str) -> None:
    """Refuse a row of which a template takes a text apart at a mark that the text only spells.

    Raises:
        UserError: it does.
    """
    found = "".join(sign for sign in text if sign in marks)
    if found != marks * (len(found) // 2):
        raise UserError(
            f"{location}: the chat template takes a text apart at a special token that stands in "
            "it, so that nobody knows what is the template's; leave that row out, or use another "
            "chat_template"
        )


def _show(
    rendered: RenderedConversation, marks: str
) -> tuple[RenderedConversation, list[tuple[int, int]]]:
    """Take the unused characters out again, and return the text and what stood between them."""
    if not marks:
        return rendered, []
    kept, moved, plain, opened = list[str](), [0], list[tuple[int, int]](), 0
    for sign in rendered.text:
        if sign == marks[0]:
            opened = len(kept)
        elif sign == marks[1]:
            plain.append((opened, len(kept)))
        else:
            kept.append(sign)
        moved.append(len(kept))
    spans = tuple((moved[start], moved[end]) for start, end in rendered.spans)
    return replace(rendered, text="".join(kept), spans=spans), plain


def _tokens(machine: Tokenizer, text: str, start: int, end: int) -> list[int]:
    """Return the tokens of a part of a text.

    The blank that some tokenizers put before a text is left out.
    """
    if start:
        found = machine.encode("\n" + text[start:end], add_special_tokens=False)
        if not any(first < 1 < last for first, last in found.offsets):
            firsts = (first for first, _ in found.offsets)
            return [number for number, first in zip(found.ids, firsts, strict=True) if first]
    ids: list[int] = machine.encode(text[start:end], add_special_tokens=False).ids
    return ids


def _number(position: int, spans: Sequence[tuple[int, int]]) -> int:
    return next((one for one, (start, end) in enumerate(spans) if start <= position < end), -1)


def _bare(machine: Tokenizer) -> Tokenizer:
    """Return the same tokenizer without its added tokens.

    What they are called is text like any other.
    """
    settings = json.loads(machine.to_str())
    settings["added_tokens"], settings["post_processor"] = [], None
    return Tokenizer.from_str(json.dumps(settings))
