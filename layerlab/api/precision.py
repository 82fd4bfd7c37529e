"""`layerlab.precision`: what to keep in float32, on the same models and texts as `inspect`."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from layerlab import builtin
from layerlab.api.stages.watched_runs import watched_runs
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import load_model
from layerlab.numerics.mixed_precision.advice import Advice
from layerlab.numerics.mixed_precision.request import check_request
from layerlab.numerics.mixed_precision.select_policy import SHORTLIST, advise, candidates
from layerlab.plugins import load_files
from layerlab.system.files import File
from layerlab.system.hardware import explain_memory
from layerlab.system.locks import one_at_a_time
from layerlab.system.torch_settings import usual_arithmetic
from layerlab.system.untrusted.trust import trust

LESS = "type --device auto, --device cpu, or a smaller --context"
# Steps of a search beyond one for each candidate: references, real runs, a few rounds of choosing.
ROUNDS = 3


@one_at_a_time()
@usual_arithmetic()
@explain_memory(LESS)
def precision(
    model: Any = None,
    format: str = "bf16",
    budget: float = 0.3,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Sequence[str] | str | None = None,
    input_ids: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    samples: int | None = None,
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
        samples: how many are cut from the text; left out, 4 of the built-in text and all of others.
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
    read = passage(texts, input_ids=input_ids, samples=samples, context=context)
    # Before anything is loaded.
    check_request(format, budget)
    with trust(trust_remote_code, allow_unused=allow_unused):
        named = builtin.DEFAULT if model is None else model
        subject = load_model(named, tokenizer, device=device, dtype=dtype)
        pieces = sequences(read, subject)
        with watched_runs(subject.model, progress=progress) as bar:
            names = candidates(subject.model)
            bar.begin(f"{subject.name}, {format}", len(names) + ROUNDS * SHORTLIST)
            return advise(
                subject.model,
                lambda model: logits(model, pieces),
                format,
                budget,
                step=lambda what: bar.step(what),
                announce=lambda trials: bar.begin(f"{subject.name}, backwards", trials),
            )


def logits(model: nn.Module, pieces: Sequence[Tensor]) -> Tensor:
    """Return the logits of sequences, run one after another without padding."""
    found = [model(input_ids=ids[None], use_cache=False).logits for ids in pieces]
    return torch.cat(found, dim=-2)
