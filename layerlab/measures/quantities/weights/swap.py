"""Weights that make two checkpoints differ: a part of one put into the other, and back."""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.loading.model import LoadedModel, check_named, load_model
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.observe.architecture.parameter_layers import hearing_front, layer_of
from layerlab.observe.tracing.gradients import are_logits
from layerlab.records.layer_names import layer_name
from layerlab.system.offload import find_quantized

USE = """`layerlab inspect MODEL --against OTHER` asks for it: of a quantized model (a `.gguf` file
or a folder of GPTQ, AWQ or MLX) against that which it was made from, of a tuned model against its
base, of one checkpoint against an earlier one. Both are in memory at once, and run twice for each
layer and each place of a block; `tokens` are read of the first sequence. With `--weights` neither
is loaded, and [change](change.md) shows how each matrix differs."""
NamedWeights = Mapping[str, Tensor]
SwappedPart = tuple[str, str, list[str]]  # kind, name, names of its weights
ROWS = 256  # of logits that are widened at once
ALIKE = 0.99  # of the divergence is gone with all weights: the rest is of rounding
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class _Apart(NamedTuple):
    """Distance of predictions from those of the reference."""

    kl: float
    flips: float


def _check_other(options: Mapping[str, Any]) -> None:
    """Refuse another checkpoint that there is not, before any work."""
    check_named([options["against"]] if options["against"] is not None else [])


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read rows of all weights, by layer, and by the place of a matrix in its block.

    Source: Own.

    Raises:
        NotApplicable: no other checkpoint was named, or it has other weights or the same.
    """
    subject, tokens = context.subject, context.sequences[0][: run.options["tokens"]]
    reference = _load_reference(subject, run.options["against"])
    own, other = _list_weights(subject.model), _list_weights(reference.model)
    changed = _find_changed(own, other)
    with hearing_front(subject.model, subject.stack) as front:
        seen = _predict(subject.model, {}, tokens)
    parts = [("all", "all weights", changed), *_group(changed, subject.stack, front)]
    context.begin(1 + 2 * len(parts))
    context.step("the other checkpoint")
    true = _predict(reference.model, {}, tokens)
    rows, whole = list[Row](), _compare(true, seen).kl
    for by, name, inside in parts:
        context.step(f"{name} alone")
        swapped = seen if by == "all" else _predict(reference.model, _take(own, inside), tokens)
        alone = _compare(true, swapped)
        context.step(f"all but {name}")
        rest = _compare(true, _predict(subject.model, _take(other, inside), tokens))
        rows.append(
            {
                **{"by": by, "part": name, "kl": alone.kl, "flips": alone.flips},
                "share": alone.kl / whole if whole > 0 else nan,
                "saved": 1 - rest.kl / whole if whole > 0 else nan,
                "change": _relative_change(own, other, inside),
                "weights": sum(own[one].numel() for one in inside),
            }
        )
    run.notes["against"] = (
        f"against {reference.name}, from which {len(changed)} of {len(own)} tensors differ"
    )
    if rows[0]["saved"] < ALIKE:
        run.notes["more"] = (
            f"with all weights of {reference.name} it still predicts otherwise: the two differ in "
            "more, as in config.json, and shares are of that too"
        )
    return rows


def _list_weights(model: Any) -> NamedWeights:
    """Return the parameters, and the buffers that are saved beside them, by name."""
    saved = model.state_dict().keys()
    buffers = {name: one for name, one in model.named_buffers() if name in saved}
    return {**dict(model.named_parameters()), **buffers}


def _load_reference(subject: LoadedModel, against: str | None) -> LoadedModel:
    """Load the other checkpoint on the device and in the precision of the model."""
    if against is None:
        raise NotApplicable(
            "nothing was named to compare its weights with: type --against MODEL (in Python "
            "against=), such as the checkpoint that it was quantized or tuned from"
        )
    if subject.offloaded:
        raise NotApplicable("some weights are offloaded, and both models have to be in memory")
    dtype = str(subject.model.dtype).removeprefix("torch.")
    found = load_model(against, device=str(subject.device), dtype=dtype)
    for one in (subject, found):
        if packed := one.packed or find_quantized(one.model):
            raise NotApplicable(f"{packed} is packed, and no number that can be put elsewhere")
    return found


def _find_changed(own: NamedWeights, other: NamedWeights) -> list[str]:
    """Return the names of the weights that differ.

    Raises:
        NotApplicable: one model has a weight that the other lacks, or has in another shape, or all
            are the same.
    """
    for name in [*own, *other]:
        here, there = own.get(name), other.get(name)
        if here is None or there is None or here.shape != there.shape:
            shapes = ["none" if one is None else str(tuple(one.shape)) for one in (here, there)]
            raise NotApplicable(
                f"the two are of different architectures: {name} is {shapes[0]} here and "
                f"{shapes[1]} there"
            )
    changed = [name for name, one in own.items() if not torch.equal(one, other[name])]
    if not changed:
        kinds = {str(one.dtype).removeprefix("torch.") for one in own.values()}
        rounded = kinds & {"bfloat16", "float16"}
        if rounded:
            raise NotApplicable(
                "every weight is that of the other checkpoint, read in this precision too; type "
                "--dtype float32 for what was lost in rounding"
            )
        raise NotApplicable("every weight is that of the other checkpoint")
    return changed


def _group(names: Iterable[str], stack: Any, front: set[str]) -> Iterator[SwappedPart]:
    """Yield the weights of each layer, then those at each place of a block."""
    layers: dict[int, list[str]] = {}
    places: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_of(name, stack, front), []).append(name)
        block = name.removeprefix(f"{stack.name}.")
        inside = block.partition(".")[2] if block != name else name
        places.setdefault(_NUMBER.sub("*", inside), []).append(name)
    for number, inside_layer in sorted(layers.items()):
        behind = number == len(stack.blocks)
        yield "layer", "behind the blocks" if behind else layer_name(number), inside_layer
    for place, inside_place in places.items():
        yield "matrix", place.removesuffix(".weight"), inside_place


def _take(weights: NamedWeights, names: Iterable[str]) -> NamedWeights:
    return {name: weights[name] for name in names}


@torch.no_grad()
def _predict(model: Any, replaced: NamedWeights, tokens: Tensor) -> Tensor:
    """Return the logits of every token, with some weights replaced for this one pass.

    Raises:
        NotApplicable: it gives none.
    """
    options = {"input_ids": tokens.to(model.device)[None], "use_cache": False}
    logits = getattr(functional_call(model, dict(replaced), (), options), "logits", None)
    if not are_logits(logits, tokens):
        raise NotApplicable("it gives no logits")
    return logits[0]


def _compare(true: Tensor, seen: Tensor) -> _Apart:
    """Return the mean KL divergence from the reference, and how often the likeliest token moves.

    NaN where one of the two is.

    Unit: nats per token; a share.
    """
    kl = flips = 0.0
    for p, q in zip(true.split(ROWS), seen.to(true.device).split(ROWS), strict=True):
        log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        # What has no probability, as behind a mask, is no prediction.
        kl += float((log_p.exp() * (log_p - log_q)).masked_fill(log_p == -inf, 0.0).sum())
        flips += int((p.argmax(-1) != q.argmax(-1)).sum())
    return _Apart(kl / len(true), flips / len(true))


def _relative_change(own: NamedWeights, other: NamedWeights, names: Iterable[str]) -> float:
    apart = total = 0.0
    for name in names:
        before = other[name].detach().double()
        apart += float((own[name].detach().double() - before).square().sum())
        total += float(before.square().sum())
    return (apart / total) ** 0.5 if total > 0 else nan


MEASURES = (
    Measure(
        name="swap",
        title="Which weights make two checkpoints differ",
        unit="nats per token",
        source="Own",
        about=(
            "The weights of a part of the model are put into another checkpoint, such as the one "
            "that it was quantized or tuned from, and the predictions of that are compared with "
            "those before; then the model gets that part back from the other. The first is what "
            "the part costs alone, the second what leaving it as it was would save."
        ),
        equation=(
            "kl_g = mean_t KL(p || p with g swapped),   share_g = kl_g / kl_all,   "
            "saved_g = 1 - KL(p || all but g swapped) / kl_all"
        ),
        per=("by", "part"),
        columns={
            "kl": "KL divergence from the other checkpoint's predictions when these weights alone "
            "are the model's",
            "share": "of the KL divergence that all weights make",
            "saved": "share that is gone when these weights alone are the other checkpoint's",
            "flips": "share of tokens behind which another one becomes the likeliest",
            "change": "norm of the difference of these weights, over the norm of the other's",
            "weights": "numbers that the part has",
        },
        plot=("share", "saved"),
        roles={"weights": "size"},
        typed=("matrix",),
        better=None,
        needs=frozenset({"model"}),
        read=read,
        check=_check_other,
        **measure_options("swap"),
        default=False,
        use=USE,
    ),
)
