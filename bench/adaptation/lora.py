"""LoRA by `tune` beside PEFT and transformers' Trainer by hand.

Type python bench/adaptation/lora.py [UPDATES].

Model: a random Llama of the shape of GPT-2 small, 124 M parameters; one thread. Both learn from the
same rows, in the same order, with the same rank, precision and split; they take turns, and the
middle update of each turn counts, in processor seconds, which other work does not lengthen. Target:
tokens a second at least 0.9 of those by hand.
"""

# ruff: noqa: E402

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from statistics import median

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.conversations import Conversation, Turn
from layerlab.adaptation.sft.encode import Encoder
from layerlab.adaptation.sft.train import tune
from layerlab.recipes.adaptation_sections import LoraSection, SftSection
from layerlab.tokenization.load import train_tokenizer

BATCH, MICRO, BLOCK, TURNS, TARGET = 2, 1, 128, 3, 0.9
WORDS = train_tokenizer(["a party may appeal within ten days"] * 40, 300)


def fresh() -> LlamaForCausalLM:
    """Return the model, the same each time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": 1024}
    config = LlamaConfig(vocab_size=50257, tie_word_embeddings=True, **sizes, **heads)
    return LlamaForCausalLM(config)


def conversations(updates: int) -> list[Conversation]:
    """Return so many that each fills most of a row."""
    count = range(updates * BATCH)
    return [Conversation((Turn("user", f"{n:04}"), Turn("assistant", "x" * 90))) for n in count]


class Clock(TrainerCallback):
    """Takes the processor time after each update."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take it."""
        self.times.append(time.process_time())


def ours(updates: int) -> list[float]:
    """Return the processor time after each update of `tune`."""
    times: list[float] = []
    section = SftSection(
        batch_size=BATCH,
        micro_batch_size=MICRO,
        block_size=BLOCK,
        validation_fraction=0.0,
        save_steps=10_000,
        lora=LoraSection(r=16),
    )
    with tempfile.TemporaryDirectory() as out:
        tune(
            fresh(),
            WORDS,
            {"rows": conversations(updates)},
            section=section,
            out=Path(out) / "run",
            progress=lambda said, share: times.append(time.process_time()),
            use_cpu=True,
        )
    return times


def by_hand(updates: int) -> list[float]:
    """Return the processor time after each update of PEFT and Trainer."""
    add_plain_template(WORDS)
    encoder = Encoder(WORDS)
    rows = []
    for one in conversations(updates):
        example = encoder.example(one).cut(BLOCK)
        ids = torch.as_tensor(example.ids.astype("int64"))
        labels = ids.where(torch.as_tensor(example.answer), -100)
        rows.append({"input_ids": pad(ids, 0), "labels": pad(labels, -100)})
    lora = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        settings = TrainingArguments(
            output_dir=out,
            use_cpu=True,
            per_device_train_batch_size=MICRO,
            gradient_accumulation_steps=BATCH // MICRO,
            max_steps=updates,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        model = peft.get_peft_model(fresh(), lora)
        Trainer(model, settings, train_dataset=rows, callbacks=[clock]).train()  # type: ignore[arg-type]
    return clock.times


def pad(row: torch.Tensor, value: int) -> torch.Tensor:
    """Return a row filled up to the length of a block."""
    return torch.nn.functional.pad(row, (0, BLOCK - len(row)), value=value)


def rate(work: Callable[[int], list[float]], updates: int) -> float:
    """Return tokens a second of the middle update."""
    times = work(updates)
    gaps = [after - before for before, after in pairwise(times)]
    return BATCH * BLOCK / median(gaps)


def main(updates: int) -> None:
    """Print both rates of each turn, and their ratio."""
    torch.set_num_threads(1)
    ratios = []
    for turn in range(TURNS):
        pair = [(ours, by_hand), (by_hand, ours)][turn % 2]
        found = {work.__name__: rate(work, updates) for work in pair}
        ratios.append(found["ours"] / found["by_hand"])
        print(
            f"turn {turn + 1}: tune {found['ours']:.0f} tokens/s, by hand {found['by_hand']:.0f}, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    middle = median(ratios)
    print(f"ratio {middle:.3f}, target {TARGET}: {'met' if middle >= TARGET else 'missed'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 8)
