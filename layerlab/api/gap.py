"""`layerlab.gap`: why two runs of one model disagree, on the same models and texts as `inspect`."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from layerlab import builtin
from layerlab.console.inspection import InspectionBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import LoadedModel, load_model
from layerlab.loading.text_input import TextInput
from layerlab.numerics.profiles.gap import RunGap, find_gap
from layerlab.numerics.profiles.profile import RUNS, NumericsProfile, load_profile
from layerlab.numerics.recorded.explain import explain_record
from layerlab.numerics.recorded.read_records import read_records
from layerlab.numerics.recorded.record import TokenRecord, check_lengths, check_tokens
from layerlab.numerics.recorded.recorded_gap import RecordedGap
from layerlab.plugins import load_files
from layerlab.system.files import File
from layerlab.system.hardware import explain_memory
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import evaluation_mode, threads, usual_arithmetic
from layerlab.system.untrusted.trust import trust
from layerlab.validation import expand_home

ENGINE = "torch-sdpa"  # the usual one
LESS = "type a smaller --context, or fewer --samples"
AnyProfile = str | os.PathLike[str] | NumericsProfile


@usual_arithmetic()
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
    question = GapRequest(
        model=builtin.DEFAULT if model is None else model,
        passage=find_passage(texts, input_ids, context, logprobs),
        a=load_profile(a),
        b=None if b is None else load_profile(b),
        logprobs=None if logprobs is None else expand_home(logprobs),
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    with trust(trust_remote_code, allow_unused=allow_unused):
        return answer_gap(question, progress=progress)


def find_passage(texts: Any, input_ids: Any, context: Any, logprobs: Any) -> TextInput | None:
    """Return the text; None where it is what was recorded."""
    if logprobs is not None and texts is None and input_ids is None:
        return None
    return passage(texts, input_ids=input_ids, context=context)


@dataclass(frozen=True, kw_only=True)
class GapRequest:
    """A question about two runs: model, texts and profiles.

    Attributes:
        passage: the text; None for that of a record.
        b: None for the default, or for all candidates beside a record.
        logprobs: the record.
    """

    model: Any
    passage: TextInput | None
    a: NumericsProfile
    b: NumericsProfile | None = None
    logprobs: Path | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    device: str | None = None
    dtype: str | None = None


@explain_memory(LESS)
def answer_gap(question: GapRequest, *, progress: bool = True) -> RunGap | RecordedGap:
    """Load the model and find what makes the difference.

    Raises:
        UserError: as `gap`.
    """
    asked = question
    subject = load_model(asked.model, asked.tokenizer, device=asked.device, dtype=asked.dtype)
    records: list[TokenRecord] = []
    if asked.logprobs is not None:
        records = read_records(asked.logprobs, subject.entries, subject.tokenizer)
    pieces = _pieces(asked, subject, records)
    with ExitStack() as stack:
        stack.enter_context(threads(subject.model.num_parameters()))
        stack.enter_context(evaluation_mode(subject.model))
        stack.enter_context(quiet_libraries())
        shown: Progress = stack.enter_context(InspectionBar()) if progress else NullProgress()
        run: dict[str, Any] = {"call": run_model, "step": lambda what: shown.step(what)}
        if records:
            shown.begin(f"{subject.name}, {asked.logprobs}", 2 * len(pieces) + len(RUNS))
            candidates = () if asked.b is None else (asked.b,)
            return explain_record(subject.model, records, asked.a, candidates, **run)
        b = asked.b or load_profile(ENGINE)
        shown.begin(f"{subject.name}, {asked.a.name} and {b.name}", 3 * len(pieces))
        return find_gap(subject.model, pieces, asked.a, b, **run)


def _pieces(
    asked: GapRequest, subject: LoadedModel, records: Sequence[TokenRecord]
) -> list[Tensor]:
    """Return the tokens of each text, which those of the record have to be."""
    check_lengths(records, subject.context, str(asked.logprobs), subject.name)
    if asked.passage is not None:
        pieces = sequences(asked.passage, subject)
        if records:
            check_tokens(records, [one.tolist() for one in pieces], str(asked.logprobs))
        return pieces
    ids = tuple(torch.tensor(one.token_ids) for one in records)
    return sequences(TextInput(source=str(asked.logprobs), ids=ids), subject)


def run_model(model: nn.Module, ids: Tensor) -> Any:
    """Return the logits of one sequence."""
    return model(input_ids=ids[None], use_cache=False).logits
