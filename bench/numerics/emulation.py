"""Whole-model emulation: its cost over a plain forward pass, and its agreement with torch itself.

Sections of `bench/rounding.py`.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from layerlab import builtin
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import attribution
from layerlab.numerics.emulation.emulate import Emulation, reference
from layerlab.numerics.emulation.policies.apply import apply_precision
from layerlab.numerics.emulation.policies.policy import Policy

DATA = Path(os.environ.get("LAYERLAB_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
TOKENS = 128
DEAR, LONG = 3.0, 60.0
NEAR, FAR = 0.9, 1.1
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}
ROWS = 4
LONG_TOKENS = 1024
LONG_MODEL = {**SMALL, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8}
LONG_MODEL |= {"num_key_value_heads": 4, "max_position_embeddings": LONG_TOKENS}

Line = Callable[..., None]


def gpt2_124m() -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config()).eval()


def emulation(given: Any, line: Line, in_turns: Callable[..., dict[str, float]]) -> None:
    print(f"\nGPT-2's shape, 124 M random weights, {TOKENS} tokens, over its float32 pass")
    model = gpt2_124m()
    ids = torch.randint(0, model.config.vocab_size, (1, TOKENS))

    def exact() -> None:
        with reference(model):
            model(ids)

    contestants = {"float64 reference": exact}
    kinds = [("bf16", "as-run"), ("bf16", "flat"), ("fp16", "as-run"), ("fp8_e4m3", "as-run")]
    best = in_turns(passes(model, ids, kinds) | contestants, given.rounds, given.threads)
    for name, taken in best.items():
        share = taken / best["float32"]
        rounded = name not in ("float32", "float64 reference")
        line(
            name,
            f"{taken:.2f} s, {share:.2f} of float32",
            f"<= {DEAR}" if rounded else "",
            share <= DEAR if rounded else None,
        )
    start = time.perf_counter()
    found = attribution(model, lambda: model(ids), "bf16")
    taken = time.perf_counter() - start
    value = f"{taken:.0f} s, {found.runs} runs, closure {found.closure:.2f}"
    line("attribution, components and layers", value, f"<= {LONG:.0f} s", taken <= LONG)


def passes(
    model: nn.Module, ids: Tensor, kinds: list[tuple[str, str]]
) -> dict[str, Callable[[], None]]:
    """Return a plain pass, and one in each format and mode."""

    def plain() -> None:
        with torch.no_grad():
            model(ids)

    def emulated(format: str, mode: str) -> Callable[[], None]:
        run = Emulation(model, make_arithmetic(format, mode))

        def step() -> None:
            with run.running():
                model(ids)

        return step

    found = {"float32": plain}
    return found | {f"{format} {mode}": emulated(format, mode) for format, mode in kinds}


def long_emulation(given: Any, line: Line, in_turns: Callable[..., dict[str, float]]) -> None:
    """Time a text so long that attention, which is fused in the plain pass, counts."""
    print(f"\nA Llama of 6 layers, width 512, {LONG_TOKENS} tokens, over its fused float32 pass")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LONG_MODEL)).eval()
    ids = torch.randint(0, LONG_MODEL["vocab_size"], (1, LONG_TOKENS))
    kinds = [("bf16", "as-run"), ("bf16", "flat"), ("fp8_e4m3", "as-run"), ("mxfp4", "as-run")]
    best = in_turns(passes(model, ids, kinds), given.rounds, given.threads)
    for name, taken in best.items():
        line(name, f"{taken:.2f} s, {taken / best['float32']:.2f} of float32")


def agreement(line: Line) -> None:
    print("\nError of the emulated run over that of torch's own, against float64")
    for name, model, ids in subjects():
        with reference(model):
            true = model(ids).logits
        for format in ("bf16", "fp16"):
            errors = {}
            for mode in ("as-run", "flat"):
                run = Emulation(model, make_arithmetic(format, mode))
                with run.running():
                    errors[mode] = distance(model(ids).logits, true)
            low = apply_precision(copy.deepcopy(model), Policy(format=format))
            with torch.no_grad():
                real = distance(low(ids).logits, true)
            share, flat = errors["as-run"] / real, errors["flat"] / real
            line(
                f"{name}, {format}",
                f"torch {real:.2e}, as-run {share:.3f}, flat {flat:.3f}",
                f"{NEAR} to {FAR}",
                NEAR <= share <= FAR,
            )


def distance(value: Tensor, true: Tensor) -> float:
    return float((value.double() - true).norm() / true.norm())


def subjects(rows: int = ROWS) -> Iterator[tuple[str, nn.Module, Tensor]]:
    torch.manual_seed(0)
    shape = {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 4096, "n_positions": 256}
    ids = torch.randint(3, SMALL["vocab_size"], (rows, TOKENS))
    yield "random GPT-2", GPT2LMHeadModel(GPT2Config(**shape)).eval(), ids
    yield "random Llama", LlamaForCausalLM(LlamaConfig(**SMALL)).eval(), ids
    yield "random Qwen3", Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=64)).eval(), ids
    for name in builtin.NAMES:
        yield f"built-in {name}", *trained(builtin.path(name), builtin.SAMPLE, rows)
    stories = DATA / "model-stories260K/hf"
    if stories.is_dir():
        yield "trained stories260K", *trained(stories, builtin.SAMPLE, rows)


def trained(folder: Path, text: Any, rows: int) -> tuple[nn.Module, Tensor]:
    """Load a trained model and real text for it, cut into rows."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    words = Path(text).read_text(encoding="utf-8") if isinstance(text, Path) else text
    ids = AutoTokenizer.from_pretrained(folder)(words, return_tensors="pt").input_ids[0]
    rows = min(rows, len(ids) // TOKENS)
    return model, ids[: rows * TOKENS].view(rows, TOKENS)
