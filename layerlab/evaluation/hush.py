"""Silence around the engine of the benchmarks, which talks a lot."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

from layerlab.measures.checkpoint import quiet

NOISY = ("lm_eval", "lm-eval", "datasets", "evaluate")


@contextmanager
def hushed() -> Iterator[None]:
    """Let the engine work without its bars, warnings and messages."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [one.level for one in loggers]
    with ExitStack() as stack:
        stack.enter_context(quiet())
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
