"""Records of real runs, and what they are taken for.

Type python bench/numerics/gap_records.py [--quick]. Each record is made as a user makes one: the
model saved, loaded by transformers in the dtype and with the attention of the run, its log-
probabilities in float32 written to a file of JSON lines. It is then read and held against every
shipped profile, once with real runs of those that run here and once by emulation alone; and records
with a mistake planted in place of rounding.
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import copy
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch
import transformers
from torch import Tensor, nn

from layerlab import builtin
from layerlab.api.gap import run_model
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import load_model
from layerlab.numerics.profiles.profile import list_profiles, load_profile
from layerlab.numerics.recorded.explain import explain_record
from layerlab.numerics.recorded.read_records import read_records
from layerlab.numerics.recorded.recorded_gap import RecordedGap
from layerlab.system.model_cache import cache_of, read_on

STORIES = ROOT.parent / "shared" / "data" / "model-stories260K" / "hf"
MODELS = {"llama": builtin.path("llama"), "pre-norm": builtin.path("pre-norm"), "stories": STORIES}
# Profiles that a record of each run is right to be taken for. A cache changes no rounding that is
# emulated: by emulation alone, a run with it is the run without.
RUNS = {
    "eager": ("torch-eager",),
    "sdpa": ("torch-sdpa", "hf-generate"),
    "compile": ("torch-compile",),
    "autocast": ("autocast-bf16",),
    "cached": ("hf-generate", "torch-sdpa"),
}
TEXTS, TOKENS = 4, 256
PROMPT = 32  # tokens that the run with a cache reads at once
EAGER = load_profile("torch-eager")


def load(folder: Path, run: str, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Return the model as transformers loads it for a run."""
    dtype = torch.float32 if run == "autocast" else dtype
    attention = "eager" if run == "eager" else "sdpa"
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention
    ).eval()
    return torch.compile(model, dynamic=False) if run == "compile" else model  # type: ignore[no-any-return]


def score(model: Any, ids: Tensor, run: str) -> Tensor:
    """Return logits of all tokens of a text."""
    if run == "cached":
        first = model(input_ids=ids[None, :PROMPT], use_cache=True)
        found, known = [first.logits], cache_of(first)
        for token in ids[PROMPT:]:
            read = read_on(model, token[None, None], known)
            found.append(read.logits)
        return torch.cat(found, dim=1)[0]
    with torch.autocast("cpu", torch.bfloat16, enabled=run == "autocast"):
        logits: Tensor = model(input_ids=ids[None], use_cache=False).logits[0]
    return logits


def write(path: Path, pieces: list[Tensor], logprobs: list[Tensor]) -> None:
    """Write a record as an engine's answer is kept."""
    rows = [
        {"token_ids": ids.tolist(), "logprobs": [None] * (len(ids) - len(values)) + values.tolist()}
        for ids, values in zip(pieces, logprobs, strict=True)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))


def take(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities of all tokens but the first, as engines take them."""
    return logits[:-1].float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0].clamp(max=0)


def record(folder: Path, pieces: list[Tensor], run: str) -> list[Tensor]:
    """Return what a run records of each text."""
    model = load(folder, run)
    with torch.no_grad():
        found = [take(score(model, ids, run), ids) for ids in pieces]
    # What generates tells nothing of its prompt.
    return [one[PROMPT - 1 :] for one in found] if run == "cached" else found


def plant(folder: Path, pieces: list[Tensor]) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Yield mistakes: what it is, a word of the name that it should get, and the record."""
    model: Any = load(folder, "sdpa")
    own = record(folder, pieces, "sdpa")
    yield "shift", "early", [torch.cat([one[1:], one[-1:]]) for one in own]
    beginning = model.config.bos_token_id
    with torch.no_grad():
        for heat in (0.7, 0.99, 1.01, 1.3):
            hot = [take(score(model, ids, "sdpa").float() / heat, ids) for ids in pieces]
            yield f"temperature {heat}", "temperature", hot
        if beginning is not None:
            longer = [torch.cat([ids.new_tensor([beginning]), ids])[:-1] for ids in pieces]
            read = [take(score(model, ids, "sdpa"), ids)[1:] for ids in longer]
            kept = [torch.cat([one, one[-1:]]) for one in read]
            yield "beginning", "beginning added", kept
        wrong = [one.clone() for one in own]
        wrong[0][len(wrong[0]) // 2] -= 9
        yield "a bad token", "token", wrong
        names = [name for name, _ in model.named_buffers() if name.endswith("inv_freq")]
        if names:
            whole = load(folder, "sdpa", torch.float32).to(torch.bfloat16)
            cast = [take(score(whole, ids, "sdpa"), ids) for ids in pieces]
            yield "cast whole", "frequencies were rounded", cast
            other = copy.deepcopy(model)
            for name in names:
                other.get_buffer(name).div_(2)
            yield (
                "positions / 2",
                "positions divided by 2",
                [take(score(other, ids, "sdpa"), ids) for ids in pieces],
            )


def explain(folder: Path, pieces: list[Tensor], logprobs: list[Tensor], real: bool) -> RecordedGap:
    """Write a record, read it, and say what it is."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    profiles = [load_profile(name) for name in list_profiles()]
    with TemporaryDirectory() as kept:
        path = Path(kept) / "record.jsonl"
        write(path, pieces, logprobs)
        records = read_records(path, model.get_input_embeddings().num_embeddings)
    return explain_record(model.eval(), records, EAGER, profiles, call=run_model, real=real)


def main() -> None:
    """Print a line for each record, and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one text a model, and no compiler")
    parser.add_argument(
        "--models", nargs="+", choices=sorted(MODELS), default=["llama", "pre-norm"]
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    right = alone = called = named = count = planted = 0
    for name in asked.models:
        folder = MODELS[name]
        pieces = sequences(passage(context=TOKENS), load_model(str(folder)))
        pieces = [one for one in pieces if len(one) == TOKENS][: 1 if asked.quick else TEXTS]
        for run, wanted in RUNS.items():
            if asked.quick and run == "compile":
                continue
            begun = time.perf_counter()
            logprobs = record(folder, pieces, run)
            both = explain(folder, pieces, logprobs, True)
            only = explain(folder, pieces, logprobs, False)
            count += 1
            right += both.best[0].name == wanted[0] and not both.is_bug
            alone += only.best[0].name in wanted and not only.is_bug
            print(
                f"{name:<9} {run:<9} {' or '.join(one.name for one in both.best)} "
                f"{both.best[0].share:.1%}; by emulation alone "
                f"{' or '.join(one.name for one in only.best)} {only.best[0].share:.1%}; "
                f"{time.perf_counter() - begun:.0f} s",
                flush=True,
            )
        for mistake, word, logprobs in plant(folder, pieces):
            # By emulation alone, but for a cast: that is told by its digits.
            found = explain(folder, pieces, logprobs, mistake == "cast whole")
            cause = found.cause.name if found.cause else "none"
            cause = f"token {found.outliers[0].place}" if found.outliers else cause
            planted += 1
            called += found.is_bug
            named += word in cause
            print(f"{name:<9} {mistake:<16} {found.is_bug}: {cause}", flush=True)
    print(f"assigned {right} of {count}; by emulation alone {alone} of {count}")
    print(f"called bugs {called} of {planted}; named {named} of {planted}")


if __name__ == "__main__":
    main()
