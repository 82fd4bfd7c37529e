"""Renders conversations by a chat template, and finds what the assistant says.

Templates mark the assistant's part by `{% generation %}`. Where one does not, the part is what a
turn adds to the rendering of the turns before it, which holds only if each rendering begins with
the one before; otherwise the template is refused. Either way that part begins where the rendering
for generation ends: what a template writes behind that, if only a blank, the model has to write.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    """

    text: str
    spans: tuple[tuple[int, int], ...]


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
    ) -> RenderedConversation:
        """Return a whole conversation as text.

        Raises:
            UserError: the template refuses it, or what the assistant says cannot be told.
        """
        if not self.marked:
            return self._derive(turns, location)
        return self._reach_prompt(*self._render(turns, location, tracked=True))

    def prompt(self, turns: Sequence[Turn], location: str = "a prompt") -> RenderedConversation:
        """Return a conversation up to where the assistant begins to speak.

        Raises:
            UserError: the template refuses it.
        """
        text, spans = self._render(turns, location, prompt=True, tracked=self.marked)
        if self.marked:
            return self._reach_prompt(text, spans)
        said = any(turn.role == ASSISTANT for turn in turns)
        return RenderedConversation(text, self._derive(turns, location).spans if said else ())

    def _reach_prompt(self, text: str, spans: Sequence[tuple[int, int]]) -> RenderedConversation:
        """Return a rendering whose marked spans begin where that for generation ends."""
        room = len(self._gap)
        found = [
            (start - room if text[:start].endswith(self._gap) else start, end)
            for start, end in spans
            if end > start
        ]
        return RenderedConversation(text, tuple(found))

    def _derive(self, turns: Sequence[Turn], location: str) -> RenderedConversation:
        text = self._render(turns, location)[0]
        spans = []
        for number, turn in enumerate(turns):
            if turn.role != ASSISTANT:
                continue
            before = self._render(turns[:number], location, prompt=True)[0] if number else ""
            after = self._render(turns[: number + 1], location)[0]
            head, foot = self._around(turns, number, location)
            start = len(before) if number else len(head)
            if not (
                after.startswith(before)
                and after.startswith(head[:start])
                and after[start:].endswith(foot)
                and text.startswith(after)
            ):
                raise UserError(
                    "the chat template has no {% generation %} marks, and what the assistant says "
                    f"cannot be told without them: it writes turn {number + 1} of {location} "
                    "differently in its place; put the marks around it in chat_template, or take "
                    "one that has them: trl.get_training_chat_template(tokenizer) knows many"
                )
            # The blanks after the mark of its end belong to nobody.
            blanks = len(foot) - len(foot.rstrip()) if foot.strip() else 0
            spans.append((start, len(after) - blanks))
        return RenderedConversation(text, tuple(spans))

    def _around(self, turns: Sequence[Turn], number: int, location: str) -> tuple[str, str]:
        """Return the text before and after the content of a turn."""
        line = "".join(turn.text for turn in turns)
        sign = next(chr(code) for code in PRIVATE if chr(code) not in line)
        text = self._render([*turns[:number], Turn(ASSISTANT, sign)], location)[0]
        head, found, foot = text.partition(sign)
        return (head, foot) if found else (text, "")

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
