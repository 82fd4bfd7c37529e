"""Mistakes of a user, each of them told in one line."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from layerlab.errors import UserError


def refusal(call: Callable[..., Any], /, *given: Any, **named: Any) -> str:
    """The line that a call is refused with."""
    with pytest.raises(UserError) as caught:
        call(*given, **named)
    line = str(caught.value)
    del caught  # its traceback holds this frame, and with it what the call left open
    assert "\n" not in line
    return line


def refuses(said: str, call: Callable[..., Any], /, *given: Any, **named: Any) -> str:
    """The line that a call is refused with, in which a pattern is found."""
    line = refusal(call, *given, **named)
    assert re.search(said, line), line
    return line
