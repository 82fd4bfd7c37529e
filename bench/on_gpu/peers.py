"""Sections of `bench/gpu.py` that stand beside others: users' own loops, real bf16, a full GPU."""

import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import layerlab
from bench.on_gpu.device import Bench
from bench.on_gpu.sections import ONE_B, time_inspection
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, reference
from layerlab.plugins import resolve
from layerlab.system.logs import quiet_libraries

HEADS = 4  # that a peer decomposes: the rest of its time is reckoned from these
WITHIN = 0.05  # of 1: the emulated error over the real one
AGREES = 1e-2  # relative: norms of a model on the device and of the same one beside it
ROOM = "1GiB"  # of the GPU's memory for the weights of a model of 2 GiB


def peers(bench: Bench) -> None:
    """Time what users write themselves beside what it is compared with: norms, and their memory."""
    model, ids = bench.model(ONE_B), bench.ids(1, 2048)
    heads = model.config.num_hidden_layers * model.config.num_attention_heads
    time_inspection(bench, model, ids, resolve(["spectrum"]))  # kernels are compiled
    with bench.watching_memory() as peak:
        taken, _ = time_inspection(bench, model, ids, resolve(["spectrum"]))
        own, memory = taken / heads, peak()
    bench.line("norm and contraction of a head, layerlab", f"{1e3 * own:.2f} ms")
    bench.line("its memory", f"{memory:.1f} GiB")
    model.set_attn_implementation("eager")
    with bench.watching_memory() as peak:
        start = time.perf_counter()
        with torch.no_grad():
            found = model(ids.to(bench.device), output_attentions=True, use_cache=False).attentions
        bench.wait()
        forward, memory = time.perf_counter() - start, peak()
    bench.line(
        "all matrices by transformers' output_attentions",
        f"{forward:.2f} s",
        limit=f"{memory:.1f} GiB",
    )
    matrices = found[0][0, :HEADS].float()
    del found
    for name, decompose in (
        ("torch.linalg.svdvals", torch.linalg.svdvals),
        ("torch.linalg.matrix_norm", lambda given: torch.linalg.matrix_norm(given, 2)),
    ):
        each = bench.seconds(lambda decompose=decompose: decompose(matrices), 1) / HEADS
        bench.line(
            f"norm of a head, {name}",
            f"{1e3 * each:.1f} ms",
            limit=f"{(each + forward / heads) / own:.1f} x layerlab, with the matrices' time",
        )


def errors(bench: Bench) -> None:
    """Hold the error of emulated arithmetic against that of the device's own."""
    shape = {**ONE_B, "num_hidden_layers": 4}
    model, ids = bench.model(shape, torch.float32), bench.ids(1, 512).to(bench.device)
    with reference(model):
        truth = _logits(model, ids)
    for format, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with Emulation(model, make_arithmetic(format)).running():
            emulated = _error(_logits(model, ids), truth)
        low = copy.deepcopy(model).to(dtype)
        real = _error(_logits(low, ids), truth)
        ratio = emulated / real
        bench.line(
            f"{format}: emulated over real error",
            f"{ratio:.3f}",
            limit=f"real {real:.2e}, of the logits' size",
            target=f"1 within {WITHIN}",
            share=abs(ratio - 1) / WITHIN,
        )


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(ids, use_cache=False).logits.double()
    return found


def _error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def offload(bench: Bench) -> None:
    """Read a model whose weights do not fit: some on the processor, the rest on the disk."""
    model, ids = bench.model(ONE_B), bench.ids(1, 2048)
    measures = resolve(["spectrum", "attention", "stream", "gain"])
    with bench.watching_memory() as peak:
        on_device, _ = time_inspection(bench, model, ids, measures)
        whole, norms = peak(), _norms(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        with quiet_libraries():
            model.save_pretrained(folder)
            del model
            bench.free()
            spread: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                offload_folder=Path(folder) / "scratch",
                dtype=torch.bfloat16,
                **_room(bench),
            ).eval()
        places = sorted({str(place) for place in spread.hf_device_map.values()})
        with bench.watching_memory() as peak:
            taken, _ = time_inspection(bench, spread, ids, measures)
            bench.line(
                f"1 B beside {ROOM} of memory",
                f"{taken:.2f} s",
                limit=f"{on_device:.2f} s on the device; weights on {', '.join(places)}",
            )
            bench.line("its memory", f"{peak():.1f} GiB", limit=f"{whole:.1f} GiB on the device")
        gap = float((_norms(spread, ids) / norms - 1).abs().max())
    bench.line(
        "its norms beside those on the device",
        f"{gap:.1e} relative",
        target=f"<= {AGREES}",
        share=gap / AGREES,
    )


def _room(bench: Bench) -> dict[str, Any]:
    """Return where the weights go: on a GPU as accelerate finds room, else by hand."""
    if bench.device.type == "cuda":
        return {"device_map": "auto", "max_memory": {0: ROOM, "cpu": "512MiB"}}
    parts = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", "model.layers.0")
    return {"device_map": {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}}


def _norms(model: nn.Module, ids: Tensor) -> Tensor:
    rows = layerlab.inspect(model, input_ids=ids, measures=["spectrum"], progress=False)
    return torch.tensor(rows.frame("spectrum")["norm"].to_numpy())
