"""Matrices that try to break a bound, and the quantities that bounds on diversity speak of."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from layerlab.measures.support.sublayers.activations import ACTIVATIONS

DOUBLE = torch.float64
# The suprema of |activation'| that the measures multiply by, rounded up.
LIPSCHITZ = {
    one.name: (one.function, one.lipschitz)
    for one in ACTIVATIONS
    if one.name in ("relu", "tanh", "silu", "gelu", "gelu-tanh")
}
ATTENTIONS = (
    "softmax",
    "sharp",
    "causal",
    "sharp causal",
    "uniform causal",
    "two blocks",
    "identity",
    "permutation",
    "one column",
)
FEATURES = ("gaussian", "shifted", "one-hot", "nearly equal", "equal", "outlier", "huge", "tiny")
WEIGHTS = ("gaussian", "orthogonal", "one direction", "zero")


@dataclass(frozen=True)
class Draw:
    """Everything a theorem needs, drawn from a seed and from the names of adversaries."""

    seed: int
    tokens: int
    width: int
    heads: int
    attention: str
    feature: str
    weight: str

    def gaussian(self, *shape, salt=0):
        generator = torch.Generator().manual_seed(self.seed * 101 + salt)
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    def features(self, salt=0):
        noise = self.gaussian(self.tokens, self.width, salt=salt)
        return {
            "gaussian": noise,
            "shifted": noise + 1e3,
            "one-hot": torch.eye(self.tokens, self.width, dtype=DOUBLE),
            "nearly equal": 1 + 1e-6 * noise,
            "equal": noise[:1].expand_as(noise),
            "outlier": torch.where(noise == noise.max(), 1e4, noise),
            "huge": 1e6 * noise,
            "tiny": 1e-6 * noise,
        }[self.feature]

    def weights(self, rows, columns, salt):
        noise = self.gaussian(rows, columns, salt=salt)
        if self.weight == "orthogonal":
            left, _, right = torch.linalg.svd(noise, full_matrices=False)
            return left @ right
        if self.weight == "one direction":
            return noise[:, :1] * noise[:1]
        return noise if self.weight == "gaussian" else torch.zeros_like(noise)

    def attentions(self, salt=0):
        return torch.stack([self.matrix(salt + head) for head in range(self.heads)])

    def matrix(self, salt):
        n = self.tokens
        scores = self.gaussian(n, n, salt=salt + 7) * (30 if "sharp" in self.attention else 1)
        if self.attention == "uniform causal":
            scores = torch.zeros_like(scores)
        if "causal" in self.attention:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        if self.attention == "two blocks":
            return torch.eye(n, dtype=DOUBLE)[(torch.arange(n) >= n // 2).long() * (n // 2)]
        if self.attention == "identity":
            return torch.eye(n, dtype=DOUBLE)
        if self.attention == "permutation":
            return torch.eye(n, dtype=DOUBLE)[scores[0].argsort()]
        if self.attention == "one column":
            return torch.eye(n, dtype=DOUBLE)[torch.zeros(n, dtype=torch.long)]
        return torch.softmax(scores, -1)

    def values(self, salt=20):
        return torch.stack([self.weights(self.width, 3, salt + head) for head in range(self.heads)])

    def output(self, salt=40):
        return self.weights(3 * self.heads, self.width, salt)


draws = st.builds(
    Draw,
    seed=st.integers(0, 10**6),
    tokens=st.integers(2, 12),
    width=st.integers(1, 6),
    heads=st.integers(1, 4),
    attention=st.sampled_from(ATTENTIONS),
    feature=st.sampled_from(FEATURES),
    weight=st.sampled_from(WEIGHTS),
)
activations = st.sampled_from(sorted(LIPSCHITZ))


def spectral(m):
    """The largest singular value of a matrix."""
    return torch.linalg.matrix_norm(m, 2)


def contraction(a):
    """sqrt(lambda), lambda the largest eigenvalue of A^T (I - e e^T) A."""
    return spectral(a - a.mean(-2, keepdim=True))


def msa(z, attentions, values, output):
    return torch.cat([a @ z @ v for a, v in zip(attentions, values, strict=True)], -1) @ output


def msa_factor(attentions, values, output):
    """sqrt(lambda H) s v1, with the largest lambda and s over heads."""
    heads = len(attentions)
    return heads**0.5 * contraction(attentions).max() * spectral(values).max() * spectral(output)


def mlp(z, inside, outside, activation):
    return activation(z @ inside) @ outside


def holds(left, right, *parts):
    """left <= right up to the rounding of a product of `parts`.

    A product of matrices rounds by at most (sum of inner lengths) * eps times the product of their
    Frobenius norms; 64 covers additions, the activation and the mean.
    """
    size = torch.stack([torch.linalg.vector_norm(part) for part in parts]).prod()
    terms = sum(max(part.shape) for part in parts)
    return left <= right + 64 * terms * torch.finfo(DOUBLE).eps * (size + right)


def seen(model, path, run):
    """What the module at `path` received and gave, as matrices of one sequence."""
    caught = {}

    def keep(module, args, kwargs, output):
        entered = args[0] if args else kwargs["hidden_states"]
        left = output[0] if isinstance(output, tuple) else output
        caught[path] = entered[0], left[0]

    handle = model.get_submodule(path).register_forward_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            result = run()
    finally:
        handle.remove()
    return *caught[path], result
