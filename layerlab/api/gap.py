"""`layerlab.gap`: why two runs of one model disagree, on the same models and texts as `inspect`."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from layerlab import builtin
from layerlab.api.stages.watched_runs import watched_runs
from layerlab.errors import UserError
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import LoadedModel, load_model
from layerlab.loading.text_input import TextInput
from layerlab.numerics.profiles.gap import RunGap, find_gap
from layerlab.numerics.profiles.profile import RUNS, NumericsProfile, load_profile
from layerlab.numerics.recorded.explain import TEXTS, explain_record
from layerlab.numerics.recorded.read_records import read_records
from layerlab.numerics.recorded.record import TokenRecord, check_lengths, check_tokens
from layerlab.numerics.recorded.recorded_gap import RecordedGap
from layerlab.plugins import load_files
from layerlab.system.files import File
from layerlab.system.hardware import explain_memory
from layerlab.system.locks import one_at_a_time
from layerlab.system.torch_settings import usual_arithmetic
from layerlab.system.untrusted.trust import trust
from layerlab.validation import expand_home

ENGINE = "torch-sdpa"  # the usual one
LESS = "type a smaller --context, or fewer --samples"
AnyProfile = str | os.PathLike[str] | NumericsProfile


@one_at_a_time()
@usual_arithmetic()
@explain_memory(LESS)
def gap(
    model: Any = None,
    a: AnyProfile = "torch-eager",
    b: AnyProfile | None = None,
    *,
    logprobs: File | None = None,
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
) -> RunGap | RecordedGap:
    """Find which operations make the difference between two runs of one model.

    Both are emulated, each as its profile says, and so are runs that exchange their errors one
    operation at a time; the model is left as it was. With `logprobs`, what an engine recorded is
    held against all profiles, emulated and, where torch runs them here, for real, and against the
    commonest mistakes.

    Args:
        model: a Hub id, a local folder, a built-in name, or a loaded `PreTrainedModel`; the
            built-in default if left out.
        a: profile of what computes the loss, as a trainer: a name or a TOML file.
        b: profile of what drew the tokens, as an inference engine; "torch-sdpa" if left out, and
            with `logprobs` all that layerlab knows.
        logprobs: file in which an engine recorded tokens and their log-probabilities, in place of
            running b; its tokens are the text.
        tokenizer: for a loaded model; others bring their own.
        texts: one sequence each, or, with `context`, cut into samples of that many tokens; the
            built-in sample if left out.
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
        UserError: what was given cannot be read, or the model cannot be run side by side.

    Example:
        >>> import layerlab
        >>> model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
        >>> found = gap(model, input_ids=[range(8)], progress=False)
        >>> sorted(one.name for one in found.causes)
        ['attention_weights', 'scores', 'softmax']
    """
    load_files(load, [] if isinstance(model, nn.Module | None) else [str(model)])
    read = find_passage(texts, input_ids, samples, context, logprobs)
    trainer, engine = load_profile(a), None if b is None else load_profile(b)
    file = None if logprobs is None else expand_home(logprobs)
    with trust(trust_remote_code, allow_unused=allow_unused):
        named = builtin.DEFAULT if model is None else model
        subject = load_model(named, tokenizer, device=device, dtype=dtype)
        records: list[TokenRecord] = []
        if file is not None:
            records = read_records(file, subject.entries, subject.tokenizer)
        pieces = _pieces(read, subject, records, str(file))
        with watched_runs(subject.model, progress=progress) as bar:
            run: dict[str, Any] = {"call": run_model, "step": lambda what: bar.step(what)}
            if records:
                bar.begin(f"{subject.name}, {file}", 2 * len(pieces) + len(RUNS))
                known = () if engine is None else (engine,)
                return explain_record(subject.model, records, trainer, known, **run)
            engine = engine or load_profile(ENGINE)
            bar.begin(f"{subject.name}, {trainer.name} and {engine.name}", 3 * len(pieces))
            return find_gap(subject.model, pieces, trainer, engine, **run)


def find_passage(
    texts: Any, input_ids: Any, samples: Any, context: Any, logprobs: Any
) -> TextInput | None:
    """Return the text; None where it is what was recorded.

    Raises:
        UserError: as `passage`, or samples are asked for of what was recorded.
    """
    if logprobs is None or texts is not None or input_ids is not None:
        return passage(texts, input_ids=input_ids, samples=samples, context=context)
    if samples is not None:
        raise UserError("logprobs brings the tokens that it was recorded of; leave samples out")
    return None


def _pieces(
    read: TextInput | None, subject: LoadedModel, records: Sequence[TokenRecord], source: str
) -> list[Tensor]:
    """Return the tokens of each text, which those of the record have to be."""
    check_lengths(records, subject.context, source, subject.name)
    if read is not None:
        pieces = sequences(read, subject)
        if records:
            check_tokens(records, [one.tolist() for one in pieces], source)
        return pieces
    ids = tuple(torch.tensor(one.token_ids) for one in records[:TEXTS])
    return sequences(TextInput(source=source, ids=ids), subject)


def run_model(model: nn.Module, ids: Tensor) -> Any:
    """Return the logits of one sequence."""
    return model(input_ids=ids[None], use_cache=False).logits
