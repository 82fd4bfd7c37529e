"""What `layerlab adapt --plan` foretells beside what the stages then take: memory and seconds.

python bench/adaptation/plan.py [WIDTH LAYERS] [CASE]...   # 768 12: a random Llama of 124 M

Each case trains all weights or adapters for a few updates, in one process or two: it tunes, or
continues pretraining. Memory is that of the first process at its peak. Seconds are of the
processor, which other work does not lengthen, of the first process in all stages that are planned.
"""

# ruff: noqa: E402

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.api.adapt import AdaptationPlan, estimate_stages, plan_adaptation, run_adaptation
from layerlab.tokenization.load import train_tokenizer

LINES = ("the court held that the contract was void", "a party may appeal within ten days") * 40
LORA: dict[str, Any] = {"sft.lora": {"r": 16}}
PRETRAIN: dict[str, Any] = {"sft": None}
CASES: dict[str, dict[str, Any]] = {
    "full, fp32": {},
    "full, fp32, checkpointing": {"sft.gradient_checkpointing": True},
    "full, bf16": {"sft.mixed_precision": "bf16"},
    "LoRA, fp32": LORA,
    "LoRA on bfloat16, checkpointing": LORA
    | {"base.dtype": "bfloat16", "sft.gradient_checkpointing": True},
    "full, fp32, 2 processes": {"run.num_processes": 2},
    "full, fp32, 2 processes, fsdp": {"run.num_processes": 2, "run.sharding": "fsdp"},
    "LoRA, fp32, 2 processes, fsdp": LORA | {"run.num_processes": 2, "run.sharding": "fsdp"},
    "pretraining, full, bf16": PRETRAIN | {"pretrain.mixed_precision": "bf16"},
    "pretraining, full, 2 processes, fsdp": PRETRAIN
    | {"run.num_processes": 2, "run.sharding": "fsdp"},
}


def save_model(folder: Path, width: int, layers: int) -> None:
    """Save a random Llama, with a vocabulary of GPT-2's size, and a tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50257 if width >= 512 else 4000,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    train_tokenizer(list(LINES), 300).save_pretrained(folder)


def recipe(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe that trains for 2,048 tokens, in batches of 4 x 128."""
    rows = [{"instruction": LINES[0] + f" {n}", "output": LINES[1] * 2} for n in range(60)]
    (folder / "rows.json").write_text(json.dumps(rows))
    usual = {
        "batch_size": 4,
        "micro_batch_size": 2,
        "block_size": 128,
        "tokens": 4 * 128 * 4,
        "eval_steps": 100,
        "save_steps": 100,
    }
    content: dict[str, Any] = {"base": {"model": str(folder / "model")}}
    if "sft" not in changes:
        sources = [{"name": "rows", "path": str(folder / "rows.json")}]
        return {**content, "sft": {**usual, "sources": sources}}
    words, draw = [line.split() for line in LINES[:2]], random.Random(0)
    for name, own in zip(("domain", "general"), words, strict=True):
        documents = (" ".join(draw.choices(own, k=400)) for _ in range(60))
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
    texts = {kind: [{"text": str(folder / f"{kind}.txt")}] for kind in ("domain", "general")}
    return {**content, "data": texts, "pretrain": usual}


def plan_case(name: str, folder: Path, out: Path) -> AdaptationPlan:
    """Plan a case."""
    changes = {key: value for key, value in CASES[name].items() if value is not None}
    return plan_adaptation(recipe(folder, CASES[name]), out, changes)


def run_case(name: str, folder: Path) -> None:
    """Plan a case and run it, in a process that has done nothing else; print both."""
    out = Path(tempfile.mkdtemp(dir=folder))
    told = [one for one in estimate_stages(plan_case(name, folder, out)).rows if one.parts]
    words = [sys.executable, __file__, "--run", name, str(folder), str(out)]
    subprocess.run(words, check=True, stdout=subprocess.PIPE)
    store = StageStore(out / "adaptation" / "stages")
    done = [store.read(one.key) or {} for one in told]
    foretold = [one.seconds for one in told]
    taken = [one["processor_seconds"] for one in done]
    print(
        json.dumps(
            {
                "memory": [told[-1].memory, done[-1]["result"]["peak_memory_bytes"]],
                "seconds": [sum(filter(None, foretold)), sum(taken)],
                "updates": sum(one.parts.updates for one in told if one.parts),
                "clock": sum(one["seconds"] for one in done),
                "stages": [foretold, taken],
            }
        )
    )


def main(arguments: list[str]) -> None:
    """Print a line for each case and shape."""
    if arguments[:1] == ["--case"]:
        run_case(arguments[1], Path(arguments[2]))
        return
    if arguments[:1] == ["--run"]:
        run_adaptation(plan_case(arguments[1], *map(Path, arguments[2:4])), progress=False)
        return
    numbers = [int(one) for one in arguments if one.isdigit()] or [768, 12]
    chosen = [one for one in arguments if not one.isdigit()] or list(CASES)
    print(
        f"{'shape':>10}  {'case':36} {'GB plan':>8} {'GB':>6} {'':>5}  {'s plan':>7} {'s':>6} "
        f"{'':>5}  {'of it updates':>13} {'by the clock':>12}"
    )
    for width, layers in zip(numbers[::2], numbers[1::2], strict=True):
        with tempfile.TemporaryDirectory() as place:
            save_model(Path(place) / "model", width, layers)
            for name in chosen:
                words = [sys.executable, __file__, "--case", name, place]
                said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                found = json.loads(said.splitlines()[-1])
                (memory, took), (seconds, taken) = found["memory"], found["seconds"]
                print(
                    f"{width:>5} x {layers:<2}  {name:36} {memory / 1e9:8.2f} {took / 1e9:6.2f} "
                    f"{memory / took - 1:+5.0%}  {seconds:7.1f} {taken:6.1f} "
                    f"{seconds / taken - 1:+5.0%}  {found['updates']:13.1f} {found['clock']:12.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
