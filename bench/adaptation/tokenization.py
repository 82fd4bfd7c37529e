"""How fast text becomes tokens on disk, beside the tokenizers library alone on the same texts.

    python bench/adaptation/tokenization.py [--text FILE] [--megabytes 200] [--slice 20]
        [--threads 2]

Both take each slice in turns, the second first in every other one. The library's `encode_batch` is
handed a million characters at a time and its tokens are thrown away; ours reads the documents from
a file, stores them, encodes and writes a shard, as the process beside a training does. Without
--text it is the English of the data folder (english-docs). The ratio is to be at least 0.9, by the
clock on a quiet machine; where others work on it, the processor time says more. Both are of the
middle slice.
"""

# ruff: noqa: E402
import os
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import lzma
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

TARGET = 0.9
# Characters that the tokenizers are trained on, and their entries.
LEARNED, ENTRIES = 8 << 20, 32_000


def read_documents(file: Path | None) -> Iterator[str]:
    """Give paragraphs of a text joined to documents of 8,000 characters or more."""
    from layerlab.data.places import data_folder

    path = file or data_folder() / "english-docs" / "text.txt.xz"
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as stream:
        begun, size = list[str](), 0
        for line in stream:
            begun.append(line)
            size += len(line)
            if size >= 8000 and not line.strip():
                yield "".join(begun)
                begun, size = [], 0
        yield "".join(begun)


def cut(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Give documents of so many characters together, until there are no more."""
    found, done = list[str](), 0
    for text in texts:
        found.append(text)
        done += len(text)
        if done >= size:
            yield found
            found, done = [], 0
    if found:
        yield found


def encode(machine: Any, file: Path, some: list[str]) -> None:
    """Encode texts by the library alone."""
    from layerlab.corpus.tokenize import CHUNK

    for batch in cut(iter(some), CHUNK):
        machine.encode_batch(batch, add_special_tokens=False)


def write(words: Any, file: Path, some: list[str]) -> None:
    """Write the tokens of a file as those of a shard."""
    from layerlab.corpus.tokenize import TokenLayout, write_tokens
    from layerlab.data.documents import TextCursor, store_documents
    from layerlab.data.sources import open_source, to_source

    cursor = TextCursor(open_source(to_source(str(file)), full=False).pieces(), "it")
    with store_documents(cursor.take(1 << 40), file.parent / "store", "it", None) as store:
        layout = TokenLayout(file.parent, "shard", "uint16", 0, False)
        write_tokens(store, words, layout, lambda *news: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path)
    for name, default in (("megabytes", 200), ("slice", 20), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(given.threads)}

    from layerlab.tokenization.load import engine
    from layerlab.tokenization.train import train_bpe, train_fallback_bpe

    for train in (train_bpe, train_fallback_bpe):
        texts = read_documents(given.text)
        words = train(next(cut(texts, LEARNED)), vocab=ENTRIES)
        library, ours = partial(encode, engine(words)), partial(write, words)
        taken: dict[Any, list[tuple[float, float]]] = {library: [], ours: []}
        size = 0
        slices = cut(read_documents(given.text), given.slice << 20)
        for number, some in enumerate(islice(slices, max(1, given.megabytes // given.slice))):
            size += sum(len(text.encode()) for text in some)
            with TemporaryDirectory() as folder:
                file = Path(folder, "slice.jsonl")
                file.write_text("\n".join(json.dumps({"text": text}) for text in some))
                for way in (library, ours) if number % 2 else (ours, library):
                    begun = perf_counter(), process_time()
                    way(file, some)
                    taken[way].append((perf_counter() - begun[0], process_time() - begun[1]))
        print(f"{train.__name__}: {size / 1e6:.0f} MB, {given.threads} threads")
        for place, clock in enumerate(("the clock", "processor time")):
            times = [[one[place] for one in way] for way in taken.values()]
            ratios = [one / other for one, other in zip(*times, strict=True)]
            rates = " and ".join(f"{size / 1e6 / sum(one):.2f} MB/s" for one in times)
            word = "reached" if median(ratios) >= TARGET else "missed"
            print(
                f"  by {clock}, the library and ours: {rates}; ratio {median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} pairs), at least "
                f"{TARGET:g} is {word}",
                flush=True,
            )


if __name__ == "__main__":
    main()
