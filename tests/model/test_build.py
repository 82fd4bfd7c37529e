"""`build`: what a user may ask for, and the one line that answers what cannot be."""

import inspect

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

import layerlab
from layerlab import UserError
from layerlab.blocks.spec import Choice
from layerlab.model.build import build, compile_layers
from layerlab.model.design import design
from layerlab.model.option import with_options
from layerlab.model.preset import presets
from layerlab.model.typed_options import parse_options
from layerlab.variants.registry import variant
from tests.model.small import SIZES, small, tokens
from tests.support import refused


def refusal(name="llama", **given):
    """What a design that cannot be is answered with."""
    sizes = {**SIZES, **{key: given.pop(key) for key in list(given) if key in SIZED}}
    return refused.refusal(
        design, name, preset=given.pop("preset", None), sizes=sizes, options=given
    )


SIZED = (*SIZES, "inner", "kv_heads", "head_width")


def test_the_package_has_build_as_a_name():
    model = layerlab.build("llama", **SIZES)
    assert model(tokens()).logits.shape == (2, 24, SIZES["vocab"])
    assert inspect.unwrap(layerlab.build) is build


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "lama"}, "no variant is called 'lama'; did you mean 'llama'? type: layerlab"),
        ({"name": "lama-7b"}, "'lama-7b'; did you mean the preset 'llama-7b'?"),
        ({"name": 3}, "the variant is a int; expected the name of a variant or a preset"),
        ({"preset": "llama-8b"}, "no preset is called 'llama-8b'; did you mean 'llama-7b'?"),
        ({"preset": 8}, "no preset is called 8; known: llama-7b"),
        ({"width": 50}, "4 heads do not divide a width of 50; type heads=2, or give head_width"),
        ({"width": 12}, "rotary positions turn features in pairs, and a head width of 3 is odd"),
        ({"kv_heads": 3}, "4 heads cannot share 3 key-value heads evenly; type kv_heads=4"),
        ({"kv_heads": 0}, "kv_heads is 0; expected a whole number from 1: type kv_heads=64"),
        ({"layers": -1}, "layers is -1; expected a whole number from 1"),
        ({"layers": True}, "layers is True; expected a whole number from 1"),
        ({"width": "48"}, "width is '48'; expected a whole number from 1"),
        ({"vocab": 61.0}, "vocab is 61.0; expected a whole number from 1"),
        ({"layers": numpy.int64(2)}, "expected a whole number from 1"),
        ({"ffn_bias": True}, "no option or size is called 'ffn_bias' here"),
        ({"norm": Choice("rms", epsilon=-1.0)}, "option epsilon of norm part 'rms' got"),
        ({"inner": 0}, "inner is 0; expected a whole number from 1"),
        ({"inner": -1.5}, "expected a whole number of features, or a multiple of the width"),
        ({"inner": float("nan")}, "inner is nan; expected a whole number of features"),
        (
            {"activatoin": "silu"},
            "no option or size is called 'activatoin' here; did you mean 'activation'",
        ),
        ({"activation": "sulu"}, "option activation of ffn part 'swiglu' got 'sulu'; expected"),
        ({"ffn.bias": 1}, "option bias of ffn part 'swiglu' got 1; expected True or False"),
        ({"ffn": {"n": 2}}, "ffn part 'swiglu' has no option 'n'; its options are: activation"),
        ({"shortcut.n": 2}, "shortcut part 'none' has no option 'n'; its options are: none"),
        ({"head": "loose"}, "head is 'loose'; expected 'untied' or 'tied'"),
        ({"placement": None}, "placement is None; expected 'pre' or 'post' or 'both' or 'after'"),
        ({"norm": "lyer"}, "no norm part is called 'lyer'; did you mean 'layer'?"),
        ({"norm": 3}, "norm is 3; expected the name of a norm part, or a dict of its options"),
        ({"final_norm": None}, "norm is None; expected the name of a norm part"),
        ({"dropout": 1.5}, "dropout is 1.5; expected a number at least 0.0 and at most 0.9"),
        ({"dropout": "much"}, "dropout is 'much'; expected a number at least"),
    ],
)
def test_what_cannot_be_built_is_answered_in_one_line(given, message):
    assert message in refusal(**given)


def test_an_option_reaches_its_part_however_it_is_spelt():
    plain = small("llama")
    spellings = [{"ffn.bias": True}, {"ffn": {"bias": True}}]
    for spelling in spellings:
        model = small("llama", **spelling)
        assert model.model.layers[0].ffn.gate.bias is not None
        assert model.num_parameters() > plain.num_parameters()


def test_a_tied_head_is_the_embedding_and_an_own_part_takes_its_slot():
    tied = small("llama", head="tied")
    assert tied.lm_head.weight is tied.get_input_embeddings().weight
    swapped = small("llama", norm="layer", final_norm="layer")
    assert swapped.config.parse_spec().block.norm.name == "layer"
    assert small("llama", placement="post").config.parse_spec().block.placement == "post"


def test_a_size_of_the_user_goes_before_that_of_the_preset():
    found = design("llama-7b", sizes={"layers": 2, "width": None})
    assert found.shape.layers == 2 and found.shape.width == presets()["llama-7b"].sizes["width"]
    other = design("gpt2", preset="llama-7b")
    assert other.variant.name == "gpt2" and other.shape.inner == 11008


def test_inner_may_be_a_multiple_of_the_width():
    assert design("llama", sizes={**SIZES, "inner": 2.0}).shape.inner == 96
    assert design("llama", sizes={**SIZES, "inner": 2.01}).shape.inner == 112


def test_a_seed_decides_every_parameter_and_nothing_else_does():
    torch.manual_seed(1)
    one = small("llama").state_dict()
    torch.manual_seed(2)
    again, other = small("llama").state_dict(), small("llama", seed=1).state_dict()
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_the_meta_device_holds_no_memory():
    model = build("llama-7b", device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("n=3", 3),
        ("n=0.5", 0.5),
        ("r=1/32", 1 / 32),
        ("bias=true", True),
        ("bias=False", False),
        ("bias=none", "none"),
        ("block=None", None),
        ("activation=gelu-tanh", "gelu-tanh"),
        ("activations=[silu, relu2]", ("silu", "relu2")),
        ("activations=silu,tanh", ("silu", "tanh")),
        ("pair=1,2", (1, 2)),
    ],
)
def test_an_option_of_the_command_line_is_read_as_meant(entry, value):
    assert list(parse_options([entry]).values()) == [value]


def test_a_choice_may_be_given_where_a_name_may():
    spec = with_options(variant("llama").spec, {"norm": Choice("rms", epsilon=1e-3)})
    assert spec.block.norm.given() == {"epsilon": 1e-3}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["n=3", " n =5"], "--option 'n' is given twice; type it once"),
        *(([entry], "expected a name and a value: type --option") for entry in ("", "n", "n=")),
        (["=3"], "expected a name and a value: type --option"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused(entries, message):
    with pytest.raises(UserError, match=message):
        parse_options(entries)


def test_no_such_device_is_one_line():
    with pytest.raises(UserError, match="there is no device 'tpu9' to build on; expected cpu"):
        build("llama", **SIZES, device="tpu9")


class Exact(nn.Module):
    """A product that autocast leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x, self.weight)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
def test_what_autocast_leaves_alone_is_exact_on_the_way_back_as_well(monkeypatch):
    monkeypatch.setattr(torch._functorch.config, "backward_pass_autocast", "same_as_forward")
    x, layer = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)), Exact()
    (plain,) = torch.autograd.grad(layer(x).sin().sum(), layer.weight)
    compile_layers([layer], backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x).sin().sum()
    (found,) = torch.autograd.grad(out, layer.weight)
    torch.testing.assert_close(found, plain)
