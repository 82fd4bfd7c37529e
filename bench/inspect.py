"""The targets of `layerlab inspect`, measured beside their peers: `python bench/inspect.py`.

One thread, one process, layerlab and the peer in turns, each line with its ratio and its target.
The peer of the attention norms is the method of spectral25: eager attentions of a padded batch,
`torch.linalg.svdvals` of every head of every sample. Times are processor seconds, unless they say
wall. Model: the shape of GPT-2 small, random weights, query and key weights times 3, which makes
logits of standard deviation 2.8 ("peaky").

    --section NAME   norms-512, norms-1024, long, querykey, command, saliency; all if left out
"""

# ruff: noqa: E402
import sys

# This file shares its name with a module of the standard library, which others must still find.
del sys.path[0]

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import psutil
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    logging,
)

BATCH, LAYERS, HEADS = 8, 12, 12
# How many layers the peer is timed on; the rest is extrapolated, because all alike.
PEER_LAYERS = {512: 2, 1024: 1}
ROUNDS = 3


@dataclass
class Clock:
    """Processor and wall seconds since it started."""

    cpu: float = 0.0
    wall: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu += time.process_time() - cpu
            self.wall += time.perf_counter() - wall


def line(name: str, value: str, target: str, met: bool) -> None:
    print(f"{name:<58} {value:<40} target {target:<12} {'met' if met else 'MISSED'}", flush=True)


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    built = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()
    with torch.no_grad():
        for block in built.transformer.h:
            block.attn.c_attn.weight[:, : 2 * 768] *= 3
    return built


def texts(tokens: int) -> torch.Tensor:
    return torch.randint(0, 50257, (BATCH, tokens), generator=torch.Generator().manual_seed(1))


def peer_forward(built: GPT2LMHeadModel, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    built.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = built.transformer(ids, output_attentions=True, use_cache=False).attentions
    built.set_attn_implementation("sdpa")
    return attentions


def peer_norms(attentions: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [
        torch.stack(
            [torch.linalg.svdvals(head.float()).max() for sample in layer for head in sample]
        )
        for layer in attentions
    ]


def our_norms(built: GPT2LMHeadModel, ids: torch.Tensor) -> tuple[Clock, torch.Tensor]:
    """Time the whole frame `spectrum`, contraction and enclosure included, as users get it."""
    import layerlab
    from layerlab.measures.quantities.spectrum import MEASURES

    clock = Clock()

    def timed(layer, run):
        with clock.running():
            return list(MEASURES[0].read(layer, run))

    measure = replace(MEASURES[0], read=timed)
    bare = built.transformer  # as the peer: the source loads an AutoModel, which has no head
    report = layerlab.inspect(bare, input_ids=ids, measures=[measure], progress=False)
    frame = report.frame("spectrum").sort_values(["layer", "sequence", "head"])
    return clock, torch.tensor(frame["norm"].to_numpy()).view(LAYERS, -1)


def norms(tokens: int) -> None:
    print(f"\nAttention norms, GPT-2 small with random weights, batch {BATCH}, {tokens} tokens")
    built, ids, timed = model(), texts(tokens), PEER_LAYERS[tokens]
    forward, analysis, whole = Clock(), Clock(), Clock()
    with forward.running():
        attentions = peer_forward(built, ids)
    few = [layer.clone() for layer in attentions[:timed]]
    del attentions
    expected = []
    for part in few:
        with analysis.running():
            expected += peer_norms([part])
    with whole.running():
        ours, found = our_norms(built, ids)
    peer = analysis.cpu * LAYERS / timed
    print(f"  peer: forward {forward.cpu:.1f} s, svdvals {peer:.1f} s (extrapolated: {timed} of")
    print(f"  {LAYERS} layers took {analysis.cpu:.1f} s); layerlab: {whole.cpu:.1f} s, of which")
    print(f"  spectrum {ours.cpu:.1f} s, with enclosure and contraction; the rest is the forward,")
    print("  the hash of the weights, a picture for the first finding, and the report")
    wanted = {512: 6, 1024: 12}[tokens]
    ratio = peer / ours.cpu
    line("  analysis", f"{ratio:.1f} x", f">= {wanted} x", ratio >= wanted)
    ratio = (peer + forward.cpu) / whole.cpu
    if tokens == 1024:
        line("  end to end", f"{ratio:.1f} x", ">= 6 x", ratio >= 6)
    else:
        print(f"  end to end {ratio:.1f} x")
    error = max(
        float(((ours_ - peer_) / peer_).abs().max())
        for ours_, peer_ in zip(found, expected, strict=False)
    )
    print(f"  largest difference from the peer's float32 norms: {error:.1e} relative")
    growth = {name: child(f"{name}-{tokens}") for name in ("layerlab", "peer")}
    value = f"{growth['layerlab']:.2f} GB (peer {growth['peer']:.2f} GB)"
    line("  peak memory growth", value, "<= 0.6 GB", growth["layerlab"] <= 0.6)


def child(task: str) -> float:
    """Return a number that a fresh process prints: peak memory never falls within a process."""
    result = subprocess.run(
        [sys.executable, __file__, "--child", task], capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def grown(work: Callable[[], object]) -> float:
    """Return how many GB the work raised the process's peak above what it held before."""
    before = psutil.Process().memory_info().rss
    peak(reset=True)
    work()
    return (peak() - before) / 1e9


def peak(reset: bool = False) -> int:
    """Return the largest resident size in bytes since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def memory(task: str) -> None:
    name, tokens = task.rsplit("-", 1)
    if name == "long":
        from layerlab.measures.quantities.spectrum import spectrum

        warm = head("peaky", 300)
        spectrum(warm, dense=0)
        record = head("peaky", int(tokens))
        print(grown(lambda: spectrum(record)))
        return
    built, ids = model(), texts(int(tokens))
    if name in ("saliency", "kept"):
        asked(built, ids[0, :8], True)
        print(grown(lambda: asked(built, ids[0], name == "saliency")))
    elif name == "peer":
        print(grown(lambda: peer_norms([peer_forward(built, ids)[0][:1, :1]])))
    else:
        import layerlab

        layerlab.inspect(built, input_ids=ids[:, :8], measures=["spectrum"], progress=False)
        print(grown(lambda: our_norms(built, ids)))


def head(kind: str, tokens: int):
    """Return one head of width 64 in one of four regimes."""
    from tests.measures.regime import record

    return record(kind, tokens, heads=1, width=64)


def quickest(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of the best of some rounds, and the result of the work."""
    times = []
    for _ in range(ROUNDS):
        clock = Clock()
        with clock.running():
            result = work()
        times.append(clock.cpu)
    return min(times), result


def enclosed(record: Any) -> Any:
    """Return the norm of one head with its enclosure, and nothing else."""
    from layerlab.measures.support.attention_products import products
    from layerlab.measures.support.lanczos import Perron, settle
    from layerlab.observe.tracing.attention.tiles import triangular

    matrix = products(triangular(record))
    known = matrix.profile()
    perron = Perron(known, record.sums_to_one)
    settle(matrix, known, (perron,))
    return perron


def long() -> None:
    from layerlab.measures.quantities.spectrum import spectrum
    from tests.measures.regime import KINDS, attention, svd_norm

    print("\nOne head")
    with torch.inference_mode():
        for kind in KINDS:
            record = head(kind, 8192)
            best, found = quickest(lambda record=record: enclosed(record))
            gap = float(found.upper / found.lower - 1)
            line(f"  {kind}, 8192 tokens, norm", f"{best:.2f} s", "<= 1.5 s", best <= 1.5)
            whole, _ = quickest(lambda record=record: spectrum(record))
            print(f"    the whole row, contraction too: {whole:.2f} s")
            line(f"  {kind}, 8192 tokens, enclosure gap", f"{gap:.1e}", "<= 1e-3", gap <= 1e-3)
        extra = child("long-8192") * 1000
        line("  extra memory at 8192 tokens", f"{extra:.0f} MB", "<= 50 MB", extra <= 50)
        for tokens in (128, 512, 1024, 2048):
            errors, gaps = [], []
            for kind in KINDS:
                record = head(kind, tokens)
                found, exact = spectrum(record), svd_norm(attention(record))
                errors.append(float(((found.norm - exact) / exact).abs().max()))
                gaps.append(float((found.upper / found.lower - 1).max()))
            value = f"{max(errors):.1e}, gap {max(gaps):.1e}"
            line(f"  error against float64 SVD, {tokens}", value, "<= 1e-6", max(errors) <= 1e-6)


def querykey() -> None:
    from layerlab.measures.quantities.weights.querykey import factored_spectrum

    print("\nNorm and condition of W_k^T W_q, one layer of 12 heads, d = 768")
    draw = torch.Generator().manual_seed(0)
    query, key = (0.02 * torch.randn(HEADS, 64, 768, generator=draw) for _ in range(2))
    factored_spectrum(query, key)
    ours, peer = Clock(), Clock()
    for _ in range(ROUNDS):
        with ours.running():
            values = factored_spectrum(query, key)
        with peer.running():
            dense = torch.linalg.svdvals(key.mT @ query)
    error = float(((values - dense[:, :64]) / dense[:, :64]).abs().max())
    ratio = peer.cpu / ours.cpu
    value = f"{ratio:.0f} x ({1e3 * ours.cpu / ROUNDS / HEADS:.2f} ms a head)"
    line("  QR factors beside the dense SVD", value, ">= 30 x", ratio >= 30)
    print(f"  largest relative difference of a singular value: {error:.1e}")


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes: 512 tokens are 512 characters of the built-in sample."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=1024)


def command() -> None:
    print("\nThe command, two threads, wall seconds")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model().save_pretrained(place / "model")
        tokenizer().save_pretrained(place / "model")
        texts_of_512 = ["--samples", "4", "--context", "512"]
        for name, arguments, target in (
            ("124M, 4 texts of 512", ["inspect", str(place / "model"), *texts_of_512], 90),
            ("built-in default", ["inspect"], 30),
            ("--help", ["--help"], 0.5),
        ):
            out = [] if name == "--help" else ["--out", str(place / name.replace(" ", "-"))]
            seconds = min(called([*arguments, *out]) for _ in range(3 if name == "--help" else 1))
            line(f"  layerlab {name}", f"{seconds:.2f} s", f"<= {target} s", seconds <= target)


def saliency() -> None:
    """Time the whole inspection with a saliency of 512 tokens, and the saliency alone."""
    from layerlab import builtin, load_report

    print("\nSaliency, GPT-2 small with random weights, two threads, wall seconds")
    text = builtin.SAMPLE.read_text("utf-8").replace("\n", " ").strip()[:512]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model().save_pretrained(place / "model")
        tokenizer().save_pretrained(place / "model")
        read = ["--samples", "1", "--context", "512", "--saliency", text]
        runs = {"inspect, 512 tokens, with saliency": [], "alone": ["--measures", "saliency"]}
        for name, more in runs.items():
            out = place / name.replace(" ", "-")
            arguments = ["inspect", str(place / "model"), *read, *more, "--out", str(out)]
            before = spent()
            seconds = called(arguments)
            value = f"{seconds:.1f} s (processor {spent() - before:.1f} s)"
            line(f"  {name}", value, "<= 60 s", seconds <= 60)
        picture = load_report(out).to_dict()["pictures"]["saliency"]["model"]
        assert picture["length"] == 512
        size = sum(map(len, picture["maps"])) / 1e6
        line("  its picture, 13 layers", f"{size:.2f} MB", "<= 1 MB", size <= 1)
    for tokens in (512, 1024):
        ours, kept = (child(f"{name}-{tokens}") for name in ("saliency", "kept"))
        print(f"  peak memory growth, {tokens} tokens: {ours:.2f} GB; all kept: {kept:.2f} GB")


def spent() -> float:
    """Return the processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def asked(built: GPT2LMHeadModel, tokens: torch.Tensor, again: bool) -> None:
    from layerlab.loading.model import load_model
    from layerlab.measures.quantities import saliency as measure
    from layerlab.measures.support.saliency.prompt import Prompt
    from layerlab.observe.tracing.trace import observing

    with observing(built):
        prompt = Prompt(tokens=tokens, position=len(tokens) - 1)
        measure.saliency(load_model(built), prompt, again=again)


def called(arguments: list[str]) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "layerlab", *arguments],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    if result.returncode:
        print(result.stderr[-2000:])
        return float("inf")
    return time.perf_counter() - start


SECTIONS: dict[str, Callable[[], None]] = {
    "norms-512": lambda: norms(512),
    "norms-1024": lambda: norms(1024),
    "long": long,
    "querykey": querykey,
    "command": command,
    "saliency": saliency,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--section", choices=SECTIONS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    if asked.child:
        memory(asked.child)
        return
    print(
        f"torch {torch.__version__}, 1 thread, {os.cpu_count()} processors, load", os.getloadavg()
    )
    for name, section in SECTIONS.items():
        if asked.section in (None, name):
            section()


if __name__ == "__main__":
    main()
