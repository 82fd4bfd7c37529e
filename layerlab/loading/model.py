"""Finds, checks, loads and describes a model.

A name is a built-in model, a folder, a GGUF file, or a Hub id; pickles are not read. A model that
does not fit into memory is spread by accelerate over what there is, disk included.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from layerlab import builtin
from layerlab.errors import NotApplicable, UserError
from layerlab.loading.batching import Batching, Side, find_batching, reads_ahead
from layerlab.loading.checkpoint_series import step
from layerlab.loading.dry_run import check_call, check_loaded, check_real_call
from layerlab.loading.folders import find_folder
from layerlab.loading.names import label, show_inside
from layerlab.loading.options import check_dtype
from layerlab.loading.weights.by_layer import check_stored_once, check_stored_tied
from layerlab.loading.weights.hash import weights_hash
from layerlab.loading.weights.precision import (
    as_stored,
    choose_device,
    fits,
    precision,
    remark_rounded,
)
from layerlab.loading.weights.saved import (
    check_plain,
    check_present,
    check_stored,
    configuration,
    summary,
    tokenizer_of,
    weights,
)
from layerlab.loading.weights.stored_tensors import read_outlines
from layerlab.loading.weights.weightless import (
    check_blocks,
    check_causal,
    check_kinds,
    check_unpacked,
    empty,
    is_quantized,
)
from layerlab.numerics.emulation.policies.policy import APPLIED, CARRIED
from layerlab.observe.architecture.effective_weights import count_parameters
from layerlab.observe.architecture.packed_weights import is_packed
from layerlab.observe.architecture.structure import (
    ModelStructure,
    anatomy,
    context_length,
    text_config,
)
from layerlab.system.locks import MODELS
from layerlab.system.logs import quiet_libraries
from layerlab.system.offload import check_held, is_offloaded, running_device
from layerlab.tokenization.load import stop_dropout

# So is a folder of the Hub's cache named, and one that it is unpacked into.
_COMMIT = re.compile("([0-9a-f]{40})(-[0-9a-f]{12})?")


@dataclass(kw_only=True)
class LoadedModel:
    """One loaded model, its tokenizer, and what a report says about it.

    Attributes:
        name: how the report calls it.
        source: where it came from: a folder, a Hub id, or "memory".
        stored: the weights are left on disk, and only measures of weights can be read.
        stack: the parts that a trace listens to, or the reason why there are none.
    """

    name: str
    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    folder: Path | None = None
    revision: str | None = None
    card: str | None = None
    stored: bool = False
    stack: ModelStructure | str = field(init=False)
    _batching: dict[Side, Batching] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.stack = anatomy(self.model)
        except NotApplicable as reason:
            self.stack = str(reason)

    @property
    def config(self) -> Any:
        return text_config(self.model)

    @property
    def context(self) -> int | None:
        """The longest input in tokens; None if unlimited."""
        return context_length(self.model)

    def batching(self, side: Side) -> Batching:
        """Return which sequences may share a batch that is filled up on a side; tried once."""
        if side not in self._batching:
            self._batching[side] = find_batching(self.model, side)
        return self._batching[side]

    @cached_property
    def reads_ahead(self) -> bool:
        """Return whether logits at a token hang on later ones, as those of an encoder do; tried."""
        return reads_ahead(self.model)

    @property
    def lacks_policy(self) -> bool:
        """Return whether the configuration carries a precision policy that was not applied."""
        carried = getattr(self.model.config, CARRIED, None) is not None
        return carried and not hasattr(self.model, APPLIED)

    @property
    def place(self) -> str:
        """The device of the weights."""
        if self.stored:
            return "disk"
        return "offloaded" if self.offloaded else str(self.model.device)

    @property
    def entries(self) -> int:
        """The number of tokens that the input embedding holds, and the head tells apart."""
        embedding: Any = self.model.get_input_embeddings()
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        table = getattr(embedding, "weight", None)
        held = int(self.config.vocab_size if table is None else table.shape[0])
        outputs = getattr(head, "out_features", held)
        return min(held, outputs) if isinstance(outputs, int) else held

    @property
    def offloaded(self) -> bool:
        """Return whether some weights are moved to the device only when needed."""
        return not self.stored and is_offloaded(self.model)

    @property
    def packed(self) -> str | None:
        """The first weight that is kept in eight bits or fewer, as quantized models keep them."""
        named = self.model.named_parameters()
        return next((name for name, one in named if is_packed(one)), None)

    @property
    def device(self) -> torch.device:
        """The device of the token ids."""
        if self.stored:
            return torch.device("cpu")
        return running_device(self.model)

    def facts(self, digest: Callable[[], str | None] | None = None) -> dict[str, Any]:
        """Return the facts of the model for the report.

        Args:
            digest: gives the hash of the weights, where it has been computed meanwhile.
        """
        config, model = self.config, self.model
        heads, width = (_size(config, name) for name in ("num_attention_heads", "hidden_size"))
        readable = not isinstance(self.stack, str)
        return {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "weights_hash": weights_hash(self.folder, self.model) if digest is None else digest(),
            "family": model.config.model_type,
            "class": type(model).__name__,
            "parameters": self._count(),
            "layers": len(self.stack.blocks) if readable else None,  # type: ignore[union-attr]
            "attention_layers": len(self.stack.attentions) if readable else 0,  # type: ignore[union-attr]
            "width": width,
            "heads": heads,
            "kv_heads": _size(config, "num_key_value_heads", heads),
            "head_width": _size(config, "head_dim", width // heads if width and heads else None),
            "softcap": _size(config, "attn_logit_softcapping"),
            "vocab": getattr(config, "vocab_size", None),
            "context": self.context,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": self.place,
            "attention": model.config._attn_implementation,
            "step": step(self.source),
            "card": self.card,
        }

    def _count(self) -> int:
        """Count the parameters: without what scales a quantized model, and without adapters."""
        held: Any = self.model
        if is_quantized(held.config):
            with torch.device("meta"):
                held = type(held)(copy.deepcopy(held.config))
        return count_parameters(held)


def load_model(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    weights_only: bool = False,
    unloaded: bool = False,
) -> LoadedModel:
    """Load the model that the user named.

    Args:
        weights_only: a model that does not fit into memory may stay on disk.
        unloaded: it stays there in any case.

    Raises:
        UserError: nothing by that name, no safe weights, not a causal language model, ...
    """
    check_dtype(dtype)
    tokenizer = stop_dropout(tokenizer, "given")
    if isinstance(model, PreTrainedModel):
        return _load(model, tokenizer, device, dtype)
    if not isinstance(model, (str, Path)):
        raise UserError(
            f"model is a {type(model).__name__}; expected a Hub id, a folder, a built-in name "
            f"({', '.join(builtin.NAMES)}) or a transformers PreTrainedModel{show_inside(model)}"
        )
    stay = {True: unloaded, False: unloaded or weights_only}
    return _load_by_name(str(model), tokenizer, device, dtype, stay)


def _size(config: Any, name: str, usual: Any = None) -> Any:
    """Return a size that a configuration names, else the usual; None of one that layers vary."""
    try:
        return getattr(config, name, None) or usual
    except Exception:  # each family has its own kind
        return None


def describe_lacking(name: str) -> str:
    """Describe what a model is whose configuration carries a precision policy.

    Example:
        >>> describe_lacking("low").split(";")[0]
        'low: it was saved with a precision policy, which is not applied here'
    """
    return (
        f"{name}: it was saved with a precision policy, which is not applied here; for the model "
        "with it, load it in Python with dtype=torch.float32, and hand over "
        "layerlab.apply_precision(model)"
    )


def check_named(models: Iterable[Any]) -> None:
    """Refuse a model that cannot be loaded, before time is spent on those before it.

    Only the configuration is read, of each name.

    Raises:
        UserError: nothing by that name, no safe weights, or not a causal language model.
    """
    for model in models:
        if isinstance(model, str | PathLike):
            with MODELS, quiet_libraries():
                folder = find_folder(str(model), with_weights=False)
                check_causal(configuration(folder), str(model))


def _load(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | None,
    dtype: str | None,
) -> LoadedModel:
    """Load a model that the caller holds; moving or casting it would change what is theirs."""
    if device is not None or dtype is not None:
        raise UserError(
            "device= and dtype= load a model; this one is loaded: call model.to(...) before"
        )
    _check_reads(model)
    check_held(model)
    _check_bias(model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(
            f"{type(model).__name__} is an encoder-decoder, which needs two texts; give "
            "its decoder as a causal language model, or another decoder"
        )
    found = LoadedModel(name=label(model), source="memory", model=model, tokenizer=tokenizer)
    if not isinstance(found.stack, str):
        check_loaded(model, found.stack.blocks)
    return found


def _check_reads(model: PreTrainedModel) -> None:
    """Refuse a model that reads no tokens, such as one of images.

    Raises:
        UserError: it is such a model.
    """
    reads = model.main_input_name == "input_ids"
    try:
        model.get_input_embeddings()
    except NotImplementedError:
        reads = False
    if not reads:
        raise UserError(
            f"{type(model).__name__} is no model of tokens: its main input is not input_ids, or it "
            "has no get_input_embeddings; expected a language model, or the part of it that is one"
        )


def _check_bias(model: PreTrainedModel) -> None:
    """Refuse a model whose attention is not the one that it was trained with.

    transformers' Falcon has its ALiBi in the mask; its eager attention adds it to the scores, too.

    Raises:
        UserError: it is such a Falcon.
    """
    config: Any = model.config
    biased = config.model_type == "falcon" and getattr(config, "alibi", False)
    if biased and config._attn_implementation == "eager":
        raise UserError(
            f"{label(model)} is a Falcon with ALiBi in eager attention, where transformers adds "
            "its ALiBi twice, and its numbers are not those of the model that was trained; load "
            "it with attn_implementation='sdpa'"
        )


def _load_by_name(
    name: str,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | None,
    dtype: str | None,
    stay: Mapping[bool, bool],
) -> LoadedModel:
    """Load a model by its name; whether it stays on disk may hang on whether there is room."""
    built_in = name in builtin.NAMES and not Path(name).is_dir()
    with MODELS, quiet_libraries():
        folder = find_folder(name, with_weights=False)
        config = configuration(folder)
        check_causal(config, name)
        check_present(device)
        if (whole := find_folder(name, with_weights=True)) != folder:  # unpacked meanwhile
            folder, config = whole, configuration(whole)
        source, outlines = str(folder), read_outlines(folder)
        bare = empty(config, source, outlines)
        quantized = is_quantized(config)
        (check_blocks if quantized else check_kinds)(bare, source, outlines)
        check_stored_once(bare, folder, outlines)
        if device is None and not stay[True]:
            device = choose_device(bare, precision(config, dtype, outlines, "cuda"))
        kind = precision(config, dtype, outlines, device)
        room = fits(bare, kind, device)
        # On the disk a quantized weight is not the number that the model computes with.
        stored = stay[room] and not (quantized and room)
        if stored:
            check_plain(config, source)
            check_stored(bare, source, outlines)
        model = as_stored(bare, outlines) if stored else weights(source, config, device, kind, room)
        remark_rounded(model, source, {} if dtype else outlines)
        _check_bias(model)
        # transformers does not compare weights that stay on the disk.
        if not quantized and (stored or is_offloaded(model)):
            check_stored_tied(bare, folder, outlines)
        if not stored and (quantized or not check_call(bare, source)):
            check_real_call(model, source)
        if quantized:
            check_unpacked(model, source, outlines)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_of(source)
    return LoadedModel(
        name=label(name),
        source=name,
        model=model,
        tokenizer=tokenizer,
        folder=folder,
        revision=commit[1] if (commit := _COMMIT.fullmatch(folder.name)) else None,
        card=summary((folder / "README.md").read_text("utf-8")) if built_in else None,
        stored=stored,
    )
