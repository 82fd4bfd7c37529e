"""What mixing domain and general text costs beside a training step, and how exact it is.

    python bench/adaptation/replay.py [--width 128] [--layers 4] [--block 256]
        [--batch 8] [--threads 1]

A batch is fetched and stacked as Trainer's loader does it; a step is a forward and a backward pass
and an update of a Llama model of that size, the smaller the harder for the loader. Both are timed
in turns, in processor time with one thread. Exactness is the largest distance of any prefix of
65,536 blocks from its ratio, in blocks, for several ratios.
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import statistics

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from layerlab.adaptation.pretraining.replay import BlockDataset, ReplayData, mix_texts, stack_rows
from layerlab.corpus.batches import BatchOrder
from layerlab.corpus.mixture import Mixture
from layerlab.system.hardware import stopwatch, with_threads
from layerlab.tokenization.load import train_tokenizer

RATIOS = ((1, 1), (1, 2), (3, 1), (7, 3), (0.9, 0.1), (1, 99))
PREFIXES = 1 << 16
TARGET = 0.01


def strays(ratio: tuple[int | float, int | float]) -> float:
    """Return the largest distance of a prefix from its ratio, in blocks."""
    sources, _ = Mixture(ratio).turn(np.arange(PREFIXES))
    wanted = np.arange(1, PREFIXES + 1) * (ratio[0] / sum(ratio))
    return float(np.abs(np.cumsum(sources == 0) - wanted).max())


def model_of(width: int, layers: int, vocab: int, block: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            num_key_value_heads=max(1, width // 64),
            max_position_embeddings=block,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("width", 128), ("layers", 4), ("block", 256), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    for ratio in RATIOS:
        print(f"ratio {ratio[0]}:{ratio[1]}: no prefix strays by more than {strays(ratio):.3f}")

    words = train_tokenizer(["the cat sat on the mat"], 300)
    text = mix_texts(words, ReplayData(domain="python-docs", general="wiki-zh"))
    blocks = BlockDataset(BatchOrder(text.corpus, given.block, seed=0), given.steps * given.batch)
    model = model_of(given.width, given.layers, 300, given.block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loading, learning = [], []
    with with_threads(given.threads):
        clock = stopwatch("cpu", given.threads)
        for step in range(given.steps):
            begun = clock()
            rows = stack_rows(
                blocks.__getitems__(list(range(step * given.batch, (step + 1) * given.batch)))
            )
            fetched = clock()
            logits = model(input_ids=rows["input_ids"]).logits
            cross_entropy(logits.flatten(0, 1), rows["labels"].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            loading.append(fetched - begun)
            learning.append(clock() - fetched)
    # The first step reads the tokens from disk and allocates the moments.
    load, learn = statistics.median(loading[1:]), statistics.median(learning[1:])
    parameters = sum(one.numel() for one in model.parameters())
    share = load / (load + learn)
    print(
        f"{parameters:,} parameters, {given.batch} blocks of {given.block} tokens: a batch in "
        f"{1e6 * load:,.0f} us, a step in {1e3 * learn:,.1f} ms: {share:.3%} is loading "
        f"(target {TARGET:.0%}: {'met' if share < TARGET else 'missed'})"
    )


if __name__ == "__main__":
    main()
