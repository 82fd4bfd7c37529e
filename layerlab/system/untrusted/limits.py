"""Tries chat templates and tokenizers of a model under limits of time and memory.

A chat template is a program, and so are the rules of a tokenizer: a line of either can ask for more
time or memory than there is. Each is tried on a text of ours, in a process of its own with limits.
"""

import faulthandler
import hashlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.validation import short_repr

SECONDS, BYTES = 20, 2**30
TRIED = 20_000  # characters of the built-in text
# Tokens are numbered from 0, and some are left free; a model has a row for each number.
TIMES, FREE = 4, 2**18
# What stayed within its limits, by the digest of its content; this process alone knows them.
_PASSED: set[tuple[str, int, int]] = set()


def check_tokenizer(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that numbers tokens without measure, or needs that of time or memory.

    Raises:
        UserError: says what it did.
    """
    vocab = tokenizer.get_vocab()
    largest = max(vocab.values(), default=0)
    if largest > TIMES * len(vocab) + FREE:
        raise UserError(
            f"the tokenizer {name} has {len(vocab):,} entries and one with the number {largest:,}; "
            "mend its vocabulary"
        )
    templates = getattr(tokenizer, "chat_template", None)
    for one in templates if isinstance(templates, dict) else ():
        if Path(one).name != one:  # each is a file of its own where the tokenizer is saved
            raise UserError(
                f"the tokenizer {name} has a chat template called {short_repr(one)}, which is no "
                "name of a file; mend its tokenizer_config.json"
            )
    text = builtin.SAMPLE.read_text("utf-8")[:TRIED]
    check_work(
        lambda: tokenizer.decode(tokenizer(text, add_special_tokens=True, verbose=False).input_ids),
        f"the tokenizer {name}",
        f"{TRIED:,} characters",
        content=_content_of(tokenizer),
    )


def _content_of(tokenizer: Any) -> str:
    """Return all that decides what a tokenizer does; empty where Python of a stranger does."""
    engine, kind = getattr(tokenizer, "backend_tokenizer", None), type(tokenizer)
    if engine is None or not kind.__module__.startswith("transformers."):
        return ""
    return f"{kind.__module__}.{kind.__qualname__} {engine.to_str()}"


def check_work(
    work: Callable[[], object], what: str, given: str, *, memory: int = BYTES, content: str = ""
) -> None:
    """Refuse work that exceeds the limits.

    Args:
        content: all that decides what the work does; what stayed within the limits is not tried
            again in this process. Empty if nobody knows.

    Raises:
        UserError: says which limit it broke; whatever else is wrong is said when it is used.
    """
    digest = hashlib.sha256(f"{given} {content}".encode("utf-8", "surrogatepass")).hexdigest()
    tried = (digest, SECONDS, memory)
    if content and tried in _PASSED:
        return
    if why := overrun(work, SECONDS, memory):
        raise UserError(f"{what} takes {why} for {given}; use another")
    if content:
        _PASSED.add(tried)


def overrun(work: Callable[[], object], seconds: int, memory: int = BYTES) -> str:
    """Return the limit that a piece of work exceeds, in words; empty if none.

    It is done in a fork of this process, of which nothing is left; only Linux can limit that, and
    elsewhere nothing is tried.

    Args:
        seconds: of a processor.
        memory: in bytes, beyond what this process has now.
    """
    if sys.platform != "linux":
        return ""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, theirs, seconds, memory)
    os.close(theirs)
    try:
        readable, _, _ = select.select([ours], [], [], 3 * seconds)
        ended = os.read(ours, 1) if readable else b""
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if ended == b"e":
        return ""
    # What Rust cannot allocate ends a process by SIGABRT, without a word that could be read.
    full = ended == b"m" or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT)
    return f"over {memory / 2**30:g} GiB" if full else f"over {seconds} s"


def _work(work: Callable[[], object], tell: int, seconds: int, memory: int) -> None:
    """Do the work in the child process under its limits, and exit."""
    import resource  # not there on Windows

    ended = b"e"
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()  # an end by SIGABRT is expected here, and told by its status
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are not here
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))
        spent = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, spent + seconds))
        work()
    except MemoryError:
        ended = b"m"
    except BaseException:  # it ends, and does so again where it is asked in earnest
        pass
    finally:
        os.write(tell, ended)
        os._exit(0)
