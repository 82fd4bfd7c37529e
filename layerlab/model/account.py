"""What a variant costs at a size, by the formulas of its parts: nothing is built."""

from dataclasses import dataclass

from layerlab import UserError
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.layer import layer_cost
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import Choice, Spec
from layerlab.variants.inventory import part


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
    """

    embedding: int
    head: int
    blocks: int
    scalars: int
    forward: int
    pointwise: int
    carry: int

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embedding + self.head + self.blocks + self.scalars

    @property
    def backward(self) -> int:
        """FLOPs of one token's backward pass."""
        return 2 * self.forward


def account(spec: Spec, shape: Shape) -> Account:
    """The account of a spec at a size.

    Source: Own; attention as in kaplan20, section 2.1, with its full square.

    Raises:
        UserError: a part says no cost.
    """
    stack, site = spec.stack, Site(shape=shape)
    edge = [("norm", stack.embedding_norm), ("norm", stack.final_norm)]
    edge.append(("residual", spec.block.residual))
    around = sum((_part(slot, choice, site) for slot, choice in edge), Cost())
    layers = [_layer(spec, Site(shape=shape, layer=layer)) for layer in range(shape.layers)]
    inside = sum(layers, Cost())
    head = linear_cost(shape.width, shape.vocab)
    rows = shape.vocab + (shape.context if stack.position == "learned" else 0)
    return Account(
        embedding=rows * shape.width,
        head=0 if stack.head == "tied" else head.weights,
        blocks=inside.weights + around.weights,
        scalars=inside.scalars + around.scalars,
        forward=inside.flops + around.flops + head.flops,
        pointwise=inside.pointwise + around.pointwise,
        carry=max(layer.carry for layer in layers),
    )


def _part(slot: str, choice: Choice, site: Site) -> Cost:
    kind = part(slot, choice.name)  # type: ignore[arg-type]
    cost = kind.cost(site.shape.width, site, **kind.given(choice.given()))
    if cost is None:
        raise UserError(f"{slot} part {choice.name!r} does not say what it costs")
    return cost


def _layer(spec: Spec, site: Site) -> Cost:
    borrows = spec.stack.sharing == "blocks" and not site.first
    cost = layer_cost(spec.block, site, part, borrows=borrows)
    if cost is None:
        raise UserError("a part of this variant does not say what it costs")
    return cost
