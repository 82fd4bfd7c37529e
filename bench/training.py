"""The training loop beside a bare one and beside transformers' Trainer: `python bench/training.py`.

One thread, one process, one model, one text, all contestants in turns; times are processor seconds
of an update, and a ratio is that of the best of all rounds: what disturbs a round can only make it
longer. The optimizer, the clipping, the schedule and the batches are the same everywhere.

    --section NAME   loop, precision, data or large; all but the last if left out
    --rounds N       rounds of each comparison (default 6)
    --updates N      updates per round, after two that do not count (default 6)
    --turns N        rounds of precision, where each way has a new process in each (default 3)
    --way NAME       print the seconds of an update of one way of precision, and nothing else
    --small          a model of 1.4 million parameters instead of 6.8 million
    --device NAME    cpu (default) or cuda
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("JAXTYPING_DISABLE", "1")

import torch
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, logging

from layerlab.console.progress import NullProgress
from layerlab.corpus.batches import BatchOrder
from layerlab.corpus.corpus import Corpus, extent, prepare
from layerlab.experiments.plan.plan import plan
from layerlab.model.loss import causal_loss
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.training.lr_schedule import lr_at
from layerlab.training.optimizer import build_optimizer
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model
from layerlab.training.trainer import Trainer as Ours

LARGE = {"width": 256, "layers": 6, "heads": 4, "inner": 688, "context": 256}
SMALL = {"width": 128, "layers": 6, "heads": 4, "inner": 256, "context": 128}


class LargeShape(NamedTuple):
    """A model for a GPU, and what one H100 must reach: tokens/s, and how many times Trainer's."""

    model: dict[str, Any]
    batch: int
    tokens_per_second: int
    over_trainer: float | None


WIDE = {
    "124 M": LargeShape({"width": 768, "layers": 12, "heads": 12}, 32, 480_000, 1.10),
    "1 B": LargeShape({"width": 2048, "layers": 16, "heads": 32}, 16, 42_000, None),
}
UPDATES = 1_000_000  # of which a few are made: no evaluation and no checkpoint falls among them
FIRST = 2  # updates of a round that do not count

Round = Callable[[int], float]


def line(name: str, value: str, target: str = "", met: bool | None = None) -> None:
    verdict = "" if met is None else ("met" if met else "MISSED")
    print(f"  {name:<34} {value:<40} {target:<22} {verdict}", flush=True)


def recipe(small: bool, device: str, **train: Any) -> TrainingRecipe:
    model = {**(SMALL if small else LARGE), "variant": "llama", "options": {"head": "tied"}}
    batch = 16 if small else 8
    settings = {"max_steps": UPDATES, "batch_size": batch, "learning_rate": 1e-3, **train}
    return make_recipe(
        {
            "model": model,
            "data": {"sources": [{"text": "brown"}], "vocab_size": 2048 if small else 8192},
            "train": settings,
            "run": {"device": device},
        }
    )


def wide(name: str, small: bool, device: str) -> TrainingRecipe:
    """Return the recipe of a large shape, in bf16, compiled, on a text that comes with Python."""
    shape = WIDE[name]
    model = {**shape.model, "context": 1024, "vocab": 50304}
    tiny = {"width": 64, "layers": 2, "heads": 2, "context": 64, "vocab": 2048}
    return make_recipe(
        {
            "model": {**model, **(tiny if small else {}), "variant": "llama"},
            "data": {"sources": [{"text": "python-docs"}], "vocab_size": 2048},
            "train": {
                **{"max_steps": UPDATES, "batch_size": 2 if small else shape.batch},
                **{"learning_rate": 3e-4, "mixed_precision": "bf16", "torch_compile": True},
            },
            "run": {"device": device},
        }
    )


def clock(device: str) -> float:
    """Return processor seconds; on a GPU, wall seconds when it has done its work."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def prepared(found: TrainingRecipe) -> tuple[RunSpec, Corpus]:
    corpus = prepare(found.data)
    return plan(found, extent(corpus, found.model.context or 0))[0], corpus


def ours(found: TrainingRecipe, folder: Path) -> Round:
    """Return a round of Layerlab's loop."""
    run, _ = prepared(found)
    training = Ours(run, folder / run.name, NullProgress())
    device = found.run.device

    def one(updates: int) -> float:
        for _ in range(FIRST):
            training.advance()
        start = clock(device)
        for _ in range(updates):
            training.advance()
        return (clock(device) - start) / updates

    return one


def bare(found: TrainingRecipe, folder: Path) -> Round:
    """Return a round as anybody would write it: a batch, a loss, a gradient, a step."""
    run, corpus = prepared(found)
    device, train = found.run.device, run.recipe.train
    model = build_model(run, torch.device(device))
    optimizer = build_optimizer(model, train)
    block = run.recipe.data.block_size or 0
    order = BatchOrder(corpus, block, train.seed)
    update = 0

    def step() -> None:
        nonlocal update
        rows = order.batch(update, train.batch_size).to(device)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(update, UPDATES, train)
        optimizer.zero_grad()
        logits = model(input_ids=rows.inputs, use_cache=False).logits
        loss = causal_loss(logits, rows.targets, logits.shape[-1], shift_labels=rows.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
        optimizer.step()
        loss.item()
        update += 1

    def one(updates: int) -> float:
        for _ in range(FIRST):
            step()
        start = clock(device)
        for _ in range(updates):
            step()
        return (clock(device) - start) / updates

    return one


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """The same blocks, as the Trainer wants them."""

    def __init__(self, order: BatchOrder) -> None:
        self.order = order

    def __len__(self) -> int:
        return self.order.blocks[0]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.order.rows(index, 1)[0])
        return {"input_ids": row[:-1], "labels": row[:-1]}


class Watch(TrainerCallback):
    """Notes the time after each update."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.times: list[float] = []

    def on_step_end(self, *given: Any, **more: Any) -> None:
        self.times.append(clock(self.device))


def trainer(found: TrainingRecipe, folder: Path) -> Round:
    """Return a round of transformers' Trainer with the same optimizer, clipping and schedule."""
    run, corpus = prepared(found)
    device, train = found.run.device, run.recipe.train
    order = BatchOrder(corpus, run.recipe.data.block_size or 0, train.seed)

    def one(updates: int) -> float:
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=train.batch_size,
            max_steps=updates + FIRST,
            learning_rate=train.learning_rate,
            lr_scheduler_type="cosine",
            weight_decay=train.weight_decay,
            adam_beta2=train.adam_beta2,
            max_grad_norm=train.max_grad_norm,
            optim="adamw_torch_fused",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            bf16=train.mixed_precision == "bf16",
            torch_compile=train.torch_compile,
        )
        watch = Watch(device)
        model = build_model(run, torch.device(device))
        teacher = Trainer(
            model=model, args=arguments, train_dataset=Blocks(order), callbacks=[watch]
        )
        teacher.remove_callback(PrinterCallback)
        teacher.train()
        return (watch.times[-1] - watch.times[FIRST - 1]) / updates

    return one


def in_turns(rounds: Mapping[str, Round], number: int, updates: int) -> dict[str, float]:
    """Return the best time of each; the order turns with the rounds."""
    best = dict.fromkeys(rounds, float("inf"))
    names = list(rounds)
    for turn in range(number):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            best[name] = min(best[name], rounds[name](updates))
    return best


def told(best: Mapping[str, float], tokens: int) -> None:
    for name, seconds in best.items():
        line(name, f"{1e3 * seconds:8.1f} ms an update, {tokens / seconds:9,.0f} tokens/s")


def loop(given: argparse.Namespace, folder: Path) -> None:
    print("the loop, float32, eager")
    found = recipe(given.small, given.device)
    contestants = {"layerlab": ours, "bare PyTorch": bare, "transformers' Trainer": trainer}
    rounds = {name: make(found, folder) for name, make in contestants.items()}
    best = in_turns(rounds, given.rounds, given.updates)
    told(best, found.train.batch_size * (found.model.context or 0))
    for peer, wanted in (("bare PyTorch", 0.98), ("transformers' Trainer", 1.04)):
        ratio = best[peer] / best["layerlab"]
        line(f"tokens/s of {peer}", f"{ratio:8.3f} times", f"at least {wanted}", ratio >= wanted)


WAYS: dict[str, dict[str, Any]] = {
    "eager float32": {},
    "eager bf16": {"mixed_precision": "bf16"},
    "compiled float32": {"torch_compile": True},
    "compiled bf16": {"torch_compile": True, "mixed_precision": "bf16"},
}


def precision(given: argparse.Namespace, folder: Path) -> None:
    print("precision and compilation, layerlab's loop")
    # An accelerator has one precision in a process, so each turn of each way has its own process.
    best = in_turns({name: elsewhere(name, given) for name in WAYS}, given.turns, given.updates)
    found = recipe(given.small, given.device)
    told(best, found.train.batch_size * (found.model.context or 0))
    ratio = best["eager float32"] / best["compiled bf16"]
    line("compiled bf16 over eager float32", f"{ratio:8.3f} times", "at least 2.3", ratio >= 2.3)


def elsewhere(name: str, given: argparse.Namespace) -> Round:
    """Return a round in a new process each time; what was compiled once lies in a cache."""
    command = [sys.executable, str(Path(__file__).resolve()), "--way", name]
    command += ["--device", given.device, *(["--small"] if given.small else [])]

    def one(updates: int) -> float:
        said = subprocess.run(
            [*command, "--updates", str(updates)], check=True, stdout=subprocess.PIPE, text=True
        )
        return float(said.stdout.split()[-1])

    return one


def way(given: argparse.Namespace, folder: Path) -> None:
    """Print the seconds of an update, without the first ones, into which compiling falls."""
    found = recipe(given.small, given.device, **WAYS[given.way])
    print(ours(found, folder)(given.updates))


def data(given: argparse.Namespace, folder: Path) -> None:
    print("data loading, share of an update")
    found = recipe(given.small, given.device)
    run, corpus = prepared(found)
    order = BatchOrder(corpus, run.recipe.data.block_size or 0, 0)
    order.batch(0, found.train.batch_size)
    start = time.process_time()
    for update in range(200):
        order.batch(update, found.train.batch_size)
    loading = (time.process_time() - start) / 200
    update = in_turns({"layerlab": ours(found, folder)}, 2, given.updates)["layerlab"]
    share = 100 * loading / update
    line("a batch", f"{1e3 * loading:8.3f} ms, {share:.2f} %", "less than 1 %", share < 1)


def large(given: argparse.Namespace, folder: Path) -> None:
    print("large shapes, bf16, compiled")
    for name, (_, _, wanted, times) in WIDE.items():
        found = wide(name, given.small, given.device)
        rounds = {"layerlab": ours(found, folder)}
        if times is not None:
            rounds["transformers' Trainer"] = trainer(found, folder)
        best = in_turns(rounds, given.rounds, given.updates)
        tokens = found.train.batch_size * (found.model.context or 0)
        print(f"  {name}")
        told(best, tokens)
        speed = tokens / best["layerlab"]
        met = None if given.small else speed >= wanted
        line("tokens/s", f"{speed:9,.0f}", f"at least {wanted:,.0f}", met)
        if times is not None:
            ratio = best["transformers' Trainer"] / best["layerlab"]
            value = f"{ratio:8.3f} times"
            met = None if given.small else ratio >= times
            line("tokens/s of Trainer", value, f"at least {times:.2f}", met)


SECTIONS = {"loop": loop, "precision": precision, "data": data, "large": large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--section", choices=SECTIONS)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp())
    try:
        if given.way is not None:
            way(given, folder)
            return
        for name, section in SECTIONS.items():
            if given.section == name or (given.section is None and name != "large"):
                section(given, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
