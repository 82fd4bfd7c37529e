"""Dose and response: planted slopes, what a norm takes away, trained models left as they were."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.errors import NotApplicable
from layerlab.studies.spectral25.mlp_lipschitz import (
    BESIDE,
    DOSES,
    NORMED,
    PLAIN,
    attend,
    feed,
    find_feedforwards,
    judge_slows,
    judge_trained,
    residual_at,
    residual_by_dose,
    response,
    stack,
)
from layerlab.studies.support.passages import get_model, tokens_of
from tests.families.examination import subject
from tests.families.recipe import build
from tests.studies.small import drawing

TEXT = torch.arange(3, 27)[None]


def matrices():
    drawn = drawing(3)
    shapes = {"form": (6, 6), "value": (6, 6), "inner": (6, 9), "outer": (9, 6)}
    return {name: drawn.normal(*shape) for name, shape in shapes.items()}


def planted(residuals):
    constants = np.tile(np.array(DOSES), (6, 1))
    return {(PLAIN, False): {"residual": residuals, "lipschitz": constants}}


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5])
def test_a_planted_power_of_the_constant_is_found_and_judged(power):
    parts = planted(np.tile(np.array(DOSES) ** power, (6, 1)))
    (one,) = parts.values()
    found = response(one["residual"], one["lipschitz"])
    assert found == pytest.approx([power * np.log10(2)] * 6)
    assert judge_slows(parts, [*parts], "x.", 0).word == ("holds" if power > 0 else "fails")


def test_what_does_not_change_is_0_up_to_rounding():
    parts = planted(np.tile(np.full(5, 0.2), (6, 1)) * (1 + 1e-15))
    found = judge_slows(parts, [*parts], "x.", 0)
    assert found.word == "fails" and "0 up to rounding, without a mask" in found.said
    assert "above 0, which is slower collapse, was asked for, and no size" in found.said


def test_what_saturates_is_judged_on_both_sides_of_its_own_size():
    flat = np.array([0.5, 0.7, 0.9, 0.9, 0.9])
    rising = np.array([0.5, 0.7, 0.9, 0.92, 0.93])

    def models(*last):
        rows = {"pre-norm": rising, "post-norm": rising, "llama": np.array(last)}
        return {name: np.tile(one, (12, 1)) for name, one in rows.items()}

    found = judge_trained(models(*rising), 0)
    assert found.word == "holds" and "1.7% a doubling" in found.said
    assert found.number == pytest.approx(np.log10(0.93 / 0.9) / 2, rel=0.1)
    # Over all doses it has a slope; from its own size on it has none.
    assert judge_trained(models(*flat), 0).word == "fails"


@given(dose=st.floats(0.01, 100), size=st.floats(0.01, 100))
def test_the_dose_changes_the_constant_at_equal_output_scale(dose, size):
    mixed, weights = size * drawing(3).normal(5, 6), matrices()
    left, constant = feed(mixed, weights, dose)
    assert torch.allclose(left.norm(dim=(1, 2)), mixed.norm(dim=(1, 2)))
    # The bound holds between any two tokens, with the factor that all tokens of a draw share.
    moved = (left[:, :1] - left).norm(dim=-1)
    assert (moved <= constant[:, None] * (mixed[:, :1] - mixed).norm(dim=-1) * (1 + 1e-9)).all()
    steeper = feed(mixed, weights, 2 * dose)[1]
    assert (steeper > constant * (1 - 1e-9)).all()


@pytest.mark.parametrize("kind", [PLAIN, NORMED])
def test_a_factor_on_the_stream_leaves_attention_as_it_is(kind):
    """What made the first dose of this study one of the sharpness of attention."""
    stream, weights = drawing(3).normal(5, 6), matrices()
    once, more = (attend(x, weights, kind=kind, causal=True) for x in (stream, 8 * stream))
    assert torch.allclose(once, more)


def test_a_steeper_feedforward_is_told_from_a_flat_one():
    found = stack(drawing(3), PLAIN, causal=True)
    assert found["lipschitz"].shape == found["residual"].shape == (3, len(DOSES))
    assert not torch.allclose(*found["residual"][:, [0, -1]].T)
    assert (found["lipschitz"].diff(dim=1) > 0).all()


@pytest.mark.parametrize("causal", [True, False])
def test_scores_of_nothing_weigh_all_keys_alike(causal):
    stream = drawing(3).normal(5, 4)
    eye = torch.eye(4, dtype=torch.float64)
    left = attend(stream, {"form": 0 * eye, "value": eye}, kind=BESIDE, causal=causal)
    normed = stream / stream.square().mean(-1, keepdim=True).sqrt()
    last = normed.mean(1) if not causal else normed.cumsum(1)[:, -1] / 5
    assert torch.allclose(left[:, -1], last)


@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "llama"])
def test_a_trained_model_is_left_as_it_was(name):
    ids = tokens_of(name)[None, :16]
    with torch.no_grad():
        before = get_model(name).model(ids).logits
        found = residual_by_dose(drawing(2), name)["residual"]
        assert torch.equal(before, get_model(name).model(ids).logits)
    assert found.shape == (2, 5) and len(found.unique()) == found.numel()


# What gives each what its feed-forward adds to the stream: its own last weights, or a norm behind.
LAST = {
    "llama": ["mlp.down_proj.weight"],
    "bloom": ["mlp.dense_4h_to_h.weight", "mlp.dense_4h_to_h.bias"],
    "phi": ["mlp.fc2.weight", "mlp.fc2.bias"],
    "opt": ["fc2.weight", "fc2.bias"],
    "olmo2": ["post_feedforward_layernorm.weight"],
    "gemma2": ["post_feedforward_layernorm.weight"],
}


@pytest.mark.parametrize("family", LAST)
def test_a_dose_is_one_of_what_joins_the_stream(family):
    ids, whole = TEXT.expand(2, -1), subject(build(family))
    with torch.no_grad():
        parts = find_feedforwards(whole, ids[:1])
        found = residual_at(whole, parts, ids, 3.0)
        usual = residual_at(whole, parts, ids, 1.0)
        for block in whole.stack.blocks:
            for name in LAST[family]:
                weight = block.get_parameter(name)
                # Gemma's norms multiply by 1 + weight.
                weight.copy_(3 * weight + 2 if family == "gemma2" else 3 * weight)
        hand = residual_at(whole, parts, ids, 1.0)
    assert torch.allclose(found, hand, rtol=1e-4)
    assert not torch.allclose(found, usual, rtol=1e-3)


def test_a_feedforward_that_is_no_module_of_its_own_is_refused():
    whole = subject(build("mamba"))
    with pytest.raises(NotApplicable, match="of layer 0 cannot be scaled alone"):
        find_feedforwards(whole, TEXT)
