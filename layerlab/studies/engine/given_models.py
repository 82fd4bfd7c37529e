"""Models that a user names for a study, in place of the built-in ones, and the text they read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.known_names import VARIANTS, refuse_models, unknown_variant
from layerlab.loading.options import check_device, check_dtype, is_random
from layerlab.loading.text_input import TextInput, read_text, sample
from layerlab.model.preset import presets
from layerlab.studies.engine.scale import short
from layerlab.validation import short_repr

if TYPE_CHECKING:
    from torch import Tensor

    from layerlab.loading.model import LoadedModel
    from layerlab.studies.engine.study import Study, StudyVerdict


# Passages that a model reads before a study, and the tokens of each where the study says none.
TRIED, TOKENS = 8, 64


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenModel:
    """A model and all tokens of the text that it reads.

    Attributes:
        device: as the user named it; None is where models are loaded otherwise.
        dtype: as the user named it; None is as its weights are stored.
    """

    subject: "LoadedModel"
    tokens: "Tensor"
    text: TextInput
    device: str | None = None
    dtype: str | None = None

    @property
    def source(self) -> str:
        """Return what a sentence calls the text."""
        return "the built-in text" if self.text.source == sample().source else self.text.source

    @property
    def parameters(self) -> int:
        return int(self.subject.model.num_parameters())

    def sum_of_rows(self, layers: int) -> float:
        """Return the most that a row of the product of so many layers' attention sums to."""
        import torch  # late: the list of studies needs none

        return 1 + max(1e-4, layers * torch.finfo(self.subject.model.dtype).eps)

    def rounding(self, keys: int) -> float:
        """Return how far rounding may move what attention to so many tokens gives, relatively."""
        from layerlab.measures.support.sublayers.sublayer_forms import rounding

        one = self.subject
        return rounding(one.model.dtype, 2 * one.config.hidden_size + keys)

    @cached_property
    def state(self) -> list[str | None]:
        """Return what a study's numbers depend on: weights and all else that tells models apart."""
        # Late: the list of studies needs no torch.
        from layerlab.evaluation.harness.cache import describe_settings, hash_code
        from layerlab.loading.weights.hash import hash_settings, hash_tokenizer, weights_hash

        one = self.subject
        return [
            weights_hash(one.folder, one.model),
            hash_settings(one.model.config),
            hash_tokenizer(one.tokenizer),
            describe_settings(one.tokenizer),
            self.text.hash,
            self.device,
            # The files of a model may be read in another precision than the last time.
            str(one.model.dtype),
            one.model.config._attn_implementation,
            hash_code(one.model),
            hash_code(one.tokenizer),
            # Whoever holds a model may have changed it.
            *(self._describe_held() if one.folder is None else []),
        ]

    def _describe_held(self) -> list[str]:
        from layerlab.evaluation.harness.model_state import describe_state
        from layerlab.loading.trial import try_model

        return [*describe_state(self.subject.model), str(try_model(self.subject.model))]


def load_given(
    study: "Study",
    options: Mapping[str, Any],
    *,
    model: Any = None,
    tokenizer: Any = None,
    text: Any = None,
    device: str | None = None,
    dtype: str | None = None,
) -> dict[str, GivenModel]:
    """Load the models that a user named for a study, as `layerlab inspect` does; by their names.

    With a text, a device or a precision alone they are the study's own.

    Raises:
        UserError: the study takes none, or another number of them; a model or the text cannot be
            read; the text or what a model can read is shorter than the study's passages.
    """
    if model is None and text is None and device is None and dtype is None:
        return {}
    if not study.models:
        raise refuse_models(study.name)
    # Late: they need transformers.
    from layerlab.loading.checkpoint_series import expand_runs
    from layerlab.loading.model import check_named
    from layerlab.loading.names import label_models, list_models

    named = list(study.models) if model is None else list_models(model)
    # The checkpoints of a run stand in their own order, and roles in that of the user.
    named = named if study.roles else expand_runs(named)
    if study.roles and len(named) != len(study.roles):
        raise UserError(
            f"study {study.name} compares {len(study.roles)} models, first {study.roles[0]}, then "
            f"{study.roles[1]}, and got {len(named)}: give --model twice"
        )
    if text is not None and not study.passage:
        raise UserError(f"study {study.name} reads texts of its own; leave --text out")
    if text is not None and not isinstance(text, str | PathLike):
        raise UserError(f"text is {short_repr(text)}; expected the path of a text file, or -")
    read = read_text(None if text is None else str(text))
    check_device(device)
    check_dtype(dtype)
    check_named(one for one in named if not is_random(one))
    found = {}
    for one, name in zip(named, label_models(named), strict=True):
        loaded = _load(one, name, tokenizer, device, dtype)
        _check_weights(loaded)
        tokens = _tokens(loaded, read)
        length = _check_reads(study, options, loaded, tokens, read)
        _check_outputs(loaded, tokens, length)
        found[loaded.name] = GivenModel(
            subject=loaded, tokens=tokens, text=read, device=device, dtype=dtype
        )
    return found


def _load(
    one: Any, name: str, tokenizer: Any, device: str | None, dtype: str | None
) -> "LoadedModel":
    """Load a model, or build the one that a name with a colon behind it stands for."""
    from layerlab.loading.model import LoadedModel, load_model

    if not is_random(one):
        loaded = load_model(
            one if hasattr(one, "config") else str(one), tokenizer, device=device, dtype=dtype
        )
        loaded.name = name
        return loaded
    from layerlab.latency.candidates import build_candidate
    from layerlab.loading.weights.precision import DTYPES
    from layerlab.loading.weights.saved import tokenizer_of
    from layerlab.model.build import assemble

    found = build_candidate(one).design
    if found is None:
        raise unknown_variant(one.partition(":")[0], VARIANTS, presets())
    model = assemble(found.variant.name, found.spec, found.shape, device=device).eval()
    model = model if dtype is None else model.to(DTYPES[dtype])
    loaded_tokenizer = tokenizer_of(str(builtin.path("llama"))) if tokenizer is None else tokenizer
    value = name.replace(one, one.rstrip(":"))
    named = f"random {value}"
    return LoadedModel(name=named, source=one, model=model, tokenizer=loaded_tokenizer)


def _check_weights(loaded: "LoadedModel") -> None:
    """Refuse a model that holds NaN: the largest of some numbers, and a median, leave them out."""
    from layerlab.loading.weights.saved import check_finite

    try:
        check_finite(loaded.model)
    except UserError as error:
        raise UserError(f"{loaded.name}: {error}") from error


def _tokens(loaded: "LoadedModel", read: TextInput) -> "Tensor":
    from layerlab.loading.inputs import check_ids, tokenize

    (ids,) = tokenize(read, loaded)
    check_ids(ids, loaded, "the text")
    return ids


def _check_reads(
    study: "Study",
    options: Mapping[str, Any],
    loaded: "LoadedModel",
    tokens: "Tensor",
    read: TextInput,
) -> int:
    """Return how many tokens a study's passages have.

    Refuse a model or a text that is too short for them, or a model that it cannot look at.
    """
    if isinstance(loaded.stack, str):
        raise UserError(f"study {study.name} cannot look into {loaded.name}: {loaded.stack}")
    if study.attention and not loaded.stack.attentions:
        raise UserError(
            f"study {study.name} looks at attention, and {loaded.name} "
            f"({loaded.model.config.model_type}) has none; give a model that has attention"
        )
    if study.attention and len(loaded.stack.attentions) < study.layers:
        raise UserError(
            f"study {study.name} compares layers, {study.layers} at least, and {loaded.name} has "
            f"{len(loaded.stack.attentions)} with attention; give a deeper model"
        )
    needed = options[study.passage] if isinstance(study.passage, str) else study.passage
    if loaded.context is not None and loaded.context < needed:
        raise UserError(
            f"study {study.name} reads passages of {needed} tokens, and {loaded.name} can read "
            f"{loaded.context}; give a model that reads more"
        )
    if len(tokens) <= needed:
        raise UserError(
            f"the text ({read.source}) has {len(tokens)} tokens for {loaded.name}, and study "
            f"{study.name} cuts passages of {needed} from it: give at least {needed + 1} tokens "
            "with --text FILE"
        )
    return needed or min(TOKENS, len(tokens), loaded.context or TOKENS)


def _check_outputs(loaded: "LoadedModel", tokens: "Tensor", length: int) -> None:
    """Refuse a model that overflows on the text: what is NaN would be left out of a verdict."""
    # Late: the list of studies needs no torch.
    import torch

    from layerlab.observe.tracing.streams import read_streams
    from layerlab.records.layer_names import EMBEDDING
    from layerlab.system.hooks import temporary_hooks
    from layerlab.system.torch_settings import evaluation_mode

    assert not isinstance(loaded.stack, str), loaded.stack
    wrong: list[str] = []

    def read(layer: int, stream: "Tensor") -> None:
        if not torch.isfinite(stream).all():
            wrong.append("the embeddings" if layer == EMBEDDING else f"layer {layer}")

    def read_logits(module: Any, given: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        # Entries that no token has may be ruled out by -inf.
        if logits is not None and not torch.isfinite(logits.amax(-1)).all():
            wrong.append("the logits")

    starts = torch.linspace(0, len(tokens) - length, TRIED).long().unique()
    batch = torch.stack([tokens[start : start + length] for start in starts.tolist()])
    model = loaded.model
    with evaluation_mode(model), temporary_hooks([model.register_forward_hook(read_logits)]):
        read_streams(model, loaded.stack, batch.to(loaded.device), read)
    if wrong:
        raise UserError(
            f"what {loaded.name} makes of the text is NaN or infinite, first in {wrong[0]}, and no "
            "study could judge it; expected a model whose numbers are all finite there: give "
            "another with --model, or another --dtype"
        )


def describe_scale(given: Mapping[str, GivenModel]) -> str:
    """Describe the models that a verdict is on, with their parameters.

    They do not say what they were trained on.
    """
    return " and ".join(
        f"{name} of {short(one.parameters)} parameters" for name, one in given.items()
    )


def judge_one(
    name: str, given: Mapping[str, GivenModel], *verdicts: "StudyVerdict"
) -> list["StudyVerdict"]:
    """Return verdicts that are on one model alone, which is their scale where the user named it."""
    if name not in given:
        return list(verdicts)
    scale = describe_scale({name: given[name]})
    return [replace(one, scale=scale) for one in verdicts]


def describe_unit(given: Mapping[str, GivenModel]) -> str:
    """Describe the unit of replication of what such models do with a text."""
    return f"passages of {next(iter(given.values())).source}, one model of each name"


def describe_low(given: Mapping[str, GivenModel]) -> str:
    """Describe what to do about models whose rounding may hide what they are; empty without one."""
    low = [name for name, one in given.items() if one.subject.model.dtype.itemsize < 4]
    if not low:
        return ""
    return (
        f"{' and '.join(low)} rounds to 16 bits, which may hide it: type --dtype float32, or give "
        "another model"
    )


def describe_policies(given: Mapping[str, GivenModel]) -> list[str]:
    """Describe the models whose numbers are those without the precision policy they carry."""
    # Late: it needs transformers.
    from layerlab.loading.model import describe_lacking

    return [describe_lacking(name) for name, one in given.items() if one.subject.lacks_policy]


def describe_settings(given: Mapping[str, GivenModel]) -> dict[str, str]:
    """Return the models, the text and the device for a study's settings."""
    one = next(iter(given.values()), None)
    if one is None:
        return {}
    models = "; ".join(f"{name} ({each.state[0]})" for name, each in given.items())
    found = {"models": models, "text": f"{one.text.source} ({one.text.hash})"}
    kinds = {"device": one.device, "dtype": one.dtype}
    return found | {kind: value for kind, value in kinds.items() if value is not None}
