"""A shortcut of larger weight: what is measured on stacks whose answer is known."""

import numpy as np
import pytest
import torch

from layerlab.model.build import build
from layerlab.studies.pangu23.theory.scaled_identity import (
    LARGER,
    MOTION,
    NOISE,
    PLAIN,
    SCALES,
    compare_weights,
    judge_idle,
    judge_noisy,
    judge_prevents,
    streams,
    weigh_shortcuts,
)

SIZES = {"width": 16, "layers": 3, "heads": 2, "vocab": 64, "context": 32}
IDS = torch.arange(32) % 7


def silent():
    """A model whose sublayers write nothing: the shortcut is all there is."""
    model = build("scaled-identity", **SIZES)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.output.weight.zero_()
            layer.ffn.down.weight.zero_()
    return model


def test_without_sublayers_features_and_noise_grow_alike():
    model = silent()
    noise = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    residual, rest = compare_weights(model, 2.0, IDS, noise)
    assert torch.allclose(residual, residual[0].expand(4))
    assert rest[NOISE].item() == pytest.approx(1, abs=1e-4)
    assert rest[MOTION].item() == pytest.approx(0, abs=1e-6)
    start = model.get_input_embeddings()(IDS).detach()
    found = streams(model, start)
    assert torch.allclose(found[-1], 8 * start) and len(found) == 4


def test_a_weight_of_one_is_the_plain_block():
    ours, plain = (build(name, **SIZES, seed=1) for name in ("scaled-identity", "llama"))
    weigh_shortcuts(ours, 1.0)
    start = plain.get_input_embeddings()(IDS).detach()
    assert torch.allclose(streams(ours, start)[-1], streams(plain, start)[-1])


def planted(larger, plain=1.0):
    values = np.full((6, len(SCALES), 2), 0.5)
    values += np.random.default_rng(0).normal(0, 1e-3, values.shape)
    values[:, LARGER] *= larger
    values[:, PLAIN] *= plain
    return values


def test_words_follow_the_numbers():
    assert judge_prevents(planted(1.5), 0).word == "holds"
    assert judge_prevents(planted(0.5), 0).word == "fails"
    assert judge_noisy(planted(4), 0).word == "holds" and judge_noisy(planted(1), 0).word == "fails"
    assert judge_noisy(planted(2.08), 0).word == "smaller than asked"
    assert judge_idle(planted(0.1), 0).word == "holds" and judge_idle(planted(2), 0).word == "fails"
    assert judge_idle(planted(0.9), 0).word == "smaller than asked"
