"""Silence around libraries that talk a lot."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

from transformers.utils import logging as transformers_logging

NOISY = ("lm_eval", "lm-eval", "datasets", "evaluate")


@contextmanager
def hush() -> Iterator[None]:
    """Let the engine work without its bars, warnings and messages."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [one.level for one in loggers]
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        for one in loggers:
            one.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Loading without the libraries' own bars and warnings: ours say what matters.

    Source: Own.
    """
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    others = [logging.getLogger(name) for name in ("accelerate", "huggingface_hub", "httpx")]
    levels = [other.level for other in others]
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    for other in others:
        other.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for other, level in zip(others, levels, strict=True):
            other.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
