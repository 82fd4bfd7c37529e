"""What `layerlab adapt --plan` foretells beside what the stages then take: memory and seconds.

python bench/adaptation_plan.py [WIDTH LAYERS] [CASE]...   # 768 12: a random Llama of 124 M

Each case tunes all weights or adapters for a few updates, in one process or two. Memory is that of
the first process at its peak. Seconds are of the processor, which other work does not lengthen, of
one process from its planned stages to its page: loading and saving are in it, and not in the plan.
"""

# ruff: noqa: E402

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.api.adapt import AdaptationPlan, estimate_adaptation, plan_adaptation, run_adaptation
from layerlab.tokenization.load import train_tokenizer

LINES = ("the court held that the contract was void", "a party may appeal within ten days") * 40
LORA: dict[str, Any] = {"sft.lora": {"r": 16}}
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


def recipe(folder: Path) -> dict[str, Any]:
    """Return a recipe that tunes for four updates of 4 x 128 tokens."""
    rows = [{"instruction": LINES[0] + f" {n}", "output": LINES[1] * 2} for n in range(60)]
    (folder / "rows.json").write_text(json.dumps(rows))
    return {
        "base": {"model": str(folder / "model")},
        "sft": {
            "sources": [{"name": "rows", "path": str(folder / "rows.json")}],
            "batch_size": 4,
            "micro_batch_size": 2,
            "block_size": 128,
            "tokens": 4 * 128 * 4,
            "eval_steps": 100,
            "save_steps": 100,
        },
    }


def run_case(name: str, folder: Path) -> None:
    """Plan a case and run it, in a process that has done nothing else; print both."""
    out = Path(tempfile.mkdtemp(dir=folder))
    plan = plan_adaptation(recipe(folder), out, CASES[name])
    told = estimate_adaptation(plan).rows[-1]
    print(json.dumps([told.memory, told.seconds, *_carry_out(folder, out, name)]))


def _carry_out(folder: Path, out: Path, name: str) -> tuple[int, float]:
    """Run a case in a process that has not planned it."""
    words = [sys.executable, __file__, "--run", name, str(folder), str(out)]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    (kept,) = out.glob("adaptation/stages/tune-*")
    done = StageStore(kept.parent).read(kept.name) or {}
    return done["result"]["peak_memory_bytes"], float(said.splitlines()[-1])


def count_seconds(plan: AdaptationPlan) -> float:
    """Carry out a plan; return the processor time of one of its processes."""
    begun = time.process_time()
    run_adaptation(plan, progress=False)
    if (count := plan.recipe.run.num_processes) == 1:
        return time.process_time() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / count


def main(arguments: list[str]) -> None:
    """Print a line for each case and shape."""
    if arguments[:1] == ["--case"]:
        run_case(arguments[1], Path(arguments[2]))
        return
    if arguments[:1] == ["--run"]:
        name, folder, out = arguments[1], Path(arguments[2]), Path(arguments[3])
        print(count_seconds(plan_adaptation(recipe(folder), out, CASES[name])))
        return
    numbers = [int(one) for one in arguments if one.isdigit()] or [768, 12]
    chosen = [one for one in arguments if not one.isdigit()] or list(CASES)
    print(f"{'shape':>10}  {'case':34} {'GB plan':>8} {'GB':>6} {'':>5}  {'s plan':>7} {'s':>6}")
    for width, layers in zip(numbers[::2], numbers[1::2], strict=True):
        with tempfile.TemporaryDirectory() as place:
            save_model(Path(place) / "model", width, layers)
            for name in chosen:
                words = [sys.executable, __file__, "--case", name, place]
                said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                memory, seconds, took, taken = json.loads(said.splitlines()[-1])
                print(
                    f"{width:>5} x {layers:<2}  {name:34} {memory / 1e9:8.2f} {took / 1e9:6.2f} "
                    f"{memory / took - 1:+5.0%}  {seconds:7.1f} {taken:6.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
