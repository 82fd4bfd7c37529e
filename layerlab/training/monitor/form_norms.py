"""The spectral norm of W_k^T W_q of every head of a model, by products alone.

Its square is the largest eigenvalue of the d_h x d_h matrix (W_q W_q^T) (W_k W_k^T). Forms of all
layers are squared again and again side by side, which an accelerator does without being waited
for; it would decompose them one after another.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.measures.quantities.weights.querykey import KeyWeights, QueryWeights
from layerlab.measures.support.centring import precise
from layerlab.shapes import HeadVector

Forms = Float[Tensor, "head head_width head_width"]

SQUARINGS = 30
"""With the powers of two, what is left of the other eigenvalues is below 1e-8 of the norm."""


def squared_forms(query: QueryWeights, key: KeyWeights) -> Forms:
    """Return (W_q W_q^T) (W_k W_k^T) of every head, in float64.

    Query head h is paired with key head h // group.
    """
    wide = [precise(one) for one in (query, key)]
    queries, keys = (one @ one.mT for one in wide)
    return (queries.unflatten(0, (len(keys), -1)) @ keys[:, None]).flatten(0, 1)


def form_norms(forms: Forms) -> HeadVector:
    """Return the root of the largest eigenvalue of each form; NaN where one is not finite.

    rho(P) = lim ||P^N||_F^(1 / N)   with   N = 2^30

    Every power is divided by its norm before it is squared, and the logarithms of these norms add
    up. In the limit r equal eigenvalues, or eigenvectors at an angle, leave a factor whose N-th
    root is 1 but for 1e-8.

    Source: golub13, section 7.3.
    Unit: that of W_q times that of W_k.

    Example:
        >>> forms = squared_forms(torch.eye(2, 5)[None], 3 * torch.eye(2, 5)[None])
        >>> round(form_norms(forms).item(), 6)
        3.0
    """
    logarithm = forms.new_zeros(len(forms))
    for power in range(SQUARINGS + 1):
        size = forms.flatten(1).norm(dim=1)
        logarithm = logarithm + size.log() / 2**power
        forms = forms / torch.where(size == 0, 1.0, size)[:, None, None]
        if power < SQUARINGS:
            forms = forms @ forms
    return (logarithm / 2).exp()
