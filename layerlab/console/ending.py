"""Ends the command line with an exit code, and one line where the user can act."""

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import typer

from layerlab.console.tables import printable
from layerlab.errors import INTERRUPTION, TERMINATION, Interrupted, UserError
from layerlab.system.logs import show_warnings
from layerlab.system.signals import CtrlC, Stopped, hear, hear_ctrl_c
from layerlab.system.write_errors import FULL, NO_TEMPORARY
from layerlab.validation import short_repr

# By a file that the user loads.
CLOSED = "standard output was closed while it ran; nothing more was written there"
INTERRUPTED = 130
TERMINATED = [128 + getattr(signal, one, 0) for one in ("SIGTERM", "SIGHUP")]  # Windows lacks one


def run_app(app: Callable[..., Any]) -> int:
    """Run the command line and return its exit code; user errors are one line."""
    for word in sys.argv[1:]:
        if not _is_text(word):
            return _say(
                f"{os.fsencode(word)!r} on the command line is not UTF-8; rename what it names"
            )
    if sys.stdout is None:
        return _say("standard output is closed; give it a place, or type > /dev/null", 1)
    with hear("SIGTERM"), hear("SIGHUP"), hear_ctrl_c() as interrupts, warnings.catch_warnings():
        show_warnings(_say)
        code = _run(app, interrupts)
    try:
        sys.stdout.flush()
    except OSError as error:
        return _give_up_output(error)
    except ValueError:
        return _say(CLOSED, 1)
    return code


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _say(text: str, code: int = 2) -> int:
    """Print one line on standard error without control characters.

    The code tells it as well.
    """
    with suppress(OSError, AttributeError):  # it is full, or closed
        sys.stderr.write(f"layerlab: {printable(text)}\n")
        sys.stderr.flush()
    return code


def _give_up_output(error: OSError) -> int:
    """Discard what is left to write once standard output is closed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # else nobody is left to tell
        reason = error.strerror or str(error)
        return _say(f"cannot write standard output: {reason}; make room there", 1)
    return 1


def _give_up_file(error: OSError) -> int:
    """Report a file that the system refuses, in one line."""
    reason = (error.strerror or str(error)).lower()
    return _say(
        f"cannot use the file {short_repr(os.fsdecode(error.filename))}: {reason}; name another, "
        "or mend what is wrong there"
    )


def _call(app: Callable[..., Any], interrupts: Sequence[int]) -> Any:
    """Call the command line; whatever came of a signal to stop is that signal once more.

    One that comes while a class is made, as libraries do by the thousand when they are imported, is
    wrapped into a RuntimeError, and that into what the library makes of errors.

    Args:
        interrupts: fills up when Ctrl-C is typed.
    """
    try:
        return app(standalone_mode=False)
    except Interrupted:
        raise
    except BaseException as error:
        if stop := _find_stop(error):
            raise stop from None
        if interrupts:
            raise CtrlC from None
        raise


def _find_stop(error: BaseException) -> BaseException | None:
    """Return the signal to stop that an exception came of."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, KeyboardInterrupt | Stopped):
            return one
        seen.add(id(one))
        waiting += [one.__context__, one.__cause__]
    return None


def _describe_number(error: Any) -> str | None:
    """Return the line on an option that takes a number and was given none, or one out of range."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    if not found or not found[0]["msg"].startswith("Input should be "):
        return None
    expected = found[0]["msg"].removeprefix("Input should be ").partition(",")[0]
    kinds = {"a valid integer": "a whole number", "a valid number": "a number"}
    return (
        f"{max(error.param.opts, key=len)} is {short_repr(found[0]['input'])}; "
        f"expected {kinds.get(expected, f'a number {expected}')}"
    )


def _run(app: Callable[..., Any], interrupts: Sequence[int]) -> int:
    try:
        code = _call(app, interrupts)
    except UserError as error:
        return _say(str(error))
    except typer.TyperException as error:
        message = _describe_number(error) or " ".join(error.format_message().split())
        message = message.replace("Value error, ", "")
        context = getattr(error, "ctx", None)
        path = (
            context.command_path.removeprefix(context.find_root().command_path) if context else ""
        )
        joint = "" if message.endswith("?") else ";"
        return _say(f"{message.removesuffix('.')}{joint} type layerlab{path} --help")
    except Interrupted as pause:
        return _say(str(pause), pause.code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stop:
        if stop.code not in TERMINATED:
            raise
        return _say(TERMINATION, stop.code)
    except OSError as error:
        if error.filename is not None:
            return _give_up_file(error)
        if "No usable temporary directory" in str(error):  # libraries look when they are imported
            return _say(NO_TEMPORARY)
        if error.errno not in {*FULL, errno.EPIPE}:
            raise
        return _give_up_output(error)
    except ValueError:
        if not sys.stdout.closed:
            raise
        return 1  # said when what waits is to be written
    except RuntimeError as error:
        if "home directory" not in str(error):  # as pathlib says it
            raise
        return _say("this user has no home folder; set HOME, or LAYERLAB_CACHE to a folder")
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # What libraries written in Rust raise where they did not expect something.
        return _say(f"a library gave up on what it was given: {error}; mend the tokenizer or text")
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code without a word
        _say(INTERRUPTION)
    return code if isinstance(code, int) else 0
