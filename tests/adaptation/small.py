"""A tokenizer, texts and models that are small enough to be adapted in a test."""

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from layerlab.tokenization.load import train_tokenizer

LAW = ("the court held that the contract was void", "a party may appeal within ten days")
NATURE = ("a river runs to the sea", "small birds sing in the green wood", "rain fell all night")


def written(file: Path, lines: tuple[str, ...], documents: int, seed: int) -> Path:
    """A .jsonl of short documents, each a few of the lines in some order."""
    draw = random.Random(seed)
    rows = (" ".join(draw.choices(lines, k=draw.randint(2, 9))) for _ in range(documents))
    file.write_text("".join(f'{{"text": "{row}."}}\n' for row in rows), encoding="utf-8")
    return file


def words() -> PreTrainedTokenizerFast:
    return train_tokenizer([*LAW, *NATURE] * 3, 300)


def llama(vocab: int = 300, seed: int = 0, width: int = 16) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
