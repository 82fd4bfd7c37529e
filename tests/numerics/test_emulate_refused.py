"""What emulation refuses, in one line each."""

import pytest
import torch
from torch import Tensor, nn

from layerlab import UserError
from layerlab.numerics.emulate import emulate
from tests.measures.family import built
from tests.numerics.test_emulate import words


def test_a_pattern_that_matches_nothing_is_told_with_near_names() -> None:
    model = built("llama")
    with pytest.raises(UserError, match="matches nothing in this model; near it are") as caught:
        with emulate(model, "bf16", where="model.layers.*.self_atn"):
            pass
    assert "self_attn" in str(caught.value)
    model.set_attn_implementation("eager")
    with pytest.raises(UserError, match=r"near it are .*softmax"):
        with emulate(model, "bf16", where="*.self_attn:sofmax"):
            model(words(model))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "as-runn"}, "is neither 'as-run' nor 'flat'"),
        ({"accumulate": 0}, "is no number of terms"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text), emulate(built("gpt2"), "bf16", **options):
        pass


def test_a_kernel_of_somebody_else_is_refused() -> None:
    @torch.library.custom_op("layerlab_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    class Kernel(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return double(x)

    with pytest.raises(UserError, match="is a kernel of its own"), emulate(Kernel(), "bf16"):
        Kernel()(torch.ones(2))


def test_sums_of_an_operation_that_has_none_to_split_are_refused() -> None:
    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.mv(torch.ones(2, 2), x)

    model = Direct()
    with pytest.raises(UserError, match="accumulate= cannot look into"):
        with emulate(model, "bf16", "flat", accumulate=1):
            model(torch.ones(2))


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(UserError, match="there is nothing to round"):
        with emulate(built("llama").to("meta"), "bf16"):
            pass


def test_flex_attention_is_refused() -> None:
    model = built("llama")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError, match="which cannot be looked into"), emulate(model, "bf16"):
        pass


def test_writing_into_several_tensors_at_once_is_refused() -> None:
    class Many(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            values = [x.clone(), x.clone()]
            torch._foreach_add_(values, 1.0)
            return values[0]

    with pytest.raises(UserError, match="writes into several tensors at once"):
        with emulate(Many(), "bf16"):
            Many()(torch.ones(2))
