"""The templates of a task, filled in inside of jinja's sandbox and tried under limits first.

lm-eval fills them in with all of jinja, in which a template can call whatever Python has. Here one
reaches values alone, and each is tried in a process of its own before it is filled in here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.engine import utils
from layerlab.system.untrusted.limits import check_work
from layerlab.validation import short_repr


class NullError(UserError):
    """A template prints a value that is null."""


class _Null(TemplateError):
    """Says so inside of jinja."""


class Templates:
    """Stands in for lm-eval's environment of templates; each is compiled once.

    Args:
        nulls: whether a value that is null is printed, as the word None.
    """

    def __init__(self, *, nulls: bool = False) -> None:
        self._known: dict[str, Template] = {}
        self._environment = ImmutableSandboxedEnvironment(
            loader=BaseLoader(),
            undefined=StrictUndefined,
            keep_trailing_newline=True,
            finalize=None if nulls else _refuse_null,
        )
        self._environment.filters["regex_replace"] = utils.regex_replace

    def from_string(self, text: str) -> "FilledTemplate":
        """Return a template that is tried before it is first filled in."""
        return FilledTemplate(self, text)

    def render(self, text: str, values: dict[str, Any]) -> str:
        """Fill a template in.

        Raises:
            UserError: it takes too much, reaches for more than values, or lacks one.
            NullError: what it prints is null.
        """
        if text not in self._known:
            what = f"the template {short_repr(text)} of a task"
            check_work(lambda: self._compile(text).render(**values), what, "one question")
        try:
            found = self._known[text] = self._known.get(text) or self._compile(text)
            return found.render(**values)
        except _Null:
            raise NullError(_describe_null(text)) from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"the template {short_repr(text)} of a task cannot be filled in: {message[:200]}; "
                "mend it"
            ) from None

    def _compile(self, text: str) -> Template:
        return self._environment.from_string(text)


class FilledTemplate:
    """A template as lm-eval asks for it."""

    def __init__(self, owner: Templates, text: str) -> None:
        self._owner, self._text = owner, text

    def render(self, **values: Any) -> str:
        """Fill the template in."""
        return self._owner.render(self._text, values)


def _describe_null(text: str) -> str:
    return f"the template {short_repr(text)} prints null, which would be read as the word None"


def _refuse_null(value: Any) -> Any:
    """Return what a template prints.

    Raises:
        _Null: it is nothing.
    """
    if value is None:
        raise _Null
    return value


_TEMPLATES = Templates()
_WITH_NULLS = Templates(nulls=True)


@contextmanager
def sandbox_templates(*, nulls: bool = False) -> Iterator[None]:
    """Let lm-eval fill in templates in the sandbox alone, until the block ends.

    Args:
        nulls: whether a value that is null is printed, as the word None.
    """
    before: Any = utils.env
    utils.env = _WITH_NULLS if nulls else _TEMPLATES
    try:
        yield
    finally:
        utils.env = before
