"""The table of a corpus on disk, sealed with the hash of every file, so that damage is found.

What cannot be believed is made again: a corpus follows from its texts and its tokenizer.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from filelock import Timeout
from transformers import PreTrainedTokenizerFast

from layerlab.errors import UserError
from layerlab.records.file_digests import hash_folder
from layerlab.records.parse import read_json, seal, unseal
from layerlab.system.files import check_regular
from layerlab.system.locks import lock_folder
from layerlab.system.write_errors import temporary_folder

# Of the table alone; what decides the tokens is in the key and the digest.
SCHEMA = 3
CONTENTS, TOKENIZER = "corpus.json", "tokenizer"
# Up to here a file of tokens is read through before it is used; of a larger one only its size.
CHECKED = 1 << 28


def write_contents(folder: Path, key: str, content: dict[str, Any]) -> None:
    """Write the table of a corpus, when all other files are there.

    Args:
        key: of the corpus, which is the name of its folder.
    """
    table = seal({"key": key, "tokenizer": hash_folder(folder / TOKENIZER), "corpus": content})
    (folder / CONTENTS).write_text(json.dumps(table, indent=1), encoding="utf-8")


def read_contents(folder: Path) -> dict[str, Any]:
    """Read the table of a corpus, and check all files against it.

    Raises:
        ValueError: a file is not what was written, or the corpus is another.
        OSError, LookupError, TypeError, UserError: the table or a file cannot be read.
    """
    try:
        table = unseal(read_json(folder / CONTENTS))
    except ValueError as error:
        raise ValueError(f"{CONTENTS}: {error}") from None
    content: dict[str, Any] = table["corpus"]
    if table["key"] != folder.name:
        raise ValueError(f"{CONTENTS} is that of another corpus")
    if content["schema"] != SCHEMA:
        raise ValueError(f"{CONTENTS} was written by another version of layerlab")
    if hash_folder(folder / TOKENIZER) != table["tokenizer"]:
        raise ValueError("its tokenizer is not what was written")
    for one in content["sources"]:
        for side in ("train", "validation"):
            for name, (size, digest) in (one[side]["files"] | one[side]["beside"]).items():
                _check(folder / name, size, digest)
    return content


def open_tokenizer(folder: Path, named: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast:
    """Open the tokenizer of a corpus, of whatever class, as its tokenizer.json says.

    Args:
        named: that the corpus was asked for with, whose settings may be others than are kept.
    """
    with temporary_folder() as fresh:
        if named is not None:
            named.save_pretrained(fresh)
        kept = folder / TOKENIZER if named is None else fresh
        found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(kept)
        return found


def _check(file: Path, size: int, digest: str) -> None:
    check_regular(file)
    if file.stat().st_size == size:
        if size > CHECKED:
            return
        with file.open("rb") as stream:
            found = file_digest(stream, lambda: blake2b(digest_size=16))
        if found.hexdigest() == digest:
            return
    raise ValueError(f"{file.name} is not what was written")


@contextmanager
def lock_in_turn(folder: Path, partial_folder: Path, partials: str) -> Iterator[None]:
    """Wait until no other process makes what a folder of the cache holds.

    Args:
        partial_folder: where a process that was killed has left something, which is removed.
        partials: the pattern of its names.

    Raises:
        UserError: the cache cannot be written to.
    """
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(folder))
                break
            except UserError as error:
                if not isinstance(error.__context__, Timeout):
                    raise UserError(
                        f"the cache {folder.parent} cannot be written to; "
                        "set LAYERLAB_CACHE to a folder that can"
                    ) from None
            time.sleep(0.1)
        for left in partial_folder.glob(partials):
            shutil.rmtree(left, ignore_errors=True)
        yield
