"""Prompts as a chat template writes them, and what a template makes of the turns it is given."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from layerlab.errors import UserError
from layerlab.records.parse import check_text
from layerlab.system.untrusted.limits import check_work

ChatTurn = Mapping[str, str]
# No template writes it by itself.
_SENTINEL = "what-a-system-turn-says"


def render_chat(render: Callable[[], Any], turns: Sequence[ChatTurn], *, first: bool) -> str:
    """Write a conversation that ends with a question.

    Args:
        render: writes it.
        turns: of the conversation.
        first: the cost of the template has not been checked before.

    Raises:
        UserError: the template refuses it, takes too much, or leaves out the question or an example
            before it.
    """
    if first:
        check_work(render, "the chat template", "one question")
    try:
        text = str(check_text(render()))
    except Exception as error:  # whatever a template's own code raises
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the chat template refuses a question: {message}; use another") from None
    _check_turns(turns, text)
    return text


def _check_turns(turns: Sequence[ChatTurn], text: str) -> None:
    """Refuse a prompt without its question or one of its examples; blanks do not count.

    Raises:
        UserError: it is one.
    """
    written = "".join(text.split())
    lost = [
        index
        for index, one in enumerate(turns)
        if one["role"] != "system" and "".join(one["content"].split()) not in written
    ]
    # Behind the question may stand the beginning of an answer.
    question = max((n for n, one in enumerate(turns) if one["role"] == "user"), default=0)
    if lost and lost[-1] >= question:
        raise UserError(
            "the chat template does not write the question as it is given; use another, or leave "
            "--chat out"
        )
    if lost:
        raise UserError(
            "the chat template leaves out examples before the question, or writes them otherwise; "
            "type --shots 0, or use another template"
        )


def limit_template(tokenizer: Any, turns: Sequence[ChatTurn]) -> Callable[[], Any]:
    """Return what renders turns by a chat template, once that has kept within its limits.

    Raises:
        UserError: the template takes too much.
    """

    def render() -> Any:
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    check_work(render, "the chat template", "one question")
    return render


def keeps_instruction(tokenizer: Any) -> bool:
    """Return whether a chat template writes the system turn, where tasks have their instruction.

    Tried on one question; where it refuses such a turn, lm-eval leaves it out.

    Raises:
        UserError: the template takes too much.
    """
    turns = [{"role": "system", "content": _SENTINEL}, {"role": "user", "content": "?"}]
    render = limit_template(tokenizer, turns)
    try:
        return _SENTINEL in str(render())
    except Exception:  # whatever a template's own code raises
        return False


def find_day(tokenizer: Any) -> str:
    """Return today's date where a chat template writes it into each prompt, else nothing."""
    dated = "strftime_now" in str(getattr(tokenizer, "chat_template", None))
    return str(date.today()) if dated else ""
