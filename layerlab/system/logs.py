"""Silences other libraries, and shows warnings of layerlab's own as lines."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from layerlab.errors import DamageWarning


def show_warnings(say: Callable[[str], Any]) -> None:
    """Show what layerlab itself warns of as one line of this process; the rest as Python does."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *location: Any, **more: Any) -> None:
        older_name = issubclass(category, FutureWarning) and "layerlab" in str(location[0])
        if older_name or issubclass(category, DamageWarning):
            say(str(message))
        else:
            usual(message, category, *location, **more)

    warnings.showwarning = show


@contextmanager
def silence(*names: str) -> Iterator[None]:
    """Limit loggers to critical messages until the block ends."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Switch off other libraries' bars and warnings until the block ends."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with silence("accelerate", "huggingface_hub", "httpx"):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def listen(name: str) -> Iterator[list[str]]:
    """Collect the warnings of a logger, one line each, in place of having them shown."""
    messages: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            """Keep what was said."""
            messages.append(" ".join(record.getMessage().split()))

    logger, ear = logging.getLogger(name), Ear(logging.WARNING)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(ear)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield messages
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def hush() -> Iterator[None]:
    """Run lm-eval without its bars, warnings and messages."""
    with (
        quiet_libraries(),
        silence("lm_eval", "lm-eval", "datasets", "evaluate"),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        yield
