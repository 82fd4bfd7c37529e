"""Rounding errors in the gradients of a training step, by layer."""

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from torch import Tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row, refuse_offloaded
from layerlab.measures.questions import check_formats
from layerlab.measures.support.emulated_reruns import formats, forward
from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic, modes
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.observe.architecture.parameter_layers import hearing_front, layer_of
from layerlab.records.layer_names import EMBEDDING
from layerlab.system.torch_settings import parameter_gradients

Gradients = Mapping[str, Tensor]


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row per format and layer, for the loss of the beginning of the first sequence.

    Source: Own.

    Raises:
        NotApplicable: the model's code has no gradient, or it gives no logits.
    """
    model, stack = context.subject.model, context.subject.stack
    tokens, names = context.sequences[0][: run.options["tokens"]], formats(run)
    ahead = context.subject.reads_ahead
    if ahead:
        run.notes["loss"] = "the loss is of each token itself, as logits have seen the next one"
    context.begin(1 + sum(len(modes(name)) for name in names))
    context.step("float64 gradients")
    with hearing_front(model, stack) as front:
        true = _gradients(Emulation(model, exact(model.dtype)), tokens, ahead=ahead)
    layers = {one: layer_of(one, stack, front) for one in true}
    rows = list[Row]()
    for name in names:
        seen = {}
        for mode in modes(name):
            context.step(f"gradients in {name}, {mode}")
            seen[mode] = _gradients(
                Emulation(model, make_arithmetic(name, mode)), tokens, ahead=ahead
            )
        for layer in range(EMBEDDING, len(stack.blocks) + 1):
            of = [one for one, own in layers.items() if own == layer]
            if of:
                rows.append({"format": name, "layer": layer, **_row(true, seen, of)})
        if any(not isfinite(row["error"]) for row in rows if row["format"] == name):
            run.notes[name] = f"{name}: some gradients are not finite"
    return rows


def _gradients(run: Emulation, tokens: Tensor, *, ahead: bool) -> Gradients:
    """Return the gradients of the mean loss with respect to all parameters.

    A model's own loss may be another: of the token at hand, or with what balances its experts.

    Args:
        ahead: whether each position is to predict its own token, and not the next one.
    """
    # Late: transformers takes a second to load its losses.
    from transformers.loss.loss_utils import ForCausalLMLoss

    model: Any = run.model
    try:
        with parameter_gradients(model, wanted=True), run.running(backward=True):
            logits = forward(model, tokens).logits
            labels, own = tokens[None], tokens[None] if ahead else None
            ForCausalLMLoss(logits, labels, logits.shape[-1], shift_labels=own).backward()
    except (UserError, RuntimeError, ValueError, AssertionError) as reason:
        raise NotApplicable(f"its gradients cannot be computed: {reason}") from reason
    return run.gradients


def _row(true: Gradients, seen: Mapping[str, Gradients], names: list[str]) -> Row:
    exact_size = _size({name: true[name] for name in names})
    found: Row = {"norm": exact_size, "autocast": nan}
    for mode in seen:
        apart = {name: seen[mode][name].double() - true[name].double() for name in names}
        column = "error" if mode == "as-run" else mode
        found[column] = _size(apart) / exact_size if exact_size > 0 else nan
    inner = sum(
        float((seen["as-run"][name].double() * true[name].double()).sum()) for name in names
    )
    own = _size({name: seen["as-run"][name] for name in names})
    found["cosine"] = inner / (own * exact_size) if own * exact_size > 0 else nan
    return found


def _size(gradients: Gradients) -> float:
    return sum(float(one.double().square().sum()) for one in gradients.values()) ** 0.5


MEASURES = (
    Measure(
        name="gradients",
        title="Rounding error of the gradients",
        unit="none",
        source="Own",
        about=(
            "How far the gradient of each layer's parameters, of the cross-entropy of the next "
            "token, is off when forward and backward pass run in a format: as run, which is a "
            "model that was loaded in it, with every result rounded, and under autocast, which "
            "leaves parameters and residual stream in float32. "
            "Gradients that underflow become zero: then the error is 1 and the cosine has no value."
        ),
        equation="error = ||g' - g|| / ||g||,  cosine = g' . g / (||g'|| ||g||), g in float64",
        per=("layer", "format"),
        columns={
            "error": (
                "as run, over all parameters of the layer; those behind the last block, as of the "
                "final norm and an untied head, count as one layer more"
            ),
            "flat": "with every result rounded to the format",
            "autocast": "under torch.autocast, as in training in bf16; of bf16 and fp16 alone",
            "cosine": "between both gradients, as run",
            "norm": "norm of the true gradient",
        },
        plot=("error", "flat", "autocast", "cosine", "norm"),
        better="lower",
        needs=frozenset({"model"}),
        resumes=True,
        applies=refuse_offloaded,
        read=read,
        check=check_formats,
        **measure_options("gradients"),
        default=False,
    ),
)
