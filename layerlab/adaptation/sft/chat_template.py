"""Renders conversations by a chat template, and finds what the assistant says.

Templates mark the assistant's part by `{% generation %}`. Where one does not, the part is what a
turn adds to the rendering for generation of the turns before it. Either way it begins where that
rendering ends: what a template writes behind that, if only a blank, the model has to write.

Some templates write an answer differently once others follow: those of Qwen3 and DeepSeek-R1 leave
out its thoughts. There each answer is learned behind the rendering for generation of the turns
before it, which is what a model reads when it is to write that answer.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from layerlab.adaptation.sft.conversations import ASSISTANT, Turn
from layerlab.errors import UserError
from layerlab.system.untrusted.limits import check_work
from layerlab.validation import short_repr

# Characters that no standard gives a meaning to.
PRIVATE = range(0xF0000, 0xFFFFE)
TRIED = (Turn("user", "Hello!"), Turn(ASSISTANT, "Yes?"))
THOUGHT, THOUGHT_END = "<think>", "</think>"
# In a text of ours, whose marks of special tokens are hidden.
WRITTEN_END = re.compile(rf"(?<![\U{PRIVATE[0]:08x}-\U{PRIVATE[-1]:08x}]){THOUGHT_END}")
MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Some templates write today's date into every conversation, in a format of theirs.
NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
THEN = "{% macro strftime_now(format) %}{{ written_dates[format] }}{% endmacro %}"
# For tokenizers that have none: plain words, so that no new token is needed.
PLAIN = (
    "{{ bos_token or eos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}"
    "{% elif message.role == 'user' %}{{ '### User:\\n' + message.content + '\\n\\n' }}"
    "{% else %}{{ '### Assistant:\\n' }}"
    "{% generation %}{{ message.content + eos_token }}{% endgeneration %}{{ '\\n\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation as one text.

    Attributes:
        spans: from where to where the assistant speaks, in characters, ends of turns included.
        earlier: how many of these, from the first, are not learned here.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    earlier: int = 0


def add_plain_template(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Give a tokenizer without a chat template the plain one, which is saved with it.

    Returns:
        A note where that was done.

    Raises:
        UserError: it marks no end of a text, so that no turn could end.
    """
    if tokenizer.chat_template:
        return None
    if tokenizer.eos_token is None:
        raise UserError(
            "the tokenizer has neither a chat template nor a token for the end of a text; "
            "set its chat_template, or its eos_token"
        )
    tokenizer.chat_template = PLAIN
    return "the tokenizer had no chat template: it was given the plain one of layerlab"


class ChatTemplate:
    """The chat template of a tokenizer.

    Attributes:
        marked: whether it says itself what the assistant's part is.
        notes: how what a model is asked by differs from what it learns.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, day: date | None = None) -> None:
        """Find the template.

        Args:
            day: that it takes for today; the present one where it is left out.

        Raises:
            UserError: there is none, several of which none is the default, or it takes too much.
        """
        try:
            self.text: str = tokenizer.get_chat_template()
        except ValueError as error:
            message = next(iter(str(error).splitlines()))
            raise UserError(f"the tokenizer has no chat template to use: {message}") from None
        self.marked = bool(MARKED.search(self.text))
        self._special: dict[str, Any] = dict(tokenizer.special_tokens_map)
        formats = [found[1] for found in NOW.findall(self.text)]
        if day is not None and formats:
            self.text = THEN + self.text
            self._special["written_dates"] = {one: day.strftime(one) for one in formats}
        check_work(
            lambda: self._render(TRIED, ""),
            "the chat template",
            "two turns",
            content=f"{self._special} {self.text}",
        )
        self._gap, self.notes = "", tuple[str, ...]()
        with suppress(UserError):  # which is said of the first row
            self._compare_with_prompt()

    def _compare_with_prompt(self) -> None:
        """Find what stands between the rendering for generation and what the assistant says."""
        text, spans = self._render(TRIED, "", tracked=self.marked)
        asked = self._render(TRIED[:1], "", prompt=True)[0]
        start = spans[0][0] if spans else len(self._around(TRIED, 1, "")[0])
        if text.startswith(asked):
            self._gap = text[len(asked) : start]
        elif self.marked:
            self.notes = (
                "the chat template asks for an answer by another text than it writes before one, "
                f"{short_repr(asked)}: the model learns to go on from another prompt than it gets",
            )
        elif _restore_thought(text[:start], asked, TRIED[1].text) is not None:
            self.notes = (
                f"the chat template asks for an answer by {THOUGHT}, so that one without a thought "
                "is learned as one that closes it at once",
            )
        if self._gap.strip():
            self.notes = (
                f"the chat template writes {short_repr(self._gap)} before an answer, but not where "
                "it asks for one (add_generation_prompt): the model learns to write that too",
            )

    def framing(self) -> tuple[str, ...]:
        """Return a question, what begins its answer, and what ends that, as the template writes it.

        All that the template may write is a question where it refuses the two turns that are tried.
        """
        try:
            question = self._render(TRIED[:1], "")[0]
            asked = self._render(TRIED[:1], "", prompt=True)[0]
            head, foot = self._around(TRIED, 1, "")
        except UserError:
            return (self.text,)
        return question, (asked if len(asked) > len(question) else head)[len(question) :], foot

    def render(
        self, turns: Sequence[Turn], location: str = "a conversation"
    ) -> tuple[RenderedConversation, ...]:
        """Return a whole conversation as text.

        It is one text for each answer where the template writes answers differently once others
        follow.

        Raises:
            UserError: the template refuses it, or what the assistant says cannot be told.
        """
        text, spans = self._render(turns, location, tracked=self.marked)
        places = [number for number, turn in enumerate(turns, 1) if turn.role == ASSISTANT]
        if self.marked:
            followed = [turns[:place] for place in places if place < len(turns)]
            if all(self._stays(text, one, location) for one in followed):
                return (self._reach_prompt(text, spans),)
        elif (derived := self._derive(turns, text, location)) is not None:
            return (RenderedConversation(text, derived),)
        return tuple(self._render_last(turns[:place], location) for place in places)

    def prompt(self, turns: Sequence[Turn], location: str = "a prompt") -> RenderedConversation:
        """Return a conversation up to where the assistant begins to speak.

        Raises:
            UserError: the template refuses it.
        """
        text, spans = self._render(turns, location, prompt=True, tracked=self.marked)
        if self.marked:
            return self._reach_prompt(text, spans)
        return RenderedConversation(text, self._derive(turns, text, location) or ())

    def _reach_prompt(self, text: str, spans: Sequence[tuple[int, int]]) -> RenderedConversation:
        """Return a rendering whose marked spans begin where that for generation ends."""
        room = len(self._gap)
        found = [
            (start - room if text[:start].endswith(self._gap) else start, end)
            for start, end in spans
            if end > start
        ]
        return RenderedConversation(text, tuple(found))

    def _stays(self, text: str, turns: Sequence[Turn], location: str) -> bool:
        """Return whether a text begins as the rendering of turns up to the end of their answer."""
        alone, spans = self._render(turns, location, tracked=True)
        end = spans[-1][1] if spans else 0
        return text[:end] == alone[:end]

    def _derive(
        self, turns: Sequence[Turn], text: str, location: str
    ) -> tuple[tuple[int, int], ...] | None:
        """Return where each answer stands in a text; None where one is written differently."""
        spans = []
        for number, turn in enumerate(turns):
            if turn.role != ASSISTANT:
                continue
            _, before, answer, foot = self._find_answer(turns[: number + 1], location)
            if answer is None or not text.startswith(before + answer):
                return None
            spans.append((len(before), _end(before + answer, foot)))
        return tuple(spans)

    def _render_last(self, turns: Sequence[Turn], location: str) -> RenderedConversation:
        """Return turns of which the last answer alone is learned, behind what asks for it.

        Raises:
            UserError: it cannot be told.
        """
        earlier = self.prompt(turns[:-1], location).spans if turns[:-1] else ()
        if self.marked:
            found = self._reach_prompt(*self._render(turns, location, tracked=True))
            end = found.spans[-1][1] if found.spans else 0
            return replace(found, text=found.text[:end], earlier=len(earlier))
        head, before, answer, foot = self._find_answer(turns, location)
        if answer is None:
            answer = _restore_thought(head, before, turns[-1].text)
            if answer is None:
                raise UserError(
                    "the chat template has no {% generation %} marks, and what the assistant says "
                    f"cannot be told without them: it writes turn {len(turns)} of {location} "
                    "differently in its place; put the marks around it in chat_template, or take "
                    "one that has them: trl.get_training_chat_template(tokenizer) knows many"
                )
            answer += foot
        end = _end(before + answer, foot)
        spans = (*earlier, (len(before), end))
        return RenderedConversation((before + answer)[:end], spans, len(earlier))

    def _find_answer(
        self, turns: Sequence[Turn], location: str
    ) -> tuple[str, str, str | None, str]:
        """Return what stands before the last turn, what asks for it, what it is, what ends it.

        It is None where it does not go on from what asks for it, or has lost its thoughts.
        """
        head, foot = self._around(turns, len(turns) - 1, location)
        before = self._render(turns[:-1], location, prompt=True)[0] if turns[:-1] else head
        after = self._render(turns, location)[0]
        answer = after[len(before) :]
        kept = (
            after.startswith(before)
            and answer.endswith(foot)
            and (THOUGHT_END in answer or THOUGHT_END not in turns[-1].text)
        )
        return head, before, answer if kept else None, foot

    def _around(self, turns: Sequence[Turn], number: int, location: str) -> tuple[str, str]:
        """Return the text before and after the content of a turn.

        Raises:
            UserError: the template does not write it.
        """
        line = "".join(turn.text for turn in turns)
        sign = next(chr(code) for code in PRIVATE if chr(code) not in line)
        text = self._render([*turns[:number], Turn(ASSISTANT, sign)], location)[0]
        head, found, foot = text.partition(sign)
        if not found:
            raise UserError(
                f"{location}: the chat template leaves out what the assistant says; use another "
                "chat_template, which writes a content that is a text"
            )
        return head, foot

    def _render(
        self,
        turns: Sequence[Turn],
        location: str,
        *,
        prompt: bool = False,
        tracked: bool = False,
    ) -> tuple[str, list[tuple[int, int]]]:
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        settings: dict[str, Any] = {
            "chat_template": self.text,
            "return_assistant_tokens_mask": tracked,
            "add_generation_prompt": prompt,
            **self._special,
        }
        found: Any = None
        try:
            found = render_jinja_template([messages], **settings)
            found[0][0].encode()  # half of a character would stop the tokenizer without a word
        except Exception as error:  # whatever a template's own code raises
            message = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"{location}: the chat template refuses it: {message}; leave that row out, or use "
                "another chat_template"
            ) from None
        texts, spans = found
        return texts[0], spans[0] if spans else []


def _end(text: str, foot: str) -> int:
    """Return where an answer ends: blanks after the mark of its end belong to nobody."""
    return len(text) - (len(foot) - len(foot.rstrip()) if foot.strip() else 0)


def _restore_thought(head: str, asked: str, answer: str) -> str | None:
    """Return an answer whose thoughts a template leaves out, or an empty one where it has none.

    It is None where thoughts are not what the template changes.

    Args:
        head: what the template writes before an answer.
        asked: what it asks for one by, which may begin a thought.
    """
    has_end = bool(WRITTEN_END.search(answer))
    if has_end != (THOUGHT_END in answer):
        return None
    stem, opened, blanks = asked.rpartition(THOUGHT)
    own = head.removeprefix(stem)
    if opened and not blanks.strip() and (not own or own.startswith(THOUGHT)):
        closed = own.removeprefix(THOUGHT) or f"\n{THOUGHT_END}\n\n"
        return answer.lstrip().removeprefix(THOUGHT).lstrip("\n") if has_end else closed + answer
    return head[len(asked) :] + answer if has_end and head.startswith(asked) else None
