"""Cost of a part by its shape alone: nothing is built to know it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Parameters, work per token, and memory; activations kept for a backward pass are left out.

    Attributes:
        weights: parameters in matrices and convolution kernels.
        scalars: parameters in vectors and single numbers: gains, biases, mixing coefficients.
        flops: matrix products of one forward pass, per token of a full context; a multiplication
            and an addition are two, the masked half of attention is counted (as PyTorch's
            FlopCounterMode does with eager attention), and a backward pass costs twice as much.
        pointwise: what that count leaves out and grows with the width: an estimate of the
            operations of activations, mixing, convolutions and Fourier transforms, per token.
        carry: numbers per token that are kept from layer to layer beside the hidden features.
        cached: numbers per sequence that a cache keeps beside keys and values, however long it is.
    """

    weights: int = 0
    scalars: int = 0
    flops: int = 0
    pointwise: int = 0
    carry: int = 0
    cached: int = 0

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        return self.weights + self.scalars

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            weights=self.weights + other.weights,
            scalars=self.scalars + other.scalars,
            flops=self.flops + other.flops,
            pointwise=self.pointwise + other.pointwise,
            carry=self.carry + other.carry,
            cached=self.cached + other.cached,
        )


def linear_cost(inputs: int, outputs: int, *, bias: bool = False) -> Cost:
    """Return the cost of a matrix that every token passes once.

    Unit: as `Cost`.
    """
    return Cost(
        weights=inputs * outputs, scalars=outputs if bias else 0, flops=2 * inputs * outputs
    )
