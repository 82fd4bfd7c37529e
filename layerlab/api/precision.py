"""`layerlab.precision`: what to keep in float32, on the same models and texts as `inspect`."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from layerlab import builtin
from layerlab.console.inspection import InspectionBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import load_model
from layerlab.loading.text_input import TextInput
from layerlab.numerics.mixed_precision.advice import Advice
from layerlab.numerics.mixed_precision.request import check_request
from layerlab.numerics.mixed_precision.select_policy import SHORTLIST, advise, candidates
from layerlab.plugins import load_files
from layerlab.system.files import File
from layerlab.system.hardware import explain_memory
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import evaluation_mode, threads, usual_arithmetic
from layerlab.system.untrusted.trust import trust

LESS = "type --device auto, --device cpu, or a smaller --context"
FORMAT, BUDGET = "bf16", 0.3
# Steps of a search beyond one for each candidate: references, real runs, a few rounds of choosing.
ROUNDS = 3


@usual_arithmetic()
def precision(
    model: Any = None,
    format: str = FORMAT,
    budget: float = BUDGET,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Sequence[str] | str | None = None,
    input_ids: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    context: int | None = None,
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    progress: bool = True,
) -> Advice:
    """Find a small set of places to keep in float32 so that the error falls to a budget.

    The model is left as it was: `layerlab.apply_precision(model, advice.policy)` applies what was
    found, `advice.policy.save("policy.toml")` keeps it.

    Args:
        model: a Hub id, a local folder, a built-in name, or a loaded `PreTrainedModel`; the
            built-in default if left out.
        format: of everything that is not kept, as "bf16", "fp16", "fp8_e4m3", "int8".
        budget: share of the squared error of the logits that may be left.
        tokenizer: for a loaded model; others bring their own.
        texts: one sequence each, or, with `context`, cut into samples of that many tokens; the
            built-in sample if left out. The model runs some forty times on all of them, and twice
            that where the search has to go backwards.
        input_ids: instead of texts, batch x token.
        device: where the model is loaded.
        dtype: of the loaded weights; that of its config.json if left out.
        context: length of the samples in tokens.
        load: Python files with the variant of a model that layerlab has built.
        trust_remote_code: run Python that a model brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        progress: show a live bar on standard error.

    Raises:
        UserError: what was given cannot be read, a budget that is no share, or a format in which
            nothing can be kept.

    Example:
        >>> import layerlab
        >>> model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
        >>> advice = precision(model, input_ids=[range(8)], progress=False)
        >>> layerlab.apply_precision(model, advice.policy).dtype
        torch.bfloat16
    """
    load_files(load, [] if isinstance(model, nn.Module | None) else [str(model)])
    question = PrecisionRequest(
        model=builtin.DEFAULT if model is None else model,
        passage=passage(texts, input_ids=input_ids, context=context),
        format=format,
        budget=budget,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    with trust(trust_remote_code, allow_unused=allow_unused):
        return find_policy(question, progress=progress)


@dataclass(frozen=True, kw_only=True)
class PrecisionRequest:
    """A search for a precision policy: model, texts, format and budget."""

    model: Any
    passage: TextInput
    format: str = FORMAT
    budget: float = BUDGET
    tokenizer: PreTrainedTokenizerBase | None = None
    device: str | None = None
    dtype: str | None = None


@explain_memory(LESS)
def find_policy(question: PrecisionRequest, *, progress: bool = True) -> Advice:
    """Load the model and find what to keep in float32.

    Raises:
        UserError: as `precision`.
    """
    asked = question
    # Before anything is loaded.
    check_request(asked.format, asked.budget)
    subject = load_model(asked.model, asked.tokenizer, device=asked.device, dtype=asked.dtype)
    pieces = sequences(asked.passage, subject)
    with ExitStack() as stack:
        stack.enter_context(threads(subject.model.num_parameters()))
        stack.enter_context(evaluation_mode(subject.model))
        stack.enter_context(quiet_libraries())
        shown: Progress = stack.enter_context(InspectionBar()) if progress else NullProgress()
        names = candidates(subject.model)
        shown.begin(f"{subject.name}, {asked.format}", len(names) + ROUNDS * SHORTLIST)
        return advise(
            subject.model,
            lambda model: logits(model, pieces),
            asked.format,
            asked.budget,
            step=lambda what: shown.step(what),
            announce=lambda trials: shown.begin(f"{subject.name}, backwards", trials),
        )


def logits(model: nn.Module, pieces: Sequence[Tensor]) -> Tensor:
    """Return the logits of sequences, run one after another without padding."""
    found = [model(input_ids=ids[None], use_cache=False).logits for ids in pieces]
    return torch.cat(found, dim=-2)
