"""Models that bring Python of their own: it runs only where the user has asked for it.

transformers asks on standard input where it is told nothing, and whatever is piped there answers.
So every model, configuration and tokenizer is loaded here, and nothing is ever asked.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Annotated, Any

import typer

from layerlab import UserError

_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)
_OPTION = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python that a model or tokenizer brings along."),
]


@contextmanager
def trusting(code: bool) -> Iterator[None]:
    """Let models bring code of their own, where that is asked for here or around it."""
    before = _TRUSTED.set(code or _TRUSTED.get())
    try:
        yield
    finally:
        _TRUSTED.reset(before)


def trustable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--trust-remote-code`."""

    @wraps(command)
    def run(*args: Any, trust_remote_code: bool = False, **options: Any) -> Any:
        with trusting(trust_remote_code):
            return command(*args, **options)

    given = inspect.signature(command)
    one = inspect.Parameter(
        "trust_remote_code", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_OPTION
    )
    run.__signature__ = given.replace(  # type: ignore[attr-defined]
        parameters=[*given.parameters.values(), one]
    )
    run.__annotations__ = {**command.__annotations__, one.name: _OPTION}
    return run


def pretrained(kind: Any, place: Any, **options: Any) -> Any:
    """What `kind.from_pretrained(place)` loads.

    Raises:
        UserError: it needs code of its own, and nobody has asked for that.
    """
    return _loaded(place, kind.from_pretrained, place, **options)


def configured(kind: Any, config: Any, **options: Any) -> Any:
    """What `kind.from_config(config)` builds.

    Raises:
        UserError: it needs code of its own, and nobody has asked for that.
    """
    return _loaded(config._name_or_path, kind.from_config, config, **options)


def _loaded(name: Any, load: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return load(*args, trust_remote_code=_TRUSTED.get(), **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{str(name)!r} needs Python that it brings along, which is not run unasked; read it, "
            "and where you trust it type --trust-remote-code (in Python trust_remote_code=True)"
        ) from None
