"""Condition numbers of each component of a block, on this text."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.measures.support.rounding_theory import Theory, theory
from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.modules import TheoryAttention, TheoryNorm
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import Hidden, Map

STEPS = 30
# Jacobians of single tokens are formed up to this width, for so many tokens.
WIDTH = 1024
SAMPLED = 4
Each = Float[Tensor, " token"]


@dataclass(frozen=True, kw_only=True)
class ComponentCondition:
    """The condition numbers of one component: componentwise of each token, the others as one."""

    componentwise: Each
    normwise: float = nan
    mixed: float = nan


def normwise(f: Map, x: Tensor, alone: bool) -> float:
    """Return ||J||_2 ||x||_2 / ||f(x)||_2, by power steps: from below, close after `STEPS`.

    Source: budzinskiy25, section 3.1.
    Unit: none.

    Args:
        alone: every token is mapped by itself, and the median over the tokens is given.
    """
    generator = torch.Generator(x.device).manual_seed(0)
    axes = (-1,) if alone else tuple(range(x.dim()))
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value = f(x)
        probe = torch.zeros_like(value, requires_grad=True)
        # J^T u is linear in u, so that its derivative in u along v is J v.
        (pulled,) = torch.autograd.grad(value, x, probe, create_graph=True)
    along = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    size = torch.zeros(())
    for _ in range(STEPS):
        along = along / along.norm(dim=axes, keepdim=True).clamp(min=1e-300)
        (pushed,) = torch.autograd.grad(pulled, probe, along, retain_graph=True)
        (along,) = torch.autograd.grad(value, x, pushed, retain_graph=True)
        size = along.norm(dim=axes).sqrt()
    x, value = x.detach(), value.detach()
    found = size * x.norm(dim=axes) / value.norm(dim=axes if alone else None)
    return float(found.median())


def mixed(f: Map, x: Hidden) -> float:
    """Return max_i (|J| |x|)_i / max_i |f_i|, the median of a few tokens; NaN for wide layers.

    Source: budzinskiy25, section 3.1.
    Unit: none.
    """
    if x.shape[-1] > WIDTH:
        return nan
    rows = x[:: -(-len(x) // SAMPLED)]
    jacobian = torch.stack([torch.func.jacrev(f)(row) for row in rows])
    return float(
        condition_numbers.mixed(jacobian, rows, torch.stack([f(row) for row in rows])).median()
    )


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row per layer and component, from the beginning of the first sequence.

    Source: Own.
    """
    rows = list[Row]()
    model, length = context.subject.model, run.options["tokens"]
    context.begin(len(context.subject.stack.blocks))

    def take(layer: Layer) -> None:
        layer_theory = theory(layer, model)
        if layer_theory is None:
            return
        context.step(f"condition numbers of layer {layer.layer}")
        for name, reason in layer_theory.refused.items():
            remark = f"{name}: not applicable to {{layers}}, because {reason}"
            run.note_layer(name, remark, layer.layer)
        for component, found in components(layer_theory):
            rows.append({"layer": layer.layer, "component": component, **_row(found)})

    context.trace(context.sequences[0][:length], take)
    return rows


def _row(found: ComponentCondition) -> Row:
    each = found.componentwise
    return {
        "componentwise": float(each.median()),
        "worst": float(each.max()),
        "normwise": found.normwise,
        "mixed": found.mixed,
    }


def components(layer_theory: Theory) -> Iterator[tuple[str, ComponentCondition]]:
    """Yield the condition numbers of the known parts of a block.

    Source: Own.
    """
    if layer_theory.attention_norm is not None:
        yield "attention norm", _norm(layer_theory.attention_norm, layer_theory.entered)
    if layer_theory.attention is not None and layer_theory.attention_input is not None:
        x, parts = layer_theory.attention_input, layer_theory.attention
        yield "scores", _scores(x, parts)
        yield "softmax", _softmax(x, parts)
        own = ComponentCondition(
            componentwise=condition_numbers.attention(x, parts),
            normwise=normwise(parts.value_of, x, alone=False),
        )
        yield "attention", own
    if layer_theory.attended is not None:
        yield "attention sum", _sum(layer_theory.entered, layer_theory.attended)
    if layer_theory.feedforward_norm is not None and layer_theory.middle is not None:
        yield "feed-forward norm", _norm(layer_theory.feedforward_norm, layer_theory.middle)
    if layer_theory.feedforward is not None and layer_theory.feedforward_input is not None:
        x, f = layer_theory.feedforward_input, layer_theory.feedforward.value
        own = ComponentCondition(
            componentwise=condition_numbers.mlp(x, layer_theory.feedforward),
            normwise=normwise(f, x, alone=True),
            mixed=mixed(f, x),
        )
        yield "feed-forward", own
    if layer_theory.middle is not None and layer_theory.left is not None:
        yield "feed-forward sum", _sum(layer_theory.middle, layer_theory.left)


def _norm(parts: TheoryNorm, x: Hidden) -> ComponentCondition:
    return ComponentCondition(
        componentwise=condition_numbers.norm(x, parts),
        normwise=normwise(parts.value, x, alone=True),
        mixed=mixed(parts.value, x),
    )


def _sum(x: Hidden, added: Hidden) -> ComponentCondition:
    """Return the condition numbers of x + a in both x and a: J = [I I], whose norm is sqrt(2)."""
    both = torch.cat([x, added], -1)
    value = x + added
    reach = (x.abs() + added.abs()).amax(-1) / value.abs().amax(-1)
    return ComponentCondition(
        componentwise=condition_numbers.residual(x, added),
        normwise=float((2**0.5 * both.norm(dim=-1) / value.norm(dim=-1)).median()),
        mixed=float(reach.median()),
    )


def _scores(x: Hidden, parts: TheoryAttention) -> ComponentCondition:
    every = [condition_numbers.scores(x, parts, head) for head in range(parts.heads)]
    return ComponentCondition(componentwise=torch.stack(every).amax(0))


def _softmax(x: Hidden, parts: TheoryAttention) -> ComponentCondition:
    """Return the numbers of the softmax of every head's rows; a token's is that of its worst head.

    (|J| |s|)_i = p_i ((1 - 2 p_i) |s_i| + p . |s|), and J is symmetric.
    """
    allowed = parts.mask(x)
    scores = torch.stack([parts.scores(x, head) for head in range(parts.heads)])
    chance = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
    size = scores.abs().masked_fill(~allowed, 0.0)
    each = (1 - 2 * chance) * size + (chance * size).sum(-1, keepdim=True)
    reach = (chance * each).amax(-1) / chance.amax(-1)
    along = torch.ones_like(chance).cumsum(-1) * allowed
    for _ in range(STEPS):
        along = along / along.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        along = chance * (along - (chance * along).sum(-1, keepdim=True))
    condition = along.norm(dim=-1) * size.norm(dim=-1) / chance.norm(dim=-1)
    return ComponentCondition(
        componentwise=each.masked_fill(~allowed, 0.0).amax(-1).amax(0),
        normwise=float(condition.amax(0).median()),
        mixed=float(reach.amax(0).median()),
    )


MEASURES = (
    Measure(
        name="condition",
        title="Condition numbers of the components",
        unit="none",
        source="budzinskiy25, section 3",
        about=(
            "By how much each part of a block can enlarge small relative errors of what it reads, "
            "at the values it reads here. A large number is what could happen to the worst entry, "
            "which is often tiny and matters little: the observed error is under Rounding."
        ),
        equation=(
            "componentwise = max_i (|J| |x|)_i / |f_i|,  normwise = ||J||_2 ||x||_2 / ||f||_2,  "
            "mixed = max_i (|J| |x|)_i / max_i |f_i|"
        ),
        per=("layer", "component"),
        columns={
            "componentwise": "the median token's, in closed form; an upper bound of attention, "
            "scores, feed-forward and LayerNorm",
            "worst": "the worst token's componentwise number",
            "normwise": "median token's; of attention over the whole sequence; none of scores",
            "mixed": "the median of a few tokens; none of attention, scores and very wide layers",
        },
        plot=("componentwise", "normwise", "mixed", "worst"),
        better="lower",
        needs=frozenset({"model"}),
        resumes=True,
        read=read,
        **measure_options("condition"),
        default=False,
    ),
)
