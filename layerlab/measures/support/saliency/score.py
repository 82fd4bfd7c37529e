"""Saliency scores of each token, and their objective."""

import torch

from layerlab.measures.support.centring import precise
from layerlab.shapes import Hidden, Scalar, TokenVector, Vocabulary

ROUNDINGS = 4
"""In bfloat16 and float16 no token of four families was off by more, at widths of 64 and 512."""


def objective(
    logits: Vocabulary, target: int, foil: int | None = None, *, probability: bool = False
) -> Scalar:
    """Return what is differentiated: the score of a token, or its lead over a foil.

    z_target,  or  log softmax(z)_target;  with a foil  z_target - z_foil  in both cases

    Source: simonyan13, section 3; yin22, section 3.
    Unit: that of the logits, or nats.

    Example:
        >>> objective(torch.tensor([3.0, 1.0, 0.0]), 0, 1).item()
        2.0
    """
    if foil is not None:
        return logits[target] - logits[foil]
    return logits.log_softmax(0)[target] if probability else logits[target]


def absolute(gradient: Hidden) -> TokenVector:
    """Return the sum of the saliency over channels.

    The most that a change of every feature by 1 could do.

    L1_t = sum_c |g_tc|

    0 means that nothing hangs on the token at this layer.

    Source: simonyan13, section 3; pangu23, section 5.2.
    Unit: that of the target, per unit of the features.
    """
    return gradient.abs().sum(1)


def euclidean(gradient: Hidden) -> TokenVector:
    """Return the length of a token's gradient: the most that a change of length 1 could do.

    L2_t = sqrt(sum_c g_tc^2)

    Source: simonyan13, section 3.
    Unit: that of the target, per unit of the features.
    """
    return torch.linalg.vector_norm(gradient, dim=1)


def product(stream: Hidden, gradient: Hidden) -> TokenVector:
    """Return input x gradient.

    What the target would lose, to first order, were the token's features 0.

    P_t = sum_c x_tc g_tc

    Over all tokens it is the derivative of the target along the features themselves. It has a
    sign: above 0 speaks for the target. In front of a scale-invariant norm it is 0.

    Source: shrikumar16, section 2.
    Differs: it is 0 below `ROUNDINGS` eps |x g|_2, which rounding could have made of 0.
    Unit: that of the target.

    Args:
        stream: in the format that the model computes in, whose eps counts.
    """
    products = stream * gradient
    floor = ROUNDINGS * torch.finfo(stream.dtype).eps * torch.linalg.vector_norm(products, dim=1)
    total = products.sum(1)
    return total.masked_fill(total.abs() < floor, 0.0)


def alikeness(stream: Hidden) -> TokenVector:
    """Return the mean cosine of each token with the others.

    Its mean over tokens is that of `diversity`.

    cos_t = (x_t/|x_t| . sum_i x_i/|x_i| - 1) / (n - 1)

    1 means that all point the same way, 0 what random directions give. A token of zeros has no
    value.

    Source: ethayarajh19, section 3.
    Unit: none.
    """
    wide = precise(stream)
    scaled = wide / wide.abs().amax(1, keepdim=True)
    directions = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    finite = directions.isfinite().all(1)
    others = max(int(finite.sum()) - 1, 1)
    return (directions @ directions[finite].sum(0) - 1) / others
