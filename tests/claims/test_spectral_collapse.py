"""Rank collapse, section 3 of spectral25 and the theorem of dong21 behind it.

Without a mask a stack of attention alone collapses doubly exponentially, as claimed. Under a causal
mask, which every GPT has, it does not: each layer halves the distance, and the theorem is violated.
"""

import math
from dataclasses import dataclass

import pytest
import torch

TOKENS, WIDTH = 32, 16
DOUBLE = torch.float64


def composite(matrix):
    """sqrt(||M||_1 ||M||_inf), which dong21 writes as a norm though it is none."""
    return math.sqrt(float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max()))


def residual(stream):
    return stream - stream.mean(0)


@dataclass
class Step:
    """What one layer did, and the two constants of the theorem."""

    before: float
    after: float
    relative: float
    contraction: float
    value: float
    gamma: float
    beta: float
    spread: float
    start: float


def stack(causal, depth, seed=0, scale=0.3, skip=False, feedforward=False):
    """Layers with random weights, attention alone unless told otherwise, and what each did."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=draw, dtype=DOUBLE)

    stream, steps = scale * random(TOKENS, WIDTH), []
    past = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    for _ in range(depth):
        bilinear = random(WIDTH, WIDTH) @ random(WIDTH, WIDTH).T / WIDTH
        value = torch.linalg.qr(random(WIDTH, WIDTH))[0]
        scores = stream @ bilinear @ stream.T / math.sqrt(WIDTH)
        matrix = torch.softmax(scores.masked_fill(~past, -torch.inf) if causal else scores, -1)
        rest = residual(stream)
        logits = rest @ bilinear @ rest.T / math.sqrt(WIDTH)
        spread = logits.amax(1) - logits.amin(1)
        pairs = (logits[:, :, None] - logits[:, None, :]).abs().sum(0).max()
        following = matrix @ stream @ value
        if feedforward:
            following = following + torch.relu(4 * following @ random(WIDTH, WIDTH) / WIDTH**0.5)
        if skip:
            following = following + stream
        steps.append(
            Step(
                before=float(rest.norm()),
                after=float(residual(following).norm()),
                relative=float(residual(following).norm() / following.norm()),
                contraction=float(torch.linalg.matrix_norm(residual(matrix), 2)),
                value=float(torch.linalg.matrix_norm(value, 2)),
                gamma=float((spread.sum() / pairs).sqrt()),
                beta=float(torch.linalg.matrix_norm(bilinear, 1)) * composite(value),
                spread=float(spread.max()),
                start=composite(rest),
            )
        )
        stream = following
    return steps


def theorem(steps, depth):
    """log of c^((3^L - 1) / 2) ||res(X)||^(3^L), Theorem 2.2 of dong21."""
    power = 3**depth
    return (power - 1) / 2 * math.log(constant(steps, depth)) + power * math.log(steps[0].start)


def constant(steps, depth):
    """c = 4 gamma beta / sqrt(d_qk)."""
    first = steps[:depth]
    largest = 4 * max(step.gamma for step in first) * max(step.beta for step in first)
    return largest / math.sqrt(WIDTH)


def speaks(steps, depth):
    """Decay is promised where c ||res(X)||^2 < 1, if no D is above 1.256."""
    decays = constant(steps, depth) * steps[0].start ** 2 < 1
    return decays and all(step.spread <= 1.256 for step in steps[:depth])


@pytest.mark.parametrize("seed", range(3))
def test_without_a_mask_the_collapse_is_doubly_exponential(seed):
    # The residual of a layer is of third order in that of the layer before; float64 ends it soon.
    first, second, third = stack(causal=False, depth=3, seed=seed)
    assert third.relative < 1e-4
    slope = math.log(second.after / second.before) / math.log(first.after / first.before)
    assert second.after / second.before < (first.after / first.before) ** 1.5
    assert slope > 1.5


@pytest.mark.parametrize("seed", range(3))
def test_refuted_under_a_causal_mask_the_collapse_is_a_factor_of_one_half_per_layer(seed):
    # As rows become equal, A becomes the Cesaro matrix, whose eigenvalues are 1, 1/2, 1/3, ...
    steps = stack(causal=True, depth=24, seed=seed)
    ratios = [step.after / step.before for step in steps[-6:]]
    assert all(0.45 < ratio < 0.55 for ratio in ratios)
    assert steps[5].relative > 1e-3


@pytest.mark.parametrize("causal", [True, False])
def test_contraction_bounds_every_layer_with_and_without_a_mask(causal):
    for step in stack(causal, depth=12):
        floor = 64 * torch.finfo(DOUBLE).eps
        assert step.after <= step.contraction * step.value * step.before * (1 + 1e-12) + floor


# Features this small satisfy the theorem's condition from the first layer on.
SMALL = 0.005


@pytest.mark.parametrize("seed", range(3))
def test_the_theorem_holds_without_a_mask(seed):
    steps = stack(causal=False, depth=3, seed=seed, scale=SMALL)
    checked = 0
    for depth in (1, 2):
        if speaks(steps, depth) and steps[depth].start > 1e-12:
            assert math.log(steps[depth].start) <= theorem(steps, depth)
            checked += 1
    assert checked


@pytest.mark.parametrize("seed", range(3))
def test_refuted_under_a_causal_mask_the_theorem_is_violated(seed):
    # The residual about the mean is at most twice the one that dong21 minimizes.
    depth = 5
    steps = stack(causal=True, depth=depth + 1, seed=seed, scale=SMALL)
    assert speaks(steps, depth)
    assert math.log(steps[depth].start / 2) > theorem(steps, depth) + math.log(1e6)


@pytest.mark.parametrize("causal", [True, False])
def test_skip_connections_prevent_the_collapse(causal):
    alone = stack(causal, depth=12)[-1].relative
    skipped = stack(causal, depth=12, skip=True)[-1].relative
    assert alone < 0.05
    assert skipped > 10 * alone


@pytest.mark.parametrize("seed", range(3))
def test_refuted_a_random_relu_feedforward_does_not_slow_the_collapse_down(seed):
    # It feeds what tokens have in common as well, and that grows faster than what they differ in.
    for causal in (True, False):
        alone = stack(causal, depth=12, seed=seed)[-1].relative
        assert stack(causal, depth=12, seed=seed, feedforward=True)[-1].relative < 4 * alone
