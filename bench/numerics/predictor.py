"""The statistical prediction beside the observed error, on random and on trained weights.

A section of `bench/rounding.py`. A ratio is observed over predicted, both root mean squares over
tokens of ||error|| / ||value||: above 1 the prediction is too low. The running bound is beside it.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from layerlab import builtin
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.prediction.predict import spreads

DATA = Path(os.environ.get("LAYERLAB_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
STORIES = DATA / "model-stories260K"
FORMATS = ("bf16", "fp16", "fp8_e4m3", "t16", "fp32")
FAMILIES = ("gpt2", "llama", "qwen3", "gemma2")
ORDINARY, TRAINED = 1.3, 2.0
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2 = {"vocab_size": 512, "n_embd": 128, "n_layer": 4, "n_head": 4, "bos_token_id": 0}

Line = Callable[..., None]


def predictor(line: Line) -> None:
    for title, worst, cases in (
        ("random ordinary weights", ORDINARY, _random()),
        ("trained models", TRAINED, _trained()),
    ):
        print(f"\nObserved error over predicted, after each block and in the logits, {title}")
        for name, model, ids in cases:
            for format in FORMATS:
                _compare(line, f"{name} {format}", (model, ids, format), worst)


def _compare(line: Line, name: str, case: tuple[Any, Tensor, str], worst: float) -> None:
    model, ids, format = case
    modules = _blocks(model)

    def call() -> Any:
        return model(ids)

    seen = [
        one.double() for one in outputs(Emulation(model, make_arithmetic(format)), call, modules)
    ]
    for kind in ("sampled", "variance"):
        start = time.process_time()
        values, found = spreads(model, call, make_arithmetic(format), modules, kind)
        taken = time.process_time() - start
        ratios = [
            _rms(one - value, value) / _rms(spread, value)
            # Some readings hold the stream in front of the blocks as well.
            for one, value, spread in zip(seen[-len(values) :], values, found, strict=True)
        ]
        line(
            f"{name}, {kind}",
            f"{min(ratios):.2f} to {max(ratios):.2f}, logits {ratios[-1]:.2f}; {taken:.1f} s",
            f"within {worst:g} x",
            all(1 / worst <= ratio <= worst for ratio in ratios),
        )
    _, bounds = spreads(model, call, make_arithmetic(format), modules, "bound")
    rows = list(zip(seen[-len(values) :], values, bounds, strict=True))
    held = all(bool(((one - value).abs() <= bound).all()) for one, value, bound in rows)
    over = _rms(bounds[0], values[0]) / _rms(rows[0][0] - values[0], values[0])
    speaks = f"{over:.1e}" if over < torch.inf else "infinite: it says nothing"
    line("  bound over observed, first block", speaks, "never below", held)


def _rms(error: Tensor, value: Tensor) -> float:
    return float((error.norm(dim=-1) / value.norm(dim=-1)).square().mean().sqrt())


def _blocks(model: Any) -> tuple[nn.Module, ...]:
    count = model.config.num_hidden_layers
    stacks = (one for one in model.modules() if isinstance(one, nn.ModuleList))
    return tuple(next(stack for stack in stacks if len(stack) == count))


def _random() -> Iterator[tuple[str, Any, Tensor]]:
    for family in FAMILIES:
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **(GPT2 if family == "gpt2" else SHAPE))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        yield family, model, torch.randint(0, 512, (2, 64))


def _trained() -> Iterator[tuple[str, Any, Tensor]]:
    text = builtin.SAMPLE.read_text("utf-8")
    named = {name: (builtin.path(name), text) for name in builtin.NAMES}
    if STORIES.exists():
        stories = (STORIES / "TinyStories-valid-excerpt.txt").read_text("utf-8")
        named["stories260K"] = (STORIES / "hf", stories)
    for name, (folder, words) in named.items():
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(words[:1200], return_tensors="pt").input_ids
        yield name, model.float(), ids[:, :128]
