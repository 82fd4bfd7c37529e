"""Train the built-in models: `python -m layerlab.builtin.train --data FILE --out DIR`.

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
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import tokenizers
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, LlamaConfig, OpenAIGPTConfig, PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.builtin import NAMES
from layerlab.builtin.card import Result, card

END = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the outcome of a run, apart from the text and the library versions.

    Attributes:
        deviation: standard deviation of every initial matrix; biases start at 0, norms at 1.
        validation: the last part of the text, held out.
        interval: steps between two lines of the log, each with a checkpoint.
    """

    seed: int = 1
    width: int = 64
    layers: int = 8
    heads: int = 4
    vocab: int = 512
    context: int = 256
    deviation: float = 0.02
    batch: int = 8
    steps: int = 2700
    warmup: int = 300
    rate: float = 2e-3
    last_rate: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.1
    clip: float = 1.0
    validation: float = 0.1
    interval: int = 300


@dataclass
class Arm:
    """One model on its way: its optimizer, what it has seen and what that cost.

    Attributes:
        seen: a hash chained over all batches; equal in two arms only if they saw the same.
        losses: training loss of every step, nats per token.
        history: step and validation loss in nats per token.
    """

    name: str
    model: Any
    optimizer: torch.optim.AdamW
    seen: str = ""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Give all that is needed to continue."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{key: getattr(self, key) for key in ("seen", "seconds", "losses", "history")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        state = dict(state)
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        for key, value in state.items():
            setattr(self, key, value)


def inner_of_llama(recipe: Recipe) -> int:
    """Choose the inner width that brings the llama arm nearest to the parameters of pre-norm."""
    width, layers = recipe.width, recipe.layers
    # Llama has neither positions nor biases nor LayerNorm shifts: its inner width makes up for it.
    pre_norm = recipe.context * width + layers * (12 * width**2 + 13 * width) + 2 * width
    rest = layers * (4 * width**2 + 2 * width) + width
    return round((pre_norm - rest) / (layers * 3 * width))


def build(name: str, recipe: Recipe) -> Any:
    """Build the untrained model of one arm."""
    shape: dict[str, Any] = {
        "vocab_size": recipe.vocab,
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "max_position_embeddings": recipe.context,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    dry: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config: Any
    if name == "pre-norm":
        config = GPT2Config(**shape, **dry, activation_function="gelu_new")
    elif name == "post-norm":
        config = OpenAIGPTConfig(**shape, **dry, afn="gelu")  # which that code maps to gelu_new
    else:
        config = LlamaConfig(**shape, intermediate_size=inner_of_llama(recipe), rms_norm_eps=1e-5)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    initialise(model, recipe)
    return model


ROLES = {
    r"wte|tokens_embed|embed_tokens": ("token",),
    r"wpe|positions_embed": ("position",),
    r"c_attn": ("query", "key", "value"),
    r"attn\.c_proj|o_proj": ("output",),
    r"c_fc|up_proj": ("up",),
    r"mlp\.c_proj|down_proj": ("down",),
    r"q_proj": ("query",),
    r"k_proj": ("key",),
    r"v_proj": ("value",),
    r"gate_proj": ("gate",),
}


def initialise(model: nn.Module, recipe: Recipe) -> None:
    """Draw every matrix from a stream named by its role and layer, whatever the family calls it."""
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        roles = next(roles for pattern, roles in ROLES.items() if re.search(pattern, name))
        layer = "".join(re.findall(r"\.(\d+)\.", name))
        # nn.Linear keeps (out, in), GPT's Conv1D keeps (in, out): the draws are (in, out).
        shape = parameter.shape[::-1] if name in linear else parameter.shape
        part = (shape[0], shape[1] // len(roles))
        drawn = torch.cat([draw(f"{recipe.seed}/{layer}/{role}", part) for role in roles], dim=1)
        with torch.no_grad():
            parameter.copy_(recipe.deviation * (drawn.T if name in linear else drawn))


def draw(key: str, shape: tuple[int, int]) -> Tensor:
    """Draw standard normal numbers from a stream that only the key decides."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def train_tokenizer(text: str, recipe: Recipe) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: every string can be encoded, and decoding gives it back."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=recipe.vocab,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    """Encode a document with the separator before it, so that its first token is predicted too."""
    return torch.tensor([0, *tokenizer.backend_tokenizer.encode(text).ids])


def batch_of(tokens: Tensor, step: int, recipe: Recipe) -> Tensor:
    """Draw the batch of one step; it depends on nothing but the seed and the step."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    last = len(tokens) - recipe.context
    starts = torch.randint(last, (recipe.batch,), generator=generator)
    rows = torch.stack([tokens[start : start + recipe.context + 1] for start in starts.tolist()])
    # The separator occurs once in the text: every other row begins with it, so it gets trained.
    rows[::2, 0] = 0
    return rows


def rate_at(step: int, recipe: Recipe) -> float:
    """Give the learning rate: linear warm-up, then half a cosine down to the last rate."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.last_rate + (recipe.rate - recipe.last_rate) * (1 + math.cos(math.pi * done)) / 2


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Make AdamW; biases and norms are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=True)


def advance(arm: Arm, rows: Tensor, step: int, recipe: Recipe) -> None:
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
) -> tuple[list[Arm], PreTrainedTokenizerFast, Tensor, str]:
    """Train all arms in lockstep: each batch goes to each arm in turn.

    Args:
        text: the whole text; its last part is held out.
        recipe: the run.
        progress: a file to checkpoint to, and to continue from if it is there.

    Returns:
        The arms, their tokenizer, the validation tokens and the validation text.
    """
    cut = round(len(text) * (1 - recipe.validation))
    tokenizer = train_tokenizer(text[:cut], recipe)
    training, held_out = encode(tokenizer, text[:cut]), encode(tokenizer, text[cut:])
    models = {name: build(name, recipe) for name in NAMES}
    arms = [Arm(name, model, optimizer_of(model, recipe)) for name, model in models.items()]
    done = 0
    if progress and progress.exists():
        for arm, state in zip(arms, torch.load(progress), strict=True):
            arm.restore(state)
        done = len(arms[0].losses)
    for step in range(done, recipe.steps):
        rows = batch_of(training, step, recipe)
        for arm in arms:
            advance(arm, rows, step, recipe)
        if (step + 1) % recipe.interval == 0 or step + 1 == recipe.steps:
            note(arms, held_out, recipe)
            if progress:
                torch.save([arm.state() for arm in arms], progress)
    return arms, tokenizer, held_out, text[cut:]


def note(arms: Sequence[Arm], held_out: Tensor, recipe: Recipe) -> None:
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


def measure(arm: Arm, model: Any, held_out: Tensor, text: str, recipe: Recipe) -> Result:
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
    """Name the text, the versions and the machine for the card."""
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
    main()
