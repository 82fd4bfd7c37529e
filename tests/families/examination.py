"""What one family shows: norms against the SVD, logits, restoration, and a reading of everything.

Models run in float32. Norms are measured in float64 on the factors that the probe recorded; the
oracle is a float64 SVD of the attention of a plain eager forward, whose entries carry the float32
rounding of one softmax: relatively (3 + 2 max |score|) 2^-24, some 1e-7 at the scores seen here.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.measures.measure import Row
from layerlab.measures.quantities.spectrum import spectrum
from layerlab.measures.runner import Readings, readings
from layerlab.observe.architecture.structure import ModelStructure
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import trace
from layerlab.plugins import resolve
from tests.families.oracle import oracle
from tests.families.recipe import IMPLEMENTATIONS, TOKENS, build

# 1e-6, and as much again for the softmax of another processor.
TOLERANCE = 2e-6


@dataclass(kw_only=True)
class Passage:
    """One forward under the trace, with one implementation of attention.

    Attributes:
        identical: whether logits with the trace, before it and after it agree in every bit.
        records: the attention layers that were heard.
        silent: the attention layers that were not, and why.
        places: the sublayers that are seen to join the stream in some block.
        refused: why the model cannot be traced.
    """

    identical: bool = True
    records: list[AttentionRecord] = field(default_factory=list)
    silent: dict[int, str] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    refused: str | None = None


@dataclass(kw_only=True)
class Examination:
    """Everything that is claimed about one family.

    Attributes:
        attentions: how many attention layers the anatomy finds.
        error: largest relative error of a norm, over layers, heads and implementations.
        reading: the same of the readings in float32, beyond what their rounded scores explain.
        source: where the matrices of the oracle came from.
    """

    family: str
    owner: str
    stack: ModelStructure | str
    passages: dict[str, Passage]
    readings: Readings
    restored: bool
    error: float | None
    reading: float
    source: str

    @property
    def attentions(self) -> int:
        return 0 if isinstance(self.stack, str) else len(self.stack.attentions)


def examine(family: str) -> Examination:
    """Trace a family in each of its implementations, then read every default measure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = IMPLEMENTATIONS.get(family, ("eager", "sdpa"))
        model = build(family, names[0]) if family in IMPLEMENTATIONS else build(family)
        names = names if model._supports_sdpa else ("eager",)
        models = {name: build(family, name) for name in names}
        passages = {name: passage(one) for name, one in models.items()}
        exact, source = norms(models[names[0]], passages[names[0]].records)
        found, restored = read(model)
    return Examination(
        family=family,
        owner=type(model).__name__,
        stack=subject(model).stack,
        passages=passages,
        readings=found,
        restored=restored,
        error=agreement(exact, passages.values()) if exact else None,
        reading=excess(exact, passages[names[0]].records, found.rows.get("spectrum", [])),
        source=source,
    )


def subject(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel(name="family", source="memory", model=model, tokenizer=None)


def tokens() -> Tensor:
    """Distinct tokens, none of them special."""
    return 10 + torch.randperm(200, generator=torch.Generator().manual_seed(1))[:TOKENS]


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens()[None], use_cache=False).logits


def passage(model: PreTrainedModel) -> Passage:
    """One forward under the trace, beside plain ones before and after it."""
    stack, found, before = subject(model).stack, Passage(), logits(model)
    if isinstance(stack, str):
        return Passage(refused=stack)

    def keep(layer: Layer) -> None:
        found.places |= {name for name, one in layer.sublayers.items() if one.branch is not None}
        found.records += [layer.attention] if layer.attention is not None else []

    with seen(model) as given:
        try:
            found.silent = trace(model, stack, [tokens()], keep).silent
        except NotApplicable as reason:
            found = Passage(refused=str(reason))
    found.records.sort(key=lambda record: record.layer)
    whole = bool(given) or found.refused is not None
    found.identical = whole and all(torch.equal(one, before) for one in (*given, logits(model)))
    return found


@contextmanager
def seen(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The logits of every forward without gradients, until the context ends."""
    given: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            given.append(output.logits)

    hook = model.register_forward_hook(keep)
    try:
        yield given
    finally:
        hook.remove()


def norms(
    eager: PreTrainedModel, records: Sequence[AttentionRecord]
) -> tuple[dict[str, Tensor], str]:
    """The largest singular value of every head of every attention layer, and of which matrices."""
    if not records:
        return {}, "none"
    matrices, source = oracle(eager, tokens(), records)
    pairs = zip(records, matrices, strict=True)
    return {r.name: torch.linalg.svdvals(m.double())[:, 0] for r, m in pairs}, source


def agreement(exact: dict[str, Tensor], passages: Iterable[Passage]) -> float:
    """The worst relative error of a norm, measured in float64, over all implementations."""
    return max(
        float((spectrum(record, dtype=torch.float64).norm / exact[record.name] - 1).abs().max())
        for one in passages
        for record in one.records
    )


def excess(
    exact: dict[str, Tensor], records: Sequence[AttentionRecord], rows: Sequence[Row]
) -> float:
    """The worst relative error of a float32 reading, less the rounding of its largest score."""
    unit, worst = torch.finfo(torch.float32).eps, 0.0
    heads = iter(rows)  # in the order of the layers; a block may have two of them
    for record in records:
        score = float(
            record.logits()[record.allowed_keys().expand(record.heads, -1, -1)].abs().max()
        )
        for number, (true, row) in enumerate(zip(exact[record.name], heads, strict=False)):
            assert (row["layer"], row["head"]) == (record.layer, record.first + number)
            worst = max(worst, abs(row["norm"] / float(true) - 1) - 2 * unit * score)
    assert next(heads, None) is None
    return worst


def read(model: PreTrainedModel) -> tuple[Readings, bool]:
    """Every default measure but rare ones, and whether the model is afterwards what it was."""
    before, plain = state(model), logits(model)
    usual = [one for one in resolve(None) if not one.rare]
    with seen(model) as given:
        found = readings(subject(model), [tokens()], usual)
    same = all(torch.equal(one, plain) for one in (*given, logits(model)))
    return found, same and equal(state(model), before)


def state(model: PreTrainedModel) -> tuple[Any, ...]:
    """All that a trace could leave behind."""
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    flags = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    entries = {name: id(entry) for name, entry in AttentionInterface().items()}
    masks = {name: id(entry) for name, entry in AttentionMaskInterface().items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return hooks, flags, modes, entries, masks, copy.deepcopy(model.config.to_dict()), weights


def equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    weights = all(torch.equal(tensor, other[-1][name]) for name, tensor in one[-1].items())
    return weights and one[:-1] == other[:-1]
