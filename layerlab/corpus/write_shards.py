"""Writes shards of tokens beside training: `python -m layerlab.corpus.write_shards FOLDER`.

It ends when its standard input does: then whoever started it is gone, or done.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from layerlab.corpus.shards import AHEAD, HELD, PLAN, TABLE, TOKENS, name_place, read_shard_table
from layerlab.corpus.stored import lock_in_turn
from layerlab.corpus.streams import drop_documents
from layerlab.corpus.tokenize import TokenLayout, write_tokens
from layerlab.data.documents import TextCursor, store_documents
from layerlab.data.sources import open_source
from layerlab.errors import UserError
from layerlab.recipes.training_sections import Source
from layerlab.records.file_digests import hash_file
from layerlab.records.parse import one_line, read_json, seal
from layerlab.system.files import write_folder

WRONG = 2  # the exit code of what a user can mend
_WAIT = 0.2  # seconds between two looks


def main(arguments: list[str]) -> int:
    """Write the shards of a folder as they are asked for; return the exit code."""
    threading.Thread(target=_follow, daemon=True).start()
    try:
        write_shards(Path(arguments[0]))
    except UserError as error:
        print(one_line(error), file=sys.stderr, flush=True)
        return WRONG
    return 0


def _follow() -> None:
    """End at once when standard input does; a shard that is not whole has no name yet."""
    while os.read(0, 1 << 10):
        pass
    os._exit(0)


def write_shards(folder: Path) -> None:
    """Write the shards of all sources, each a few ahead of what was asked for of it.

    Raises:
        UserError: a text cannot be read, or was changed since it was planned.
    """
    plan = read_json(folder / PLAN)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(plan["tokenizer"])
    held_out = np.fromfile(folder / HELD, np.uint64)
    with lock_in_turn(folder, folder, "*/.*.partial"):
        sources = [
            ShardWriter(folder / str(number), one, plan, tokenizer, held_out)
            for number, one in enumerate(plan["sources"])
        ]
        while going := [one for one in sources if not one.done]:
            wanted = [one for one in going if one.is_wanted()]
            if wanted:
                min(wanted, key=lambda one: one.taken / one.weight).write()
            else:
                time.sleep(_WAIT)


class ShardWriter:
    """Writes the shards of one source in their order, from the first that is not there."""

    def __init__(
        self,
        folder: Path,
        given: Mapping[str, Any],
        plan: Mapping[str, Any],
        tokenizer: PreTrainedTokenizerFast,
        held_out: np.ndarray,
    ) -> None:
        """Find what is there.

        Raises:
            UserError: the text is not what was planned on.
        """
        self.folder, self.plan, self.tokenizer, self.held_out = folder, plan, tokenizer, held_out
        self.source = Source.model_validate_json(json.dumps(given["source"]))
        self.weight, self.identity = self.source.weight, given["identity"]
        self.next, self.taken, self.done = 0, int(given["head"]), False
        self.before: str | None = None  # hash of the text up to the next shard, once it was read
        while (table := self._find(self.next)) is not None and not self.done:
            self.next, self.taken, self.done = (
                self.next + 1,
                self.taken + table["bytes"],
                table["last"],
            )
            self.before = table["text"]
        self._check_unchanged()
        # Nothing is read before the first shard is asked for.
        self.cursor: TextCursor | None = None

    def is_wanted(self) -> bool:
        """Return whether the next shard is near to what was asked for."""
        marks = [int(one.stem) for one in self.folder.glob("*.wanted")]
        return bool(marks) and self.next <= max(marks) + AHEAD

    def write(self) -> None:
        """Write the next shard.

        Raises:
            UserError: the text cannot be read, or was changed.
        """
        write_folder(self._place(self.next), self.fill, "shard", like=lambda _: True)
        self.next += 1

    def fill(self, folder: Path) -> None:
        """Read, tokenize and leave out what is held out; the first shard lies in the corpus."""
        if self.cursor is None:
            text = open_source(self.source, full=False)
            self.cursor = TextCursor(text.pieces(), text.name, self.taken, self.source.limit)
            if self.before not in (None, self.cursor.hash.hexdigest()):
                raise UserError(
                    f"the text {self.source.text} was changed: before shard {self.next} it is not "
                    "what the earlier ones were made from; put it back, or give a copy of it in a "
                    "file, with which the run begins anew"
                )
        kept: dict[str, Any] = {"bytes": 0, "tokens": 0, "left": 0, "sha256": ""}
        if self.next:
            kept = self._write_tokens(folder, self.cursor)
        self._check_unchanged()
        self.taken, self.done = self.taken + kept["bytes"], not self.cursor.more
        kept |= {"text": self.cursor.hash.hexdigest(), "kind": self.plan["kind"], "last": self.done}
        table = seal({"place": name_place(self._place(self.next)), **kept})
        (folder / TABLE).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")

    def _write_tokens(self, folder: Path, cursor: TextCursor) -> dict[str, Any]:
        kind, mark, special = self.plan["kind"], self.plan["separator"], self.source.special_tokens
        layout = TokenLayout(folder, "shard", kind, mark, counted=False, special=special)
        pieces = cursor.take(self.plan["shard_bytes"])
        with store_documents(pieces, folder / "text", cursor.name, None) as store:
            found = write_tokens(store, self.tokenizer, layout, lambda what, share: None)
        tokens, starts, hashes = (
            np.fromfile(folder / f"shard.{part}", kind)
            for part, kind in (("tokens", layout.kind), ("starts", "int64"), ("hashes", "uint64"))
        )
        copied = np.isin(hashes, self.held_out)
        if copied.any():
            tokens = drop_documents(tokens, starts, copied)
            tokens.tofile(folder / TOKENS)
        for part in ("text", "shard.starts", "shard.hashes"):
            (folder / part).unlink()
        return {
            "bytes": found["bytes"],
            "tokens": len(tokens),
            "left": int(copied.sum()),
            "sha256": hash_file(folder / TOKENS),
        }

    def _place(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def _find(self, number: int) -> dict[str, Any] | None:
        """Return the table of a shard that is there as it was written, by its size."""
        folder = self._place(number)
        try:
            table = read_shard_table(folder / TABLE)
            size = table["tokens"] * np.dtype(table["kind"]).itemsize
            return table if not number or (folder / TOKENS).stat().st_size == size else None
        except (OSError, ValueError, LookupError, TypeError, UserError):
            return None

    def _check_unchanged(self) -> None:
        """Refuse a text that is not what was planned on."""
        if open_source(self.source, full=False).identity != self.identity:
            raise UserError(
                f"the text {self.source.text} was changed since it was planned, and the shard that "
                "was being made is not kept; put it back, or type the command that planned it again"
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
