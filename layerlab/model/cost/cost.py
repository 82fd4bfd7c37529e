"""Cost of a variant at a size, by the formulas of its parts: nothing is built.

Where a part from outside has no formula, a model on the meta device is counted instead.
"""

from dataclasses import dataclass, replace
from functools import cache

from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.layer import Find, count_sublayers, layer_cost
from layerlab.blocks.part import Slot
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import Choice, Spec
from layerlab.variants.registry import part


@dataclass(frozen=True, kw_only=True)
class Account:
    """Parameters, and matrix products per token of a full context.

    Attributes:
        embedding: parameters that turn tokens and positions into features.
        head: those of the head; 0 where it is tied to the embedding.
        blocks: matrices and kernels of the layers.
        scalars: gains, biases and mixing coefficients of layers, norms and stack.
        forward: FLOPs of one token's forward pass, as PyTorch's FlopCounterMode counts them.
        pointwise: an estimate of the operations that this count leaves out.
        carry: numbers per token that travel from layer to layer beside the hidden features.
        cached: numbers per sequence that a cache keeps beside keys and values, in all layers.
        counted: whether this was counted on a model without memory, since a part says no cost;
            pointwise operations are then unknown, and 0.
    """

    embedding: int
    head: int
    blocks: int
    scalars: int
    forward: int
    pointwise: int
    carry: int
    cached: int
    counted: bool = False

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        return self.embedding + self.head + self.blocks + self.scalars

    @property
    def backward(self) -> int:
        """Return the FLOPs of one token's backward pass."""
        return 2 * self.forward


def account(spec: Spec, shape: Shape) -> Account:
    """Return the account of a spec at a size.

    Source: Own; attention as in kaplan20, section 2.1, with its full square.
    """
    find = cache(part)
    site = Site(shape=shape, sublayers=count_sublayers(spec.block, shape, find))
    around = _around(spec, site, find)
    layers = [_layer(spec, replace(site, layer=layer), find) for layer in range(shape.layers)]
    inside = [one for one in layers if one is not None]
    if around is None or len(inside) < len(layers):
        from layerlab.model.cost.measured_cost import (
            count_operations,  # brings transformers, which formulas do without
        )

        return Account(**count_operations(spec, shape), counted=True)
    return _sum(spec, shape, around, inside)


def _sum(spec: Spec, shape: Shape, around: Cost, layers: list[Cost]) -> Account:
    inside, head = sum(layers, Cost()), linear_cost(shape.width, shape.vocab)
    rows = shape.vocab + (shape.context if spec.stack.position == "learned" else 0)
    return Account(
        embedding=rows * shape.width,
        head=0 if spec.stack.head == "tied" else head.weights,
        blocks=inside.weights + around.weights,
        scalars=inside.scalars + around.scalars,
        forward=inside.flops + around.flops + head.flops,
        pointwise=inside.pointwise + around.pointwise,
        carry=max(layer.carry for layer in layers),
        cached=inside.cached,
    )


def _around(spec: Spec, site: Site, find: Find) -> Cost | None:
    """Return the cost of what stands before and after the layers; None without a formula."""
    edge: list[tuple[Slot, Choice]] = [
        ("norm", spec.stack.embedding_norm),
        ("norm", spec.stack.final_norm),
        ("residual", spec.block.residual),
    ]
    total = Cost()
    for slot, choice in edge:
        kind = find(slot, choice.name)
        cost = kind.cost(site.shape.width, site, **kind.given(choice.given()))
        if cost is None:
            return None
        total += cost
    return total


def _layer(spec: Spec, site: Site, find: Find) -> Cost | None:
    borrows = spec.stack.sharing == "blocks" and not site.first
    return layer_cost(spec.block, site, find, borrows=borrows)
