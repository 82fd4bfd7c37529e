"""Dose and response: planted slopes, what a norm takes away, trained models left as they were."""

import numpy as np
import pytest
import torch

from layerlab.studies.excerpt import patient, tokens_of
from layerlab.studies.mlp_lipschitz import (
    BESIDE,
    DOSES,
    NORMED,
    PLAIN,
    layer,
    response,
    scaled,
    slows,
    stack,
    trained,
)
from layerlab.studies.runner import study
from layerlab.studies.work import Draw


def draw(count=3):
    return Draw(count=count, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5])
def test_a_planted_power_of_the_dose_is_found_and_judged(power):
    planted = np.tile(np.array(DOSES) ** power, (6, 1))
    assert response(planted, DOSES) == pytest.approx([power * np.log10(2)] * 6)
    parts = {(PLAIN, False): {"residual": planted}}
    assert slows(parts, [*parts], "x.", 0).word == ("holds" if power > 0 else "fails")


def test_what_does_not_change_is_0_up_to_rounding():
    parts = {(PLAIN, False): {"residual": np.tile(np.full(5, 0.2), (6, 1)) * (1 + 1e-15)}}
    found = slows(parts, [*parts], "x.", 0)
    assert found.word == "fails" and "0 up to rounding, without a mask" in found.said
    assert "above 0" in found.said


def test_what_saturates_is_judged_on_both_sides_of_its_own_size():
    flat = np.array([0.5, 0.7, 0.9, 0.9, 0.9])
    rising = np.array([0.5, 0.7, 0.9, 0.92, 0.93])

    def models(*last):
        rows = {"pre-norm": rising, "post-norm": rising, "llama": np.array(last)}
        return {name: np.tile(one, (6, 1)) for name, one in rows.items()}

    found = trained(models(*rising), 0)
    assert found.word == "holds" and "It saturates" in found.said
    assert found.number == pytest.approx(np.log10(0.93 / 0.9) / 2, rel=0.1)
    # Over all doses it has a slope; from its own size on it has none.
    assert trained(models(*flat), 0).word == "not decided"


def test_behind_a_norm_the_size_of_the_feedforward_is_forgotten():
    found = stack(draw(), NORMED, causal=True)["residual"]
    assert torch.allclose(found, found[:, :1].expand_as(found), rtol=1e-9)
    assert not torch.allclose(*stack(draw(), PLAIN, causal=True)["residual"][:, [0, -1]].T)


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_feedforward_its_skip_leaves_attention_alone(causal):
    stream = draw().normal(5, 4)
    eye = torch.eye(4, dtype=torch.float64)
    matrices = {"form": 0 * eye, "value": eye, "inner": eye, "outer": eye}
    left = layer(stream, matrices, dose=0.0, kind=BESIDE, causal=causal)
    normed = stream / stream.square().mean(-1, keepdim=True).sqrt()
    last = normed.mean(1) if not causal else normed.cumsum(1)[:, -1] / 5
    assert torch.allclose(left[:, -1], last)
    assert torch.equal(layer(stream, matrices, dose=0.0, kind=PLAIN, causal=causal), 0 * left)


def test_the_constant_is_what_the_feedforward_stretches_at_most():
    found = stack(draw(), PLAIN, causal=False)
    # Entries of variance 2 / 16 and 1 / 64: near (sqrt(16) + sqrt(64)) sqrt(2 / 16) times 1.5.
    assert 3 < found["lipschitz"].median() < 9


@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "llama"])
def test_a_trained_model_is_left_as_it_was(name):
    ids = tokens_of(name)[None, :16]
    with torch.no_grad():
        before = patient(name).model(ids).logits
        found = scaled(draw(2), name)["residual"]
        assert torch.equal(before, patient(name).model(ids).logits)
    assert found.shape == (2, 5) and len(found.unique()) == found.numel()


def test_the_fast_run_says_what_the_full_one_does():
    found = study("mlp-lipschitz", fast=True, progress=False, threads=1)
    words = [verdict["word"] for verdict in found.verdicts]
    assert words == ["holds", "fails", "fails", "fails", "holds"]
    assert found.number == pytest.approx(0.56, abs=0.05)
