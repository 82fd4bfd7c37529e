"""Train the built-in models: `python -m tools.builtin_models.train --data FILE --out DIR`.

Norm placement is usually compared between models that differ in more than that. Here three arms of
one shape see the same batches in lockstep, under one optimizer, one schedule and one seed, and
start from the same numbers wherever the shapes of their weights agree.

    pre-norm    h + f(norm(h)), a final norm          GPT-2's code
    post-norm   norm(h + f(h)), no final norm         GPT-1's code
    llama       h + f(rms(h)), RoPE, SwiGLU           Llama's code, inner width set by parameters

Differs: GPT-2 divides the initial output projections by sqrt(2 layers); no arm does that here,
since GPT-1 does not and the two must start alike.
"""

import argparse
import hashlib
import math
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import tokenizers
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from layerlab.builtin import NAMES
from layerlab.errors import UserError
from layerlab.studies.support.builtin_architectures import build
from layerlab.tokenization.train import train_bpe
from tools.builtin_models.card import Result, card
from tools.builtin_models.recipe import Recipe, TrainedArm, optimizer_of


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    """Encode a document with the separator before it, so that its first token is predicted too."""
    return torch.tensor([0, *tokenizer.backend_tokenizer.encode(text).ids])


def batch_of(tokens: Tensor, step: int, recipe: Recipe) -> Tensor:
    """Draw the batch of one step, which depends on nothing but the seed and the step."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    last = len(tokens) - recipe.context
    starts = torch.randint(last, (recipe.batch,), generator=generator)
    rows = torch.stack([tokens[start : start + recipe.context + 1] for start in starts.tolist()])
    # The separator occurs once in the text: every other row begins with it, so it gets trained.
    rows[::2, 0] = 0
    return rows


def rate_at(step: int, recipe: Recipe) -> float:
    """Return the learning rate: linear warm-up, half a cosine, linear cool-down at the end."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    cosine = (1 + math.cos(math.pi * done)) / 2
    left = min(1.0, (recipe.steps - step) / max(1, recipe.cooldown))
    return recipe.last_rate + (recipe.rate - recipe.last_rate) * left * cosine


def advance(arm: TrainedArm, rows: Tensor, step: int, recipe: Recipe) -> None:
    """Take one optimizer step of one arm."""
    start = time.perf_counter()
    for group in arm.optimizer.param_groups:
        group["lr"] = rate_at(step, recipe)
    arm.model.train()
    logits = arm.model(input_ids=rows[:, :-1]).logits
    loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(arm.model.parameters(), recipe.clip)
    arm.optimizer.step()
    arm.optimizer.zero_grad()
    arm.losses.append(loss.item())
    arm.seen = hashlib.blake2b(
        arm.seen.encode() + rows.numpy().tobytes(), digest_size=8
    ).hexdigest()
    arm.seconds += time.perf_counter() - start


@torch.no_grad()
def nats(model: Any, tokens: Tensor, context: int, batch: int = 16) -> float:
    """Sum -log p over every token but the first, in windows that do not overlap.

    A window reads `context` tokens and predicts as many: the first prediction of a window has one
    token of context, the last has all. Unit: nats.
    """
    model.eval()
    total = 0.0
    for rows in windows(tokens, context, batch):
        logits = model(input_ids=rows[:, :-1]).logits.flatten(0, 1)
        total += cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum").item()
    return total


def windows(tokens: Tensor, context: int, batch: int) -> Iterator[Tensor]:
    """Cut (batch, context + 1) rows whose predicted tokens tile the text; the rest comes last."""
    whole = (len(tokens) - 1) // context * context
    if whole:
        rows = torch.cat(
            [tokens[:whole].view(-1, context), tokens[context : whole + 1 : context, None]], 1
        )
        yield from rows.split(batch)
    if len(tokens) - 1 > whole:
        yield tokens[None, whole:]


def train(
    text: str, recipe: Recipe, progress: Path | None = None
) -> tuple[list[TrainedArm], PreTrainedTokenizerFast, Tensor, str]:
    """Train all arms in lockstep: each batch goes to each arm in turn.

    Args:
        text: the whole text; its last part is held out.
        recipe: the run.
        progress: a file to checkpoint to, and to continue from if it is there.

    Returns:
        The arms, their tokenizer, the validation tokens and the validation text.
    """
    cut = round(len(text) * (1 - recipe.validation))
    tokenizer = train_bpe([text[:cut]], vocab=recipe.vocab)
    tokenizer.model_max_length = recipe.context
    training, held_out = encode(tokenizer, text[:cut]), encode(tokenizer, text[cut:])
    if len(training) <= recipe.context:
        raise UserError(
            f"the text gives {len(training)} tokens to train on; expected more than one context of "
            f"{recipe.context}: give a longer text"
        )
    models = {name: build(name, recipe) for name in NAMES}
    arms = [TrainedArm(name, model, optimizer_of(model, recipe)) for name, model in models.items()]
    run = hashlib.blake2b(f"{recipe}{text}".encode(), digest_size=8).hexdigest()
    if progress and progress.exists():
        resume(arms, progress, run)
    for step in range(len(arms[0].losses), recipe.steps):
        rows = batch_of(training, step, recipe)
        for arm in arms:
            advance(arm, rows, step, recipe)
        if (step + 1) % recipe.interval == 0 or step + 1 == recipe.steps:
            note(arms, held_out, recipe)
            if progress:
                save(arms, progress, run)
    return arms, tokenizer, held_out, text[cut:]


def save(arms: Sequence[TrainedArm], progress: Path, run: str) -> None:
    """Write a checkpoint; an interruption meanwhile leaves the one before."""
    fresh = progress.with_suffix(".new")
    torch.save({"run": run, "arms": [arm.state() for arm in arms]}, fresh)
    fresh.replace(progress)


def resume(arms: Sequence[TrainedArm], progress: Path, run: str) -> None:
    """Continue from a checkpoint of the same run; another recipe or text is refused."""
    saved = torch.load(progress)
    if saved["run"] != run:
        raise UserError(
            f"{progress} belongs to another run; expected this recipe and text: "
            f"delete {progress.parent} or choose another --out"
        )
    for arm, state in zip(arms, saved["arms"], strict=True):
        arm.restore(state)


def note(arms: Sequence[TrainedArm], held_out: Tensor, recipe: Recipe) -> None:
    """Measure and print where the arms stand."""
    for arm in arms:
        loss = nats(arm.model, held_out, recipe.context) / (len(held_out) - 1)
        arm.history.append((len(arm.losses), loss))
    step = len(arms[0].losses)
    print(
        f"step {step:5d}",
        *(f"{a.name} {a.losses[-1]:.3f} {a.history[-1][1]:.4f}" for a in arms),
        flush=True,
    )


def measure(arm: TrainedArm, model: Any, held_out: Tensor, text: str, recipe: Recipe) -> Result:
    """Measure one model on all of the validation text."""
    last = arm.losses[-100:]
    return Result(
        name=arm.name,
        nats=nats(model, held_out, recipe.context),
        tokens=len(held_out) - 1,
        characters=len(text),
        bytes=len(text.encode()),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        train_loss=sum(last) / len(last),
        seconds=arm.seconds,
        seen=arm.seen,
        history=arm.history,
    )


def describe(data: bytes, recipe: Recipe, machine: str) -> dict[str, object]:
    """Return the text, the versions and the machine for the card, by name."""
    return {
        "text, sha256": hashlib.sha256(data).hexdigest(),
        "trained tokens per model": f"{recipe.steps * recipe.batch * recipe.context:,}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
        "machine": machine,
    }


def publish(data: bytes, out: Path, recipe: Recipe, machine: str) -> None:
    """Train, store and measure; each model's folder appears in `out` only when it is complete."""
    partial = out.with_name(out.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    progress = partial / "progress.pt"
    arms, tokenizer, held_out, text = train(data.decode(), recipe, progress)
    results = []
    for arm in arms:
        arm.model.save_pretrained(partial / arm.name)
        tokenizer.save_pretrained(partial / arm.name)
        stored = transformers.AutoModelForCausalLM.from_pretrained(
            partial / arm.name, dtype=torch.float32
        )
        results.append(measure(arm, stored, held_out, text, recipe))
    out.mkdir(parents=True, exist_ok=True)
    for arm in arms:
        readme = card(arm.name, results, asdict(recipe), describe(data, recipe, machine))
        (partial / arm.name / "README.md").write_text(readme, encoding="utf-8")
        shutil.rmtree(out / arm.name, ignore_errors=True)
        (partial / arm.name).rename(out / arm.name)
    shutil.rmtree(partial)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Train the built-in models of layerlab.")
    parser.add_argument("--data", type=Path, required=True, help="a text file")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the three models")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--machine", default=platform.machine(), help="as the cards shall name it")
    options = parser.parse_args(arguments)
    if not options.data.is_file():
        raise UserError(f"--data {options.data} is not a file; expected a text to train on")
    # One thread: sums are then added in one order, and the run can be repeated bit by bit.
    torch.set_num_threads(1)
    recipe = Recipe(steps=options.steps)
    publish(options.data.read_bytes(), options.out, recipe, options.machine)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
