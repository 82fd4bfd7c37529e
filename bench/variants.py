"""What variants cost, measured beside their peers: `python bench/variants.py`.

One thread, one process, all contestants in turns, each line with its ratio and its target. Times
are processor seconds, and a ratio is that of the best of all rounds: what disturbs a round can only
make it longer. x-transformers is timed where it is installed.

    --section NAME   train, cost, decode, bottleneck or carry; all of them if left out
    --mode MODE      eager, eager-bf16, compiled or compiled-bf16; all four if left out
    --variant NAME   in the section cost: this one; all of them if left out
    --width N        features of the models of train and cost (default 256)
    --rounds N       rounds of each comparison (default 7)
    --device NAME    cpu (default) or cuda
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import torch
from torch.nn import functional
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    logging,
)

from layerlab.model.build import build
from layerlab.model.cost.cost import account
from layerlab.system.model_cache import read_on
from layerlab.variants.registry import home, variants

SIZES = {"width": 256, "layers": 6, "heads": 4, "vocab": 8192, "context": 256}
BATCH, TOKENS = 8, 256
MODES = ("eager", "eager-bf16", "compiled", "compiled-bf16")
# The vocabularies and depths of the source, at a quarter of its width.
TWIN = {"width": 1024, "heads": 8, "context": 128, "inner": 2752}
SMALL, LARGE = 32000, 100883
CHOSEN: list[str] = []
CONSTANT = {"history", "hyper", "mhc", "laurel"}
STEPS = 16

Step = Callable[[], Any]


def line(name: str, value: str, target: str = "", met: bool | None = None) -> None:
    verdict = "" if met is None else ("met" if met else "MISSED")
    print(f"  {name:<34} {value:<44} {target:<22} {verdict}", flush=True)


def seconds(step: Step, device: str) -> float:
    """Return the processor seconds of one step; on a GPU, the wall seconds until it is done."""
    if device == "cpu":
        start = time.process_time()
        step()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turns(steps: Mapping[str, Step], rounds: int, device: str) -> dict[str, list[float]]:
    """Time each contestant once per round, after one warm-up; the order turns with the rounds."""
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken[name].append(seconds(steps[name], device))
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    return min(above) / min(below)


def trainer(model: Any, mode: str, device: str, loss_of: Callable[[Any, Any], Any]) -> Step:
    """Return the step of one update: forward, backward, fused AdamW."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, SIZES["vocab"], (BATCH, TOKENS), device=device)
    call = torch.compile(loss_of) if mode.startswith("compiled") else loss_of
    halved = mode.endswith("bf16")

    def step() -> None:
        context = torch.autocast(device, torch.bfloat16) if halved else nullcontext()
        with context:
            loss = call(model, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def own_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(ids, labels=ids, use_cache=False).loss
    return loss


def peer_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids)[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SIZES["vocab"],
            hidden_size=SIZES["width"],
            intermediate_size=build("llama", **SIZES, device="meta").config.shape().inner,
            num_hidden_layers=SIZES["layers"],
            num_attention_heads=SIZES["heads"],
            max_position_embeddings=SIZES["context"],
        )
    )


def gpt2() -> GPT2LMHeadModel:
    rates = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=SIZES["vocab"],
            n_embd=SIZES["width"],
            n_layer=SIZES["layers"],
            n_head=SIZES["heads"],
            n_positions=SIZES["context"],
            **rates,
        )
    )


def lucid(kind: str) -> Any:
    """Return the same shape from x-transformers, or None where that is not installed."""
    try:
        from x_transformers import Decoder, TransformerWrapper
    except ImportError:
        return None
    shared = {
        "dim": SIZES["width"],
        "depth": SIZES["layers"],
        "heads": SIZES["heads"],
        "attn_flash": True,
        "attn_dim_head": SIZES["width"] // SIZES["heads"],
    }
    more: dict[str, Any] = {"tie_embedding": True}
    if kind == "llama":
        names = ("rotary_pos_emb", "use_rmsnorm", "ff_glu", "ff_swish", "ff_no_bias")
        shared.update(dict.fromkeys(names, True), ff_mult=688 / 256)
        more = {"use_abs_pos_emb": False}
    sizes = {"num_tokens": SIZES["vocab"], "max_seq_len": SIZES["context"]}
    return TransformerWrapper(**sizes, attn_layers=Decoder(**shared), **more)


def train(modes: list[str], rounds: int, device: str) -> None:
    print("\nTraining, tokens per second against the peers (6 layers, d 256, batch 8 x 256)")
    for mode in modes:
        print(f" {mode}")
        for kind, theirs in (("llama", llama), ("gpt2", gpt2)):
            ours = build(kind, **SIZES)
            steps = {
                "ours": trainer(ours, mode, device, own_loss),
                "transformers": trainer(theirs(), mode, device, own_loss),
            }
            other = lucid(kind)
            if other is not None:
                steps["x-transformers"] = trainer(other, mode, device, peer_loss)
            taken = in_turns(steps, rounds, device)
            speed = BATCH * TOKENS / min(taken["ours"])
            found = ratio(taken["transformers"], taken["ours"])
            value = f"{found:.3f} x ({speed:.0f} tokens/s)"
            line(f"{kind} over transformers", value, ">= 0.97 x", found >= 0.97)
            if other is not None:
                wanted = 1.08 if mode.startswith("compiled") else 1.15
                found = ratio(taken["x-transformers"], taken["ours"])
                target = f">= {wanted} x"
                line(f"{kind} over x-transformers", f"{found:.3f} x", target, found >= wanted)
            torch._dynamo.reset()


def allowance(name: str, share: float) -> float:
    """Return how much more a step may take: a named target, else the FLOP share and 5 points."""
    residual = variants()[name].spec.block.residual.name
    if name in {"siaf-2", "pangu-pi-no-as"}:
        return 0.06
    if name in {"as-32", "pangu-pi-no-siaf"}:
        return 0.10
    if residual not in {"plain", "none"}:
        return max(0.05, share)
    return share + 0.05


def cost(modes: list[str], rounds: int, device: str) -> None:
    print("\nStep time over llama (gpt2 for its relatives), beside the share of FLOPs")
    for mode in modes:
        print(f" {mode}")
        for name, one in variants().items():
            if name == one.baseline or (CHOSEN and name not in CHOSEN):
                continue
            base, model = build(one.baseline, **SIZES), build(name, **SIZES)
            steps = {
                "base": trainer(base, mode, device, own_loss),
                "ours": trainer(model, mode, device, own_loss),
            }
            taken = in_turns(steps, rounds, device)
            share = work(model) / work(base) - 1
            more = ratio(taken["ours"], taken["base"]) - 1
            limit = allowance(name, share)
            value = f"{more:+.1%} time, {share:+.1%} FLOPs"
            line(name, value, f"<= {limit:+.1%}", more <= limit)
            if one.cost and more > limit:
                print(f"{'':37}card: {one.cost}")
            torch._dynamo.reset()


def work(model: Any) -> int:
    return account(model.config.parse_spec(), model.config.shape()).forward


def read_weights(name: str, layers: int, vocab: int, inner: int | None = None) -> int:
    """Count the weights that one token reads: blocks and head, not the embedding."""
    model = build(
        name, **{**TWIN, "inner": inner or TWIN["inner"]}, layers=layers, vocab=vocab, device="meta"
    )
    return model.num_parameters() - model.get_input_embeddings().weight.numel()


def decoder(name: str, layers: int, vocab: int, device: str, inner: int | None = None) -> Step:
    """Return a step that decodes single tokens after a prompt of eight, with batch 1."""
    model = build(name, **{**TWIN, "inner": inner or TWIN["inner"]}, layers=layers, vocab=vocab)
    model = model.to(device)
    prompt = torch.randint(0, vocab, (1, 8), device=device)

    @torch.inference_mode()
    def step() -> None:
        cache = DynamicCache(config=model.config)
        token = read_on(model, prompt, cache).logits[:, -1:].argmax(-1)
        for _ in range(STEPS):
            logits = read_on(model, token, cache).logits
            token = logits[:, -1:].argmax(-1)

    return step


def decode(modes: list[str], rounds: int, device: str) -> None:
    print("\nDecoding at batch 1, pangu-pi over llama, d 1024 (predicted: weights read per token)")
    cases = {
        "equal parameters, own vocabularies": (29, LARGE, 32, SMALL, None),
        "fewer layers, one vocabulary": (29, SMALL, 32, SMALL, None),
        "equal parameters, one vocabulary": (32, SMALL, 32, SMALL, fitted()),
        "equal layers (the modules alone)": (32, SMALL, 32, SMALL, None),
    }
    for case, (layers, vocab, base_layers, base_vocab, inner) in cases.items():
        taken = one_at_a_time(
            {
                "ours": lambda: decoder("pangu-pi", layers, vocab, device, inner),  # noqa: B023
                "base": lambda: decoder("llama", base_layers, base_vocab, device),  # noqa: B023
            },
            rounds,
            device,
        )
        found = ratio(taken["ours"], taken["base"])
        predicted = read_weights("pangu-pi", layers, vocab, inner) / read_weights(
            "llama", base_layers, base_vocab
        )
        each = min(taken["ours"]) / (STEPS + 1) * 1000
        value = f"{found:.3f} measured, {predicted:.3f} predicted ({each:.0f} ms)"
        if case.startswith("equal layers"):
            line(case, value, "<= 1.05", found <= 1.05)
        else:
            line(case, value, "within 0.05", abs(found - predicted) <= 0.05)


def one_at_a_time(
    made: Mapping[str, Callable[[], Step]], rounds: int, device: str
) -> dict[str, list[float]]:
    """Time as `in_turns`, with one contestant in memory: the weights' place moved times by 8 %."""
    taken: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, make in made.items():
            step = make()
            step()
            taken[name].append(min(seconds(step, device) for _ in range(2)))
            del step
    return taken


def fitted() -> int:
    """Return the feed-forward width at which pangu-pi has llama's parameters at 32 layers."""
    wanted = read_weights("llama", 32, SMALL)
    widths = range(TWIN["inner"] - 128, TWIN["inner"] + 1, 8)
    return min(widths, key=lambda inner: abs(read_weights("pangu-pi", 32, SMALL, inner) - wanted))


def bottleneck(modes: list[str], rounds: int, device: str) -> None:
    print("\nThe augmented shortcut alone, d 1024, 256 tokens: full, bottleneck, circulant")
    from layerlab.blocks.context import Flow
    from layerlab.blocks.layer import make_part
    from layerlab.blocks.shape import Site
    from layerlab.blocks.spec import Choice
    from layerlab.variants.registry import part

    shape = build("llama", **{**TWIN}, layers=1, vocab=64, device="meta").config.shape()
    site = Site(shape=shape, layer=0, role="attention")
    x = torch.randn(1, 256, shape.width, device=device)
    forms = {
        "full": Choice("augmented", form="full"),
        "bottleneck r=32": Choice("augmented", r=32),
        "circulant": Choice("augmented", form="circulant"),
    }
    steps: dict[str, Step] = {}
    for name, choice in forms.items():
        module = make_part(part, "shortcut", choice, shape.width, site).to(device)

        def step(module: Any = module) -> None:
            with torch.inference_mode():
                for _ in range(8):
                    module(x, x, Flow())

        steps[name] = step
    taken = in_turns(steps, 3 * rounds, device)
    found = ratio(taken["full"], taken["bottleneck r=32"])
    line("full / bottleneck", f"{found:.1f} x", "source: 16 x by FLOPs")
    found = ratio(taken["full"], taken["circulant"])
    line("full / circulant", f"{found:.1f} x", "source: by hardware")


def carry(modes: list[str], rounds: int, device: str) -> None:
    print("\nNumbers carried per token from layer to layer, at 6 and 24 layers (by account)")
    for name in variants():
        few, many = (
            account(one.config.parse_spec(), one.config.shape()).carry
            for one in (build(name, **{**SIZES, "layers": n}, device="meta") for n in (6, 24))
        )
        value = f"{few} and {many} ({few / SIZES['width']:.0f} widths)"
        if home(name).rsplit(".")[-1] in CONSTANT and few:
            line(name, value, "constant in depth", few == many)
        elif few:
            line(name, value)


SECTIONS = {
    "train": train,
    "cost": cost,
    "decode": decode,
    "bottleneck": bottleneck,
    "carry": carry,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--section", choices=SECTIONS, action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--width", type=int, default=SIZES["width"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    CHOSEN.extend(given.variant)
    SIZES.update(width=given.width, heads=max(1, given.width // 64))
    logging.set_verbosity_error()
    if given.device == "cpu":
        torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {given.device}, load {os.getloadavg()[0]:.1f}")
    for name in given.section or SECTIONS:
        SECTIONS[name](given.mode or list(MODES), given.rounds, given.device)


if __name__ == "__main__":
    main()
