"""DyT and Derf: their formulas, their starts, and what the bound on features means."""

import pytest
import torch

from layerlab.blocks.shape import Site
from layerlab.variants.norm.dyt import Squash, first_alpha
from tests.model.small import shaken, small, tokens
from tests.variants.option import TIGHT

SITE = Site(shape=small("llama").config.shape(), layer=0, role="attention")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_it_is_the_formula(form):
    norm = Squash(48, SITE, form=form).double()
    x, gain, bias = random(2, 5, 48) * 4, random(48), random(1, 48)[0].roll(1)
    state = {"weight": gain, "bias": bias, "alpha": torch.tensor([0.7])}
    norm.load_state_dict(state | ({"shift": torch.tensor([0.3])} if form == "erf" else {}))
    alpha, shift = float(torch.tensor(0.7)), float(torch.tensor(0.3))  # as float32 has them
    function = torch.tanh if form == "tanh" else lambda y: torch.erf(y + shift)
    torch.testing.assert_close(norm(x), gain * function(alpha * x) + bias, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_features_are_bounded_by_the_gain_however_large(form):
    norm = Squash(48, SITE, form=form, bias=False)
    assert norm(random(3, 48).float() * 1e30).abs().max() == 1.0


def test_alpha_starts_smaller_in_wider_models_and_larger_before_attention():
    # LLaMA 7B, 13B and 70B have widths of 4096, 5120 and 8192.
    found = [first_alpha(width, "tanh") for width in (256, 1024, 2048, 4096, 5120, 8192)]
    assert found == sorted(found, reverse=True)
    assert all(attention >= other for attention, other in found)
    assert found[3:] == [(0.8, 0.2), (0.6, 0.15), (0.2, 0.05)]


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_the_model_starts_with_these_values(name):
    model = small(name, alpha_attention=0.75, alpha_other=0.25)
    layer = model.model.layers[1]
    assert layer.attention_norm.alpha.item() == 0.75
    assert layer.ffn_norm.alpha.item() == model.model.norm.alpha.item() == 0.25
    assert model.model.embedding_norm.scale.item() == pytest.approx(48**0.5, rel=1e-6)
    default = small(name).model.layers[0].attention_norm
    assert default.alpha.item() == first_alpha(48, default.form)[0]
    assert default.weight.min().item() == 1.0
    assert default.bias.max().item() == 0.0


def test_no_norm_is_left():
    for name in ("dyt", "derf"):
        norms = {
            type(one).__name__ for one in small(name).modules() if "Norm" in type(one).__name__
        }
        assert norms == set()


def test_an_option_of_the_norms_also_holds_before_the_head():
    model = small("dyt", form="erf", **{"norm.bias": False})
    assert model.model.norm.form == "erf"
    assert model.model.norm.bias is None
    apart = small("dyt", final_norm="rms", form="erf")
    assert type(apart.model.norm).__name__ == "RmsNorm"


def test_tanh_and_erf_are_different_models():
    one, other = (
        shaken(small("dyt", form=form, **{"norm.bias": False})) for form in ("tanh", "erf")
    )
    assert not torch.allclose(one(tokens()).logits, other(tokens()).logits)
