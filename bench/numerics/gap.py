"""What `layerlab gap` names and takes.

Type python bench/numerics/gap.py [--part planted|closure|time].

planted   changes of one thing, and twenty of two, on a trained built-in model: which are named
          first, and which among the first three, of what the profiles set differently (which of
          one change is hard to miss) and of all operations (whose roundings any change turns over).
closure   sums of shares on trained and random models, beside the sum of squared differences when
          one operation at a time is exchanged and everything behind it rounds anew.
time      the 124 M shape at 512 tokens: seconds, processor seconds, forward passes, memory.
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import random
import resource
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
import transformers
from torch import Tensor, nn

from layerlab.api.gap import run_model
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import load_model
from layerlab.numerics.profiles.gap import find_gap
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.profile import NumericsProfile, differences, load_profile
from layerlab.numerics.profiles.token_scores import TokenScores

STORIES = ROOT.parent / "shared" / "data" / "model-stories260K" / "hf"
# One change each of what eager bf16 does: casts that are left out, formats, fusions.
SINGLE = {
    **dict.fromkeys(
        """norm_cast norm residual projection head rotary rotary_tables gate activation context
        softmax""".split(),
        "fp32",
    ),
    **dict.fromkeys(("norm_inside", "log_softmax"), "bf16"),
    **dict.fromkeys(("weights", "factors", "cache", "queries", "norm_weights"), "fp8_e4m3"),
    **dict.fromkeys(("attention_weights", "embedding_weights"), "fp8_e5m2"),
    "norm_input": "fp32",
}
# One order of sums each, and accumulators, as engines have them.
SUMS = {
    "split": ("projection", "bf16 split-k 4"),
    "half": ("projection", "fp16 sequential 16"),
    "promoted": ("projection", "t14 sequential 32, fp32 sequential 128"),
    "reordered": ("projection", "fp32 split-k 4"),
    "half scores": ("scores", "fp16 sequential 16"),
    "split context": ("context", "bf16 split-k 4"),
    "split head": ("head", "bf16 split-k 4"),
    "paired norm": ("norm_inside", "fp32 tree 1"),
    "half softmax": ("softmax", "fp16 sequential 16"),
}
PAIRS = 20
EAGER = load_profile("torch-eager")
SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def changed(*names: str) -> NumericsProfile:
    """Return eager bf16 with some things changed."""
    operations = {name: SINGLE[name] for name in names if name in SINGLE}
    sums = dict(SUMS[name] for name in names if name in SUMS)
    return NumericsProfile(name="+".join(names), operations=operations, sums=sums)


def built_in(name: str, tokens: int) -> tuple[nn.Module, list[Tensor]]:
    """Return a trained model and its text."""
    found = load_model(name)
    text = passage(layerlab_text(), context=tokens)
    return found.model, sequences(text, found)[:1]


def layerlab_text() -> str:
    """Return the text that is built in."""
    from layerlab.loading.text_input import sample

    return " ".join(sample().texts)


def plant(tokens: int) -> None:
    """Count how often what was changed is named first."""
    model, pieces = built_in("llama", tokens)
    first = ahead = 0
    for name in (*SINGLE, *SUMS):
        found = find_gap(model, pieces, EAGER, changed(name), call=run_model)
        named = found.causes[0].name if found.causes else "nothing"
        place = [one.name for one in found.operations].index(named) + 1 if found.causes else 0
        operation = SUMS[name][0] if name in SUMS else name
        first += named == operation and found.first is not None and found.first.rms == 0
        ahead += place == 1
        print(f"{name:<20} named {named:<20} rms {found.difference.rms:.2e} of all {place}")
    print(f"named first: {first} of {len(SINGLE) + len(SUMS)}, of all operations {ahead}")
    known = {**{name: name for name in SINGLE}, **{name: one for name, (one, _) in SUMS.items()}}
    pairs = [pair for pair in combinations(known, 2) if known[pair[0]] != known[pair[1]]]
    drawn = random.Random(0).sample(pairs, PAIRS)
    both = ahead = 0
    for pair in drawn:
        found = find_gap(model, pieces, EAGER, changed(*pair), call=run_model)
        named = [one.name for one in found.causes[:3]]
        planted = {known[name] for name in pair}
        both += planted <= set(named)
        ahead += planted <= {one.name for one in found.operations[:3]}
        print(f"{' and '.join(pair):<40} named {', '.join(named)}")
    print(f"both among the first three: {both} of {PAIRS}, of all operations {ahead}")


def models(tokens: int) -> Iterator[tuple[str, nn.Module, list[Tensor]]]:
    """Yield trained and random models with their tokens."""
    for name in ("pre-norm", "post-norm", "llama"):
        yield name, *built_in(name, tokens)
    if STORIES.is_dir():
        yield "stories260K", *built_in(str(STORIES), tokens)
    gpt2 = {"vocab_size": 500, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512}
    random_ones = {
        "GPT-2": transformers.GPT2Config(**gpt2, bos_token_id=0, eos_token_id=0),
        "Llama": transformers.LlamaConfig(**SIZES),
        "Qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
        "Mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=8),
    }
    for name, config in random_ones.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        yield f"random {name}", model, [torch.randint(0, 500, (tokens,))]


def close(tokens: int) -> None:
    """Print the closure for each model and pair of profiles, and that of exchanges one by one."""
    for name, model, pieces in models(tokens):
        for b in ("torch-sdpa", "autocast-bf16", "torch-compile"):
            other = load_profile(b)
            found = find_gap(model, pieces, EAGER, other, call=run_model)
            lanes = [Lane(profile=EAGER), Lane(profile=other)]
            lanes += [
                Lane(profile=EAGER.take_back(one, other)) for one in differences(EAGER, other)
            ]
            mine, theirs, *parts = TokenScores(model, pieces, run_model).read(lanes)
            whole = float((theirs - mine).square().sum())
            alone = sum(float((part - mine).square().sum()) for part in parts) / whole
            print(
                f"{name:<16} torch-eager against {b:<14} RMS {found.difference.rms:.2e}"
                f" closure {found.closure:.3f}, one by one {alone:.2f},"
                f" {found.forwards:.0f} forward passes",
                flush=True,
            )


def clock(tokens: int, threads: int) -> None:
    """Time the question on the shape of 124 M parameters."""
    torch.set_num_threads(threads)
    config = transformers.GPT2Config()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    pieces = [torch.randint(0, config.vocab_size, (tokens,))]
    began = time.monotonic(), time.process_time()
    found = find_gap(model, pieces, EAGER, load_profile("torch-sdpa"), call=run_model)
    wall, cpu = time.monotonic() - began[0], time.process_time() - began[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{model.num_parameters() / 1e6:.0f} M, {tokens} tokens, {threads} threads: {wall:.1f} s,"
        f" {cpu:.1f} processor seconds, {found.forwards:.1f} forward passes,"
        f" closure {found.closure:.4f}, peak {peak:.2f} GiB"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--part", choices=("planted", "closure", "time"))
    asked.add_argument("--tokens", type=int, default=128)
    asked.add_argument("--threads", type=int, default=2)
    given = asked.parse_args()
    if given.part in (None, "planted"):
        plant(given.tokens)
    if given.part in (None, "closure"):
        close(given.tokens)
    if given.part == "time":
        clock(512, given.threads)


if __name__ == "__main__":
    main()
