"""`layerlab.inspect`: from models and measures to a report."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import fspath
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from layerlab.api.stages.inspected_models import (
    InspectedModel,
    InspectionRequest,
    Model,
    make_report,
)
from layerlab.console.inspection import InspectionBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.loading.checkpoint_series import expand_runs
from layerlab.loading.inputs import Pieces, divide, passage, placeholder, sequences
from layerlab.loading.model import LoadedModel, check_named, load_model
from layerlab.loading.names import label_models, list_models
from layerlab.loading.options import AUTO
from layerlab.loading.text_input import TextInput, no_text
from layerlab.loading.weights.hash import hash_tensors, hashing
from layerlab.measures.drilldown import details
from layerlab.measures.kept_readings import KeptReadings, ReadingStore, keep_readings
from layerlab.measures.measure import WEIGHTS, Measure
from layerlab.measures.quantities.dimension import ENOUGH
from layerlab.measures.readings import mean_loss, note_ahead, note_lacking, note_short
from layerlab.measures.runner import readings
from layerlab.plugins import (
    File,
    load_files,
    paths,
    resolve,
    resolve_weights,
    with_features,
    with_formats,
    with_other,
    with_saliency,
)
from layerlab.report.results.report import Report
from layerlab.system.hardware import explain_memory
from layerlab.system.locks import one_at_a_time
from layerlab.system.torch_settings import threads, usual_arithmetic
from layerlab.system.untrusted.trust import trust

LESS = (
    "type --device auto, which leaves on the processor what a device cannot hold, a smaller "
    "--context, or fewer --measures"
)


@one_at_a_time()
@usual_arithmetic()
def inspect(
    model: Any = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    texts: Sequence[str] | str | None = None,
    input_ids: Any = None,
    attention_mask: Any = None,
    measures: str | Measure | Iterable[str | Measure] | Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    samples: int | Literal["auto"] | None = None,
    context: int | None = None,
    formats: Iterable[str] | str | None = None,
    backward: bool = False,
    saliency: str | None = None,
    target: str | None = None,
    foil: str | None = None,
    features: bool = False,
    against: File | None = None,
    weights: bool = False,
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    progress: bool = True,
) -> Report:
    """Measure one or several causal language models, layer by layer.

    The model is never edited, and left exactly as it was found. Sequences are run one at a time
    and never padded; only one layer is in memory.

    Args:
        model: a Hub id, a local folder, a built-in name, a loaded `PreTrainedModel`, or several of
            them for one report side by side; the built-in default if left out.
        tokenizer: for a loaded model; others bring their own.
        texts: one sequence each, or, with `context`, cut into samples of that many tokens; the
            built-in sample if left out.
        input_ids: instead of texts, batch x token.
        attention_mask: with `input_ids`; zeros are padding, which is cut off.
        measures: names, with options as in "dimension(epsilon=0.9)", a table of options by name
            as `report.json` has it, or `Measure` values; the default set if left out.
        device: where the models are loaded; "auto" spreads them over what there is. If left out, a
            GPU for a model of 100 M parameters and more that fits there, else the processor.
        dtype: of the loaded weights; that of its config.json if left out (float16 is read as
            float32 where a processor computes).
        samples: how many are cut from the text; left out, 4 of the built-in text and all of others;
            "auto" is 4, and for the dimension as many as it needs.
        context: length of the samples in tokens.
        formats: number formats, as ["bf16", "fp8_e4m3"], whose rounding errors are measured too:
            the model is run some forty times for each.
        backward: with `formats`, also the errors of gradients.
        saliency: a text, to show what the token after it hangs on.
        target: with `saliency`, the word that is asked about; the predicted one if left out.
        foil: with `saliency`, a word of which is asked why it is not that.
        features: also show frequent tokens in three dimensions.
        against: another checkpoint, such as the one that the models were quantized or tuned from,
            to show which weights make them differ; with `weights` how each of them does.
        weights: look at the weights alone: no text is read, and a folder is not loaded, but read a
            tensor at a time; the measures are those that need nothing else.
        load: Python files with measures of your own, or with the variant of a model.
        trust_remote_code: run Python that a model brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        progress: show a live bar on standard error.

    Returns:
        A report; it shows itself in a notebook.

    Raises:
        UserError: what was given cannot be read; one line that says what to type.

    Example:
        >>> report = inspect("llama", texts="A short text.", measures=["stream"], progress=False)
        >>> len(report.frame("stream"))
        9
    """
    unread = {"texts": texts, "input_ids": input_ids, "samples": samples, "context": context}
    unread |= {"saliency": saliency, "formats": formats, "features": features}
    unread |= {"device": device, "dtype": dtype}
    given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    sizes = {"samples": samples, "context": context}
    read = no_text(unread) if weights else passage(texts, **given, **sizes)
    models = list_models(model)
    own = load_files(load, [str(one) for one in models if not isinstance(one, PreTrainedModel)])
    chosen = resolve_weights(measures, own) if weights else resolve(measures, own)
    chosen = with_formats(chosen, formats, backward)
    chosen = with_other(chosen, None if against is None else fspath(against), weights)
    chosen = with_saliency(chosen, saliency, target, foil)
    job = InspectionRequest(
        models=models,
        tokenizer=tokenizer,
        passage=read,
        measures=with_features(chosen, features),
        named=measures is not None,
        device=device,
        dtype=dtype,
        load=[str(one) for one in paths(load)],
    )
    with trust(trust_remote_code, allow_unused=allow_unused):
        return run_inspection(job, progress=progress)


@explain_memory(LESS)
def run_inspection(job: InspectionRequest, *, progress: bool = True) -> Report:
    """Do an inspection; one model is in memory at a time.

    Raises:
        UserError: a model or its text cannot be read, or memory does not suffice.
    """
    models = expand_runs(job.models)
    check_named(models)
    with ExitStack() as stack:
        bar: Progress = stack.enter_context(InspectionBar()) if progress else NullProgress()
        store = stack.enter_context(keep_readings())
        parts = [
            _measure(job, model, name, bar, store)
            for model, name in zip(models, label_models(models), strict=True)
        ]
    return make_report(parts, job)


def _measure(
    job: InspectionRequest, model: Model, name: str, progress: Progress, store: ReadingStore
) -> InspectedModel:
    named = model if isinstance(model, PreTrainedModel) else str(model)
    weights_only = all(measure.needs <= WEIGHTS for measure in job.measures)
    subject = load_model(
        named,
        job.tokenizer,
        device=job.device,
        dtype=job.dtype,
        weights_only=weights_only,
        unloaded=job.passage.is_empty,
    )
    subject.name = name
    read = _pieces(job.passage, subject, weights_only)
    pieces = read.each
    beside = hashing(subject.folder, subject.model)
    with threads(subject.model.num_parameters()), beside as digest:
        kept = KeptReadings() if job.load else store.open(subject, pieces, job.measures)
        if kept.found:
            progress.note(
                f"{name}: {kept.found:,} readings are kept from before, and not made again"
            )
        found = readings(subject, pieces, job.measures, progress, read.more, kept)
        if read.short:
            note_short(found, job.measures)
        ahead = note_ahead(found, job.measures, subject)
        note_lacking(found, subject)
        card = {
            **subject.facts(digest),
            "faults": found.faults,
            "loss_nats": mean_loss(found.loss_nats, pieces),
            "tokens": [len(ids) for ids in pieces],
            "reads_ahead": ahead,
        }
        tokens = hash_tensors((str(index), ids) for index, ids in enumerate(pieces))
        part = InspectedModel(card, found, _excerpts(subject, pieces), tokens)
        part.details = details(subject, pieces, part.find_wanted(job.measures))
    return part


def _pieces(given: TextInput, subject: LoadedModel, weights_only: bool) -> Pieces:
    """Return what the model reads: nothing where only its weights are looked at."""
    if given.is_empty:
        return Pieces(each=[])
    unread = weights_only and subject.tokenizer is None and not given.ids
    pieces = (placeholder if unread else sequences)(given, subject)
    if given.samples != AUTO:
        return Pieces(each=pieces)
    return divide(pieces, ENOUGH * getattr(subject.config, "hidden_size", 0))


def _excerpts(subject: LoadedModel, pieces: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    tokenizer = subject.tokenizer
    return [
        {
            "index": index,
            "tokens": len(ids),
            # A cut may go through a character.
            "excerpt": ""
            if tokenizer is None
            else str(tokenizer.decode(ids[:200]))[:200].strip("\ufffd"),
        }
        for index, ids in enumerate(pieces)
    ]
