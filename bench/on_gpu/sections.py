"""The sections of `bench/gpu.py`: what is run, and what it stands beside."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import layerlab
from bench.on_gpu.device import Bench
from layerlab import builtin
from layerlab.adaptation.sft.conversations import Conversation, Turn
from layerlab.adaptation.sft.train import tune
from layerlab.measures.measure import Measure
from layerlab.measures.quantities.spectrum import spectrum
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.formats.choose_kernel import gpu_kernel
from layerlab.numerics.formats.round import rounder
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import DENSE_TOKENS
from layerlab.plugins import resolve
from layerlab.recipes.adaptation_sections import LoraSection, SftSection
from layerlab.system.logs import listen, quiet_libraries

ROOT = Path(__file__).resolve().parents[2]
ONE_B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
EIGHT_B = {
    **ONE_B,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
SCALAR, BLOCK, DRAWN = 0.85, 0.6, 0.7
GROWTH = 2.2  # of memory at twice the tokens; linear is 2
ATTENTION = ("spectrum", "attention")
# Tokens, width of a head, and precision of its queries and keys. 2,048 tokens are stored by choice.
KERNELS = (
    *((tokens, 64, torch.bfloat16) for tokens in (2048, 8192)),
    *((8192, width, dtype) for width, dtype in ((128, torch.bfloat16), (64, torch.float32))),
)
FEW_KERNELS = ((40, 64, torch.float32), (80, 64, torch.float16))
TASK = """
task: four_choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Number {{{{number}}}}. Answer:"
doc_to_choice: options
doc_to_target: right
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1}}
"""


def limits(bench: Bench) -> None:
    """Measure what the device can do at most."""
    count = 10**4 if bench.small else 10**8
    x = torch.randn(count, device=bench.device)
    out = torch.empty_like(x)
    taken = bench.seconds(lambda: out.copy_(x))
    bench.line("copy_ of float32", f"{8 * count / taken / 1e12:.3f} TB/s")
    size = 128 if bench.small else 8192
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        square = torch.randn(size, size, device=bench.device).to(dtype)
        taken = bench.seconds(lambda square=square: square @ square)
        name = str(dtype).removeprefix("torch.")
        bench.line(f"product in {name}", f"{2 * size**3 / taken / 1e12:.1f} TFLOP/s")


def rounding(bench: Bench) -> None:
    """Time every kind of format against a copy."""
    x = torch.randn(10**4 if bench.small else 10**8, device=bench.device)
    out = torch.empty_like(x)
    copy = bench.seconds(lambda: out.copy_(x))
    kinds = [(one, "nearest", SCALAR) for one in ("bf16", "fp16", "fp8_e4m3", "fp4_e2m1")]
    kinds += [(one, "nearest", BLOCK) for one in ("mxfp4", "mxfp8_e4m3", "nvfp4", "int8")]
    kinds += [(one, "stochastic", DRAWN) for one in ("bf16", "fp8_e4m3")]
    kinds += [("mxfp4", "stochastic", BLOCK)]
    for format, mode, target in kinds:
        step = rounder(format, mode)
        share = copy / bench.seconds(lambda step=step: step(x, out))
        bench.line(
            f"{format}, {mode}",
            f"{share:.3f} of copy_",
            limit=f"copy_ {x.numel() / copy / 1e9:.1f} Gelem/s",
            target=f">= {target}",
            share=target / share,
        )


def inspect(bench: Bench) -> None:
    """Read the default measures of a model of 1 B."""
    model, ids = bench.model(ONE_B), bench.ids(2, 2048)
    with bench.watching_memory() as peak:
        taken, each = time_inspection(bench, model, ids, resolve())
        bench.at_most("1 B, 2 x 2048 tokens, default measures", taken, 8, f"{peak():.1f} GiB")
    for name, seconds in sorted(each.items(), key=lambda one: -one[1]):
        bench.line(f"1 B: {name}", f"{seconds:.2f} s")


def time_inspection(
    bench: Bench, model: nn.Module, ids: Tensor, measures: list[Measure], **options: Any
) -> tuple[float, dict[str, float]]:
    """Return the seconds of an inspection, and those of each measure."""
    each: dict[str, float] = {}

    def timed(measure: Measure) -> Measure:
        def read(*given: Any) -> list[Any]:
            bench.wait()
            start = time.perf_counter()
            rows = list(measure.read(*given))
            bench.wait()
            each[measure.name] = each.get(measure.name, 0.0) + time.perf_counter() - start
            return rows

        return replace(measure, read=read)

    bench.wait()
    start = time.perf_counter()
    layerlab.inspect(
        model, input_ids=ids, measures=list(map(timed, measures)), progress=False, **options
    )
    bench.wait()
    return time.perf_counter() - start, each


def commands(bench: Bench) -> None:
    """Inspect the three built-in models from the command line."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        _command(bench, "inspect", "pre-norm", "post-norm", "llama", "--out", folder)
        bench.at_most("layerlab inspect pre-norm post-norm llama", time.perf_counter() - start, 12)


def _command(bench: Bench, *words: str) -> None:
    command = [sys.executable, "-m", "layerlab", *words, "--device", bench.device.type]
    _process(command)


def _process(command: list[str]) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeError(f"{' '.join(command[1:4])} ended with {done.returncode}: {last[-1]}")


def emulation(bench: Bench) -> None:
    """Time an emulated forward pass against that in float32."""
    model, ids = bench.model(ONE_B, torch.float32), bench.ids(2, 2048).to(bench.device)

    def plain() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    base = bench.seconds(plain, 3)
    for format, mode, target in (
        ("bf16", "as-run", 1.5),
        ("bf16", "flat", 2.0),
        ("fp8_e4m3", "as-run", 1.8),
        ("mxfp4", "as-run", None),
    ):
        run = Emulation(model, make_arithmetic(format, mode))
        with run.running():
            ratio = bench.seconds(plain, 3) / base
        bench.line(
            f"1 B, {format} {mode}",
            f"{ratio:.2f} x float32",
            limit=f"float32 {base:.3f} s",
            target="" if target is None else f"<= {target}",
            share=None if target is None else ratio / target,
        )


def long(bench: Bench) -> None:
    """Read the attention of one sequence of 16,384 tokens, and of 32,768."""
    model, measures = bench.model(ONE_B), resolve(ATTENTION)
    grown: list[float] = []
    for tokens, most in ((16384, None), (32768, 60)):
        name = f"1 B, {tokens:,} tokens, attention"
        with bench.watching_memory() as peak, _watching_kernels() as computed:
            before = peak()
            taken, _ = time_inspection(bench, model, bench.ids(1, tokens), measures)
            limit = f"{peak():.1f} GiB, by {computed()}"
        if most is None:
            bench.line(name, f"{taken:.2f} s", limit=limit)
        else:
            bench.at_most(name, taken, most, limit)
        grown.append(peak() - before)
        bench.free()
    if all(grown):
        growth = grown[1] / grown[0]
        bench.line(
            "1 B, memory of attention, twice the tokens",
            f"{growth:.2f} x",
            limit="2 is linear, 4 is square",
            target=f"<= {GROWTH}",
            share=growth / GROWTH,
        )


@contextmanager
def _watching_kernels() -> Iterator[Callable[[], str]]:
    """Give a function that says whether kernels or torch computed attention, and why torch."""
    reason, calls = gpu_kernel().reason, list[bool]()
    if reason is not None:
        yield lambda: f"torch: {reason}"
        return
    # Late: triton is there only beside a GPU.
    from layerlab.measures.support.flash_products import FlashProducts

    plain = FlashProducts.gram

    def counted(self: FlashProducts, *given: Any) -> Any:
        calls.append(True)
        return plain(self, *given)

    with listen("layerlab") as remarks, patch.object(FlashProducts, "gram", counted):
        yield lambda: ": ".join(["kernels" if calls else "torch", *remarks[:1]])


def kernels(bench: Bench) -> None:
    """Time the spectrum of 32 heads by kernels, beside stored matrices and tiles in torch."""
    draw = torch.Generator().manual_seed(2)
    for tokens, width, dtype in FEW_KERNELS if bench.small else KERNELS:
        query, key = (torch.randn(32, tokens, width, generator=draw).to(dtype) for _ in range(2))
        given = {"query": query.to(bench.device), "key": key.to(bench.device), "causal": True}
        attended = AttentionRecord(layer=0, name="random", scaling=width**-0.5, **given)
        with _watching_kernels() as computed:
            by_kernels = bench.seconds(partial(spectrum, attended, dense=0), 2)
            limit = f"by {computed()}"
        with patch.dict(os.environ, LAYERLAB_KERNEL="0"):
            others = {
                name: bench.seconds(partial(spectrum, attended, dense=dense), 2)
                for name, dense in (("stored", tokens), ("tiles", 0))
            }
        beside = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in others.items())
        share = by_kernels / min(others.values())
        bench.line(
            f"spectrum of 32 heads, {tokens:,} tokens, width {width}, {str(dtype)[6:]}",
            f"{by_kernels:.3f} s",
            limit=f"{beside}; {limit}",
            target="<= both" if tokens > DENSE_TOKENS else "",
            share=share if tokens > DENSE_TOKENS else None,
        )


def large(bench: Bench) -> None:
    """Read the default measures of a model of 8 B."""
    _read_large(bench, "default measures", 90, 40)


def formats(bench: Bench) -> None:
    """Read the default measures of a model of 8 B, and its errors in bf16."""
    _read_large(bench, "--formats bf16", 300, 60, formats=["bf16"])


def _read_large(bench: Bench, name: str, seconds: float, most: float, **options: Any) -> None:
    model, ids = bench.model(EIGHT_B), bench.ids(4, 2048)
    with bench.watching_memory() as peak:
        taken, _ = time_inspection(bench, model, ids, resolve(), **options)
        bench.at_most(f"8 B, 4 x 2048 tokens, {name}", taken, seconds)
        bench.line(
            f"8 B, memory, {name}", f"{peak():.1f} GiB", target=f"<= {most}", share=peak() / most
        )


def monitor(bench: Bench) -> None:
    """Train compiled layers in bf16 with and without a monitor, whole updates."""
    every, steps = 50, 2 if bench.small else 5
    model: Any = bench.model({**ONE_B, "num_hidden_layers": 4}).train()
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = bench.ids(4, 1024).to(bench.device)

    def update(watching: layerlab.Monitor | None = None) -> None:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        if watching is not None:
            watching.step(loss)
        optimizer.step()
        optimizer.zero_grad()

    plain = bench.seconds(update, steps)
    watching = layerlab.Monitor(model, every=1, on_alarm=None)
    read = bench.seconds(lambda: update(watching), steps)
    watching.close()
    # It waits for the loss of every update; its first one is read, while this warms up.
    waiting = layerlab.Monitor(model, every=10**9, on_alarm=None)
    between = bench.seconds(lambda: update(waiting), steps)
    share = (read + (every - 1) * between - every * plain) / every / plain
    bench.line(
        f"a reading every {every} updates",
        f"{100 * share:.2f} % of an update",
        limit=f"update {1e3 * plain:.1f} ms, read {1e3 * read:.1f}, between {1e3 * between:.1f}",
        target="<= 1 %",
        share=share / 0.01,
    )


def use(bench: Bench) -> None:
    """Evaluate, tune with LoRA, train and resume as users do."""
    for name, step in (
        ("layerlab evaluate, a four-choice set", _evaluated),
        ("LoRA updates of llama", _tuned),
        ("a run that is killed and resumed", _resumed),
    ):
        start = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as folder:
                step(bench, Path(folder))
        except Exception as error:  # the next one goes on
            first = (str(error).splitlines() or [""])[0]
            bench.line(name, f"failed: {type(error).__name__}: {first}", failed=True)
        else:
            bench.line(name, f"{time.perf_counter() - start:.0f} s")


def _evaluated(bench: Bench, folder: Path) -> None:
    (folder / "rows.jsonl").write_text(
        "".join(
            json.dumps({"number": n, "options": list("ABCD"), "right": n % 4}) + "\n"
            for n in range(8)
        )
    )
    task = folder / "choice.yaml"
    task.write_text(TASK.format(data=folder / "rows.jsonl"))
    _command(bench, "evaluate", "llama", "--tasks", str(task), "--out", str(folder / "out"))


def _tuned(bench: Bench, folder: Path) -> None:
    home = builtin.path("llama")
    words = AutoTokenizer.from_pretrained(home)
    with quiet_libraries():
        model = AutoModelForCausalLM.from_pretrained(home).to(bench.device)
    turns = [Conversation((Turn("user", f"say {n}"), Turn("assistant", "yes"))) for n in range(16)]
    section = SftSection(lora=LoraSection(), batch_size=4, micro_batch_size=4, block_size=96)
    tune(
        model,
        words,
        {"own": turns},
        out=folder / "run",
        section=section,
        use_cpu=bench.device.type == "cpu",
    )


def _resumed(bench: Bench, folder: Path) -> None:
    script = str(ROOT / "bench/resume.py")
    _process([sys.executable, script, "--kills", "1", "--device", bench.device.type])
