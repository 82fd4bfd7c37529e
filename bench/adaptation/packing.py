"""What packing saves in instruction tuning: filling, and time of an update.

    python bench/adaptation/packing.py [ROWS ...]

ROWS are files of conversations; without them, the finance rows of the data folder. A model of
one million parameters is tuned on the same tokens in both ways, by turns.
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from layerlab import build
from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.conversations import Conversation, conversations
from layerlab.adaptation.sft.dataset import PackedRows, prepare_dataset
from layerlab.adaptation.sft.train import tune
from layerlab.data.places import data_folder
from layerlab.recipes.adaptation_sections import SftSection
from layerlab.tokenization.load import train_tokenizer

BLOCK, BATCH, ROUNDS = 1024, 8, 3
TIMED = 24  # conversations, every so many of all
FINANCE = ("consulting_part", "task_part", "computing_part", "retrieval_part")


def filling(rows: list[Conversation], words: Any, *, pack: bool) -> tuple[int, int, int]:
    """Count the rows, the places of their batches, and the tokens that fill these."""
    section = SftSection(batch_size=BATCH, validation_fraction=0.0, packing=pack)
    found = prepare_dataset(words, {"rows": rows}, section, BLOCK)
    data, batches, real = PackedRows(found), 0, 0
    for start in range(0, len(data), BATCH):
        part = [data[place] for place in range(start, start + BATCH)]
        batches += found.collator(part)["input_ids"].numel()
        real += sum(len(one.ids) for row in part for one in row)
    return len(data), batches, real


def timed(rows: list[Conversation], words: Any, *, pack: bool) -> float:
    """Return the seconds of one epoch, without held-out rows and checkpoints."""
    torch.manual_seed(0)
    model = build("llama", width=128, layers=4, heads=4, vocab=len(words), context=BLOCK)
    section = SftSection(
        batch_size=BATCH,
        block_size=BLOCK,
        validation_fraction=0.0,
        packing=pack,
        micro_batch_size=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        options: dict[str, Any] = {"save_strategy": "no", "use_cpu": True}
        tune(model, words, {"rows": rows}, out=Path(folder) / "run", section=section, **options)
        return time.perf_counter() - began


def main(files: list[str]) -> int:
    """Print a table; return 1 where packing wastes more than a twentieth."""
    files = files or [
        str(data_folder() / "zh-sft" / "disc-finllm" / f"{one}.json") for one in FINANCE
    ]
    rows = [one for file in files for one in conversations(file)]
    words = train_tokenizer((turn.text for one in rows for turn in one.turns), 4000)
    add_plain_template(words)
    print(f"{len(rows)} conversations, blocks of {BLOCK}, updates of {BATCH} rows")
    shares = {}
    for pack in (False, True):
        count, size, real = filling(rows, words, pack=pack)
        shares[pack] = real / size
        print(f"pack={pack}: {count} rows, {size:,} places, {real / size:.1%} are tokens")
    rows = rows[:: max(1, len(rows) // TIMED)][:TIMED]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for pack, found in seconds.items():
            found.append(timed(rows, words, pack=pack))
    for pack, found in seconds.items():
        middle = statistics.median(found)
        print(f"pack={pack}: {middle:.1f} s for {len(rows)} of them (median of {ROUNDS})")
    return int(shares[True] < 0.95)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
