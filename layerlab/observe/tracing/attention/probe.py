"""Listens to a model's own attention without changing what it computes.

Modules that ask transformers' `AttentionInterface` are heard there: while the probe is open, the
interface answers with a function that calls the very implementation the model runs (so its output,
and the masks of `AttentionMaskInterface`, stay those of the model) and keeps q, k, v, mask,
scaling, softcap and sinks. The entry in use is overlaid rather than a new name registered: a new
name would need a mask function of its own and a changed configuration, and some models branch on
the name. Modules that compute attention by themselves (openai-gpt, gptj, bloom, falcon, mpt,
codegen, ...) are heard through a torch function mode that sees their softmax or their call of
`scaled_dot_product_attention`.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from layerlab.observe.architecture.structure import AttentionPart, ModelStructure, interface_of
from layerlab.observe.tracing.attention.record import AttentionRecord

# Of transformers and its Hub: kernels that form no scores, and whose mathematics is that of sdpa.
KERNELS = re.compile(r"flash_attention\w*|flex_attention|paged\|.*|\w+_paged|.*/.*")
CHECKED_ROWS = 16
# What attention is given to add to its scores.
BIASES = ("alibi", "position_bias")
_ALONE = RLock()


@dataclass(kw_only=True)
class AttentionCall:
    """One call of one attention layer, for the whole batch."""

    part: AttentionPart
    scaling: float = 1.0
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    causal: bool = True
    window: int | None = None
    scores: Tensor | None = None
    biased: bool = False
    output: Tensor | None = None

    def record(self) -> AttentionRecord:
        """Return the record of the first sequence of the batch."""
        return AttentionRecord(
            layer=self.part.block,
            name=self.part.name,
            scaling=self.scaling,
            query=_first(self.query),
            key=_first(self.key),
            value=_first(self.value),
            softcap=self.softcap,
            bias=_join(_first(self.mask), _first(self.bias), self.keys),
            causal=self.causal,
            window=self.window,
            sinks=self.sinks,
            scores=_first(self.scores),
            biased=self.biased,
        )

    @property
    def heads(self) -> int:
        factor = self.query if self.query is not None else self.scores
        assert factor is not None
        return factor.shape[1]

    @property
    def keys(self) -> int:
        factor = self.key if self.key is not None else self.scores
        assert factor is not None
        return factor.shape[2] if factor is self.key else factor.shape[3]

    def fault(self) -> str | None:
        """Say why this record is not what the model computed, by A v against the output; else None.

        Only the last rows of the first sequence are formed.
        """
        if self.output is None or self.value is None or self.output.dim() != 4:
            return None
        record, output = self.record(), self.output[0]
        rows = slice(max(0, record.tokens - CHECKED_ROWS), record.tokens)
        exact = torch.promote_types(output.dtype, torch.float32)
        weights, value = record.weights(rows=rows, dtype=exact), self.value[0].to(exact)
        mine, size = (
            (weights @ record.of_kv_heads(one)).transpose(0, 1) for one in (value, value.abs())
        )
        if output.shape[:2] != (record.tokens, record.heads):
            return "its output is not one row per token and head"
        theirs = output[rows].to(exact)
        # A rounded score moves a probability by u * |score|, relatively; families take the softmax
        # in float32 also where the model is float64.
        largest = record.logits(rows=rows).abs().max()
        single, own = (torch.finfo(kind).eps for kind in (torch.float32, output.dtype))
        tiny = torch.finfo(output.dtype).tiny  # numbers below are rounded as it is
        slack = (64 + 8 * largest) * single * (value.abs().max() + tiny)
        if own > single:  # what is stored between sums is rounded, term by term
            slack = slack + (4 + 4 * largest) * own * (size + tiny)
        off = (mine - theirs).abs()
        if bool((off <= slack).all()) or not bool(torch.isfinite(theirs).all()):
            return None
        gap = off.max()
        return f"softmax(q k) v differs from its output by {gap:.1e}: it is not plain attention"


def _first(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor[0]


def _join(mask: Tensor | None, bias: Tensor | None, keys: int) -> Tensor | None:
    """Join mask and position bias into one; a boolean mask stays boolean where there is no bias."""
    mask = None if mask is None else mask[..., :keys]
    if bias is None or mask is None:
        return bias if mask is None else mask
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return mask + bias


def _spy(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    name: str,
    parts: dict[int, AttentionPart],
    owners: dict[int, Callable[..., Any]],
    default: Callable[..., Any] | None,
    receive: Callable[[AttentionCall], None],
    **options: Any,
) -> Any:
    """Call the model's own attention, then report what it was given and gave."""
    own = owners.get(id(module), default)
    if own is None:  # a part of the model outside of the stack, such as an encoder of patches
        own = interface_of(module)[1]
    assert own is not None, "a module that asks for an entry without a function brings its own"
    result = own(module, query, key, value, attention_mask, *args, **options)
    if id(module) in parts:
        causal = options.get("is_causal")
        if causal is None:
            causal = getattr(module, "is_causal", True)
        # Eager attention knows no rule but its mask; the fused one is causal where it has none.
        causal = bool(causal) and name != "eager" and attention_mask is None
        scaling = options.get("scaling", args[0] if args else None)
        receive(
            AttentionCall(
                part=parts[id(module)],
                scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
                query=query,
                key=key,
                value=value,
                mask=attention_mask,
                bias=options.get("position_bias"),
                softcap=options.get("softcap"),
                sinks=_sinks(options.get("s_aux"), query),
                causal=causal,
                output=result[0],
            )
        )
    return result


def _sinks(sinks: Tensor | None, query: Tensor) -> Tensor | None:
    return None if sinks is None else sinks.detach().reshape(-1)[: query.shape[1]]


@contextmanager
def _overlaid(anatomy: ModelStructure, receive: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Put spies on the attention implementations that the model uses, until the context ends.

    Other threads wait: the implementations are those of all models.
    """
    parts = {id(part.module): part for part in anatomy.attentions if part.interface}
    uses: dict[tuple[int, str], tuple[Any, dict[int, Callable[..., Any]]]] = {}
    for part in anatomy.attentions:
        if not part.interface:
            continue
        interface, eager = interface_of(part.module)
        name = implementation(part.module)
        own = interface.get(name, eager)
        if own is not None:
            uses.setdefault((id(interface), name), (interface, {}))[1][id(part.module)] = own
    with _ALONE, ExitStack() as stack:
        for (_, name), (interface, owners) in uses.items():
            before = interface.get(name)
            spy = partial(
                _spy, name=name, parts=parts, owners=owners, default=before, receive=receive
            )
            interface[name] = spy
            stack.callback(restore_function, interface, name, before)
        yield


def restore_function(interface: Any, name: str, before: Any) -> None:
    """Put back what an interface had under a name, or nothing of its own."""
    del interface[name]
    if interface.get(name) is not before:
        interface[name] = before


def implementation(module: nn.Module) -> str:
    """Return the name under which a module asks for its attention."""
    config = getattr(module, "config", None)
    return getattr(config, "_attn_implementation", None) or "eager"


@contextmanager
def replacing_kernels(model: PreTrainedModel) -> Iterator[None]:
    """Have plain attention in the place of kernels that form no scores, until the context ends.

    Each configuration inside that of a model names its own.
    """
    plain = "sdpa" if model._supports_sdpa else "eager"
    before = [(config, config._attn_implementation) for config in _configurations(model)]
    try:
        for config, name in before:
            replaced = name and KERNELS.fullmatch(name)
            config._attn_implementation = {"": plain if replaced else name}
        yield
    finally:
        for config, name in before:
            config._attn_implementation = {"": name}


def _configurations(model: PreTrainedModel) -> list[Any]:
    """Return the configurations of a model and of its parts, the outer ones first."""
    found: dict[int, Any] = {}
    waiting = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    for config in waiting:
        if id(config) not in found:
            found[id(config)] = config
            inner = (getattr(config, name, None) for name in config.sub_configs)
            waiting += [one for one in inner if one is not None]
    return list(found.values())


class _Listener(TorchFunctionMode):
    """Hears the softmax or the fused attention of modules that compute attention themselves."""

    def __init__(self, receive: Callable[[AttentionCall], None]) -> None:
        super().__init__()
        self.receive = receive
        self.current: AttentionPart | None = None
        self.biased = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.current is not None:
            name = getattr(func, "__name__", "")
            if name in ("softmax", "_softmax") and _is_score(args[0]):
                self.receive(
                    AttentionCall(
                        part=self.current,
                        scores=_four(args[0]),
                        biased=self.biased,
                        causal=_is_causal(result),
                    )
                )
            elif name == "scaled_dot_product_attention":
                self.receive(self._hear_fused(*args, output=result, **kwargs))
        return result

    def _hear_fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        output: Tensor,
    ) -> AttentionCall:
        assert self.current is not None
        return AttentionCall(
            part=self.current,
            scaling=query.shape[-1] ** -0.5 if scale is None else scale,
            query=query,
            key=key,
            value=value,
            mask=attn_mask,
            causal=is_causal,
            output=output.transpose(1, 2),
        )


def _is_score(scores: Tensor) -> bool:
    return scores.dim() in (3, 4) and scores.shape[-1] >= scores.shape[-2] > 1


def _is_causal(weights: Tensor) -> bool:
    """Return whether no token drew on a later one, whatever number masked its scores."""
    later = weights.shape[-1] - weights.shape[-2] + 1
    return not bool(weights.triu(later).any())


def _four(scores: Tensor) -> Tensor:
    """Return scores as batch x head x token x key.

    Families without a batch axis fold it into heads.
    """
    return scores if scores.dim() == 4 else scores[None]


@contextmanager
def _listening(anatomy: ModelStructure, receive: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Listen to the modules that do not use the interface, until the context ends."""
    alone = [part for part in anatomy.attentions if not part.interface]
    if not alone:
        yield
        return
    listener = _Listener(receive)

    def begin(part: AttentionPart, module: nn.Module, args: Any, options: Any) -> None:
        listener.current = part
        given = inspect.signature(module.forward).bind_partial(*args, **options).arguments
        listener.biased = any(given.get(name) is not None for name in BIASES)

    def end(*_: Any) -> None:
        listener.current = None

    with ExitStack() as stack:
        for part in alone:
            stack.callback(
                part.module.register_forward_pre_hook(partial(begin, part), with_kwargs=True).remove
            )
            stack.callback(part.module.register_forward_hook(end).remove)
        stack.enter_context(listener)
        yield


@contextmanager
def probe(anatomy: ModelStructure, receive: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Report every attention call of a model while the context is open; leaves no trace behind."""
    with _overlaid(anatomy, receive), _listening(anatomy, receive):
        yield
