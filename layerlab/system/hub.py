"""Checks once whether the Hugging Face Hub answers, before libraries wait for it, and fetches."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.system.logs import silence

PATIENCE = 5.0  # seconds for the first answer; a name that nobody resolves can take longer
# Small files of which nearly every repository has one: to ask for it tells the commit.
ALWAYS = (".gitattributes", "README.md")


@contextmanager
def hub() -> Iterator[str]:
    """Let libraries use the Hub in the block, or its cache alone where it does not answer.

    They would try a dozen times, and tell of each, before they say that there is no network.

    Yields:
        Why the Hub is not asked; nothing where it answers.
    """
    from huggingface_hub import constants

    why = explain_no_answer(constants.ENDPOINT)
    with ExitStack() as stack:
        stack.enter_context(silence("huggingface_hub", "datasets"))
        if why:
            stack.enter_context(_offline())
        yield why


def explain_no_answer(address: str) -> str:
    """Explain why an address gives no answer, in words; nothing where it gives any."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and no copy that is kept here can be read"
    answered = threading.Event()

    def ask() -> None:
        try:
            get_session().head(address, timeout=PATIENCE)
        except Exception:  # of whichever HTTP library it is
            return
        answered.set()

    # What resolves names knows no limit of time.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return "" if answered.is_set() else f"there is no connection to {address}"


def fetch_files(name: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """Fetch the files of a repository of the Hub; without a connection, find the copy kept here.

    Args:
        kind: "model" or "dataset".

    Raises:
        UserError: neither is to be had; it says why, in a few words.
    """
    from huggingface_hub import constants, snapshot_download  # late: a folder needs no Hub

    # Without a network the Hub's client tries again for half a minute before it says so.
    why = explain_no_answer(constants.ENDPOINT)
    wanted, local = list(patterns), bool(why)
    try:
        with silence("huggingface_hub"):
            found = snapshot_download(
                name, repo_type=kind, allow_patterns=wanted, local_files_only=local
            )
    except Exception as error:  # of many kinds: no network, no such name, no permission
        raise UserError(why or explain_failure(error)) from error
    return Path(found)


def explain_failure(error: Exception) -> str:
    """Explain in a few words why the Hub, or a library that asked it, gave nothing."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "it is gated: ask for access on its page there, then type hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is none of that name, or it is private and wants hf auth login"
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


@cache
def find_commit(dataset: str) -> str | None:
    """Find the commit of a data set on the Hub: today's, or the last that was seen without one.

    It holds for the whole process, so that what is read is what it was known by. None where the Hub
    has not told it here.
    """
    from huggingface_hub import hf_hub_download

    with hub():
        for file in ALWAYS:
            with suppress(Exception):  # of many kinds: no network, no such name, no such file
                # It lies in a folder that is called by the commit.
                return Path(hf_hub_download(dataset, file, repo_type="dataset")).parent.name
    return None


@contextmanager
def _offline() -> Iterator[None]:
    """Behave as if HF_HUB_OFFLINE had been set before any import."""
    import datasets
    from huggingface_hub import constants

    places: list[Any] = [constants, datasets.config]
    before = [module.HF_HUB_OFFLINE for module in places]
    for module in places:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(places, before, strict=True):
            module.HF_HUB_OFFLINE = value
