"""The text after the first shard: tokenized by a process beside training, and waited for.

Every shard is a folder that takes its name when it is whole. Who reads one leaves a mark, and the
process that writes keeps a few shards ahead of the marks. It ends with whoever started it; another
takes its place, and makes the same shards.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from layerlab.data.sources import open_source
from layerlab.errors import UserError
from layerlab.recipes.training_sections import DataSection
from layerlab.records.file_digests import hash_file
from layerlab.records.parse import read_json, unseal
from layerlab.system.files import write_file
from layerlab.system.write_errors import make_temporary

# In the cache; and in a folder there, what its writer has to know, and what is held out.
SHARDS, PLAN, HELD = "shards-4", "plan.json", "held.hashes"
# In the digest of a corpus; it stays while the tokens do, and so do the names of runs.
TOKENS_OF = "shards-2"
# In the folder of a shard.
TABLE, TOKENS = "shard.json", "shard.tokens"
# Shards that are written beyond the furthest that anybody has asked for.
AHEAD = 2
# Shards of a source that are open at once.
MAPPED = 4
_WAIT = 0.05  # seconds between two looks
_WRITER = (sys.executable, "-P", "-m", "layerlab.corpus.write_shards")


class WriterProcess:
    """The process that writes the shards of a corpus, started when the first is asked for."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of all shards, with the plan of them."""
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs, or another process of the same run has the task."""
        if self._process is not None or os.environ.get("RANK", "0") != "0":
            return
        self._log = make_temporary(tempfile.TemporaryFile)
        self._process = subprocess.Popen(
            [*_WRITER, str(self.folder)],
            # Its end of the pipe closes however this process ends, and the writer ends then.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process, self._log)

    def check(self) -> None:
        """Refuse to wait for a process that is gone.

        Raises:
            UserError: it has ended, as its last line says.
        """
        if self._process is None or self._log is None or self._process.poll() in (None, 0):
            return
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it was killed")
        code = self._process.returncode
        if code == 2:  # what a user can mend
            raise UserError(last)
        raise UserError(
            f"the process that tokenizes the text has ended with code {code}: {last}; type the "
            "command again, it goes on from the last whole shard"
        )


def _end(process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
    log.close()


class ShardReader:
    """The shards of one source in their order; the first, number 0, lies in the corpus itself."""

    def __init__(self, folder: Path, writer: WriterProcess) -> None:
        """Take the folder of the source's shards, and who writes them."""
        self.folder, self.writer = folder, writer
        self._mapped: dict[int, np.ndarray] = {}

    def ask(self, number: int) -> None:
        """Let a shard be written, and the next few, if they are not there; wait for none."""
        mark = self.folder / f"{number:06}.wanted"
        if not mark.exists():
            write_file(mark, b"")
        self.writer.start()

    def is_last(self, number: int) -> bool:
        """Return whether no shard follows this one; it is waited for."""
        return bool(self.table(number)["last"])

    def table(self, number: int) -> Mapping[str, Any]:
        """Return what is kept of a shard, which is asked for and waited for.

        Raises:
            UserError: its text cannot be read, whoever writes it is gone, or it is damaged.
        """
        self.ask(number)
        file = self.folder / f"{number:06}" / TABLE
        while not file.exists():
            self.writer.check()
            time.sleep(_WAIT)
        try:
            return read_shard_table(file)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._describe_damage(number) from error

    def tokens(self, number: int) -> np.ndarray:
        """Return the tokens of a shard, on disk.

        Raises:
            UserError: as for its table.
        """
        if number not in self._mapped:
            while len(self._mapped) >= MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
            self._mapped[number] = self._map(number)
        return self._mapped[number]

    def _map(self, number: int) -> np.ndarray:
        """Map the tokens of a shard, after reading them through once."""
        table, file = self.table(number), self.folder / f"{number:06}" / TOKENS
        if not table["tokens"]:  # nothing can be mapped
            return np.zeros(0, table["kind"])
        try:
            if hash_file(file) != table["sha256"]:
                raise self._describe_damage(number)
            return np.memmap(file, dtype=table["kind"], mode="r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise self._describe_damage(number) from error

    def _describe_damage(self, number: int) -> UserError:
        folder = self.folder / f"{number:06}"
        return UserError(
            f"the shard {folder} in the cache is not what was written; delete that folder and type "
            "the command again, which makes it anew"
        )


def read_shard_table(file: Path) -> dict[str, Any]:
    """Read the table of a shard.

    Raises:
        OSError, ValueError, LookupError, TypeError: it cannot be read, is not what was written, or
            is that of another shard.
    """
    table = unseal(read_json(file))
    if table["place"] != name_place(file.parent):
        raise ValueError(f"it is that of another shard, {table['place']}")
    names = ("last", "bytes", "tokens", "kind", "sha256", "left", "text")
    return {name: table[name] for name in names}


def name_place(folder: Path) -> str:
    """Return the place of a shard: the digest of its corpus, its source, and its number."""
    return "/".join(folder.parts[-3:])


def plan_shards(data: DataSection, read: Sequence[int], **tokens: Any) -> dict[str, Any]:
    """Return what decides the shards of texts, beside their tokenizer.

    Args:
        read: bytes of each source that come before its shards.
        tokens: their kind, and the separator.
    """
    sources = [
        {
            # A setting that came later stands here where it is used: digests stay what they were.
            "source": source.model_dump(
                mode="json", exclude=set() if source.special_tokens else {"special_tokens"}
            ),
            "identity": open_source(source, full=False).identity,
            "head": head,
        }
        for source, head in zip(data.sources, read, strict=True)
    ]
    return {"sources": sources, "shard_bytes": data.shard_bytes, **tokens}


def open_shards(
    folder: Path, plan: Mapping[str, Any], tokenizer: Path, held_out: np.ndarray
) -> list[ShardReader]:
    """Write what the writer of shards has to know, and return the reader of each source.

    Args:
        held_out: hashes of the documents that are held out.
    """
    write_file(folder / HELD, held_out.tobytes())
    content = json.dumps({**plan, "tokenizer": str(tokenizer)}, indent=1)
    write_file(folder / PLAN, content + "\n")
    writer = WriterProcess(folder)
    return [ShardReader(folder / str(number), writer) for number in range(len(plan["sources"]))]


def describe_shards(data: DataSection) -> str:
    """Say what the reader of a result has to know of a text in shards."""
    return (
        f"each text is read on while the run goes on, {data.shard_bytes:,} bytes at a time; the "
        "tokenizer and the held-out text come from the first of them, and what is held out is not "
        "learned where it comes again later"
    )
