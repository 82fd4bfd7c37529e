"""Whether the logits that a text is written by are numbers at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def record_unsound_logits(model: Any) -> Iterator[list[Any]]:
    """Record which rows of a batch had a next-token logit of NaN or plus infinity.

    A logit of minus infinity only forbids its token.

    Yields:
        A list that holds one truth value for each row once the model has been run.
    """
    broken: list[Any] = []

    def note(module: Any, given: Any, found: Any) -> None:
        last = found.logits[:, -1]
        rows = (last.isnan() | last.isposinf()).any(dim=-1)
        broken[:] = [rows if not broken else broken[0] | rows]

    handle = model.register_forward_hook(note)
    try:
        yield broken
    finally:
        handle.remove()
