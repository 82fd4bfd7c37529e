"""What one family shows: norms against the SVD of its own attentions, logits, restoration, readings.

The oracle never passes through the probe: attentions that the model itself returns
(`output_attentions=True`, eager), or, where it returns none, the softmaxes of its plain forward.
Models run in float32; norms are measured in float64 on the factors that the probe recorded, and the
oracle's singular values are computed in float64 from float32 attentions, so what is compared differs
by the rounding of one softmax of small scores, a few times 2^-24.
"""

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from layerlab.measures.anatomy import Anatomy
from layerlab.measures.measure import Layer, NotApplicable
from layerlab.measures.reading import Readings, readings
from layerlab.measures.spectrum import spectrum
from layerlab.measures.subject import Subject
from layerlab.measures.trace import Trace, trace
from layerlab.registry import resolve
from tests.families.recipe import TOKENS, build

TOLERANCE = 1e-6


@dataclass(kw_only=True)
class Pass:
    """One implementation of attention, traced.

    Attributes:
        errors: relative error of the norm, one per head of every attention layer that was read.
        read: numbers of the attention layers that were read.
        silent: attention layers that were not, and why.
    """

    identical: bool
    errors: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    heard: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    silent: dict[int, str] = field(default_factory=dict)
    refused: str | None = None
    oracle: str = ""


@dataclass(kw_only=True)
class Examination:
    """Everything that is claimed about one family."""

    family: str
    owner: str
    passes: dict[str, Pass]
    readings: Readings
    restored: bool
    attentions: int
    blocks: int


def examine(family: str) -> Examination:
    """Trace a family in each of its implementations, and read every default measure once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        passes = {}
        model = build(family)
        own = model.config._attn_implementation
        for name in implementations(model):
            with torch.no_grad():
                model.set_attn_implementation(name)
            passes[name] = passed(model)
        model.set_attn_implementation(own)
        before = state(model)
        subject = Subject(name=family, source="memory", model=model, tokenizer=None)
        found = readings(subject, [tokens(model)], resolve(None))
        restored = same(state(model), before)
    stack = subject.stack
    known = not isinstance(stack, str)
    return Examination(
        family=family,
        owner=type(model).__name__,
        passes=passes,
        readings=found,
        restored=restored,
        attentions=len(stack.attentions) if known else 0,
        blocks=len(stack.blocks) if known else 0,
    )


def implementations(model: PreTrainedModel) -> list[str]:
    """The implementations that run on any machine and that the family accepts."""
    return ["eager", "sdpa"] if model._supports_sdpa else ["eager"]


def tokens(model: PreTrainedModel) -> Tensor:
    """Distinct token ids, none of them special."""
    return torch.randperm(200, generator=torch.Generator().manual_seed(1))[:TOKENS] + 10


def passed(model: PreTrainedModel) -> Pass:
    """One forward under the trace, beside plain forwards before and after it."""
    given = tokens(model)
    subject = Subject(name="model", source="memory", model=model, tokenizer=None)
    before, layers = logits(model, given), []
    with collected(model) as seen:
        if isinstance(subject.stack, str):
            return Pass(identical=True, refused=subject.stack)
        try:
            found = trace(model, subject.stack, [given], lambda layer: layers.append(kept(layer)))
        except NotApplicable as reason:
            return Pass(identical=True, refused=str(reason))
    after = logits(model, given)
    result = Pass(identical=all(same(one, before) for one in [*seen, after]) and bool(seen))
    fill(result, model, subject.stack, found, [one for one in layers if one is not None])
    return result


def kept(layer: Layer) -> tuple[int, set[str], str, Tensor] | None:
    ...
