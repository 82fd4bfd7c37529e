"""What emulation refuses, in one line each."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layerlab
from layerlab import UserError
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, emulate
from layerlab.numerics.prediction.predict import Prediction, StateKind
from tests.measures.family import built
from tests.numerics.emulation.test_emulate import words
from tests.support.refused import refuses

READ = (
    r"is no policy but what one may be read from; "
    r"type policy=layerlab\.load_policy\('policy\.toml'\)"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"where": "model.layers.*.self_atn"},
            "matches nothing in this model; near it are .*self_attn",
        ),
        ({"where": "*.self_attn:sofmax"}, "near it are .*softmax"),
        ({"where": "*:softmax"}, "rounds nothing as run: .*softmax is in a dtype that"),
        ({"where": "*.self_attn:transpose", "mode": "flat"}, "only moves or chooses values; type"),
        ({"where": ["*.mlp:mul", "*.mlp:mull"]}, r"where='\*\.mlp:mull' .*near it are .*mlp:mul\b"),
        ({"where": ["*.mlp:mul", "*.self_attn:softmax"]}, r"where='\*\.self_attn:softmax'"),
        ({"where": []}, "selects no place; type where=None"),
        ({"where": 5}, "where=5 is no pattern; expected a text or a list of texts"),
        ({"where": ["lm_head", 5]}, "is no pattern; expected"),
        ({"mode": "as-runn"}, "is called 'as-runn'; type one of 'as-run', 'flat', 'autocast'"),
        ({"accumulate": 0}, "=0 is no number of terms; expected a whole number at least 1"),
        ({"accumulate": "4"}, "accumulate='4' is no number of terms"),
        ({"accumulate": 2.5}, "accumulate=2.5 is no number of terms"),
        ({"accumulate": True}, "accumulate=True is no number of terms"),
        ({"seed": "a"}, "seed='a' is no seed; expected a whole number"),
        ({"seed": 2**64}, "is no seed; expected"),
        ({"policy": "policy.toml"}, READ),
        ({"policy": Path("policy.toml")}, READ),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], text: str) -> None:
    model = built("llama")
    with pytest.raises(UserError, match=text), emulate(model, "bf16", **options):
        model(words(model, 8))


def test_softmax_in_float32_is_rounded_in_the_flat_mode() -> None:
    model = built("llama")
    with emulate(model, "bf16", "flat", where="*:softmax") as run:
        model(words(model, 8))
    assert {place.operation for place in run.roundings} == {"softmax"}


def test_every_pattern_of_a_list_is_checked() -> None:
    model = built("llama")
    run = Emulation(model, make_arithmetic("bf16"), ["*.mlp:mul", "*:weight", "*:input", "*:cache"])
    features = torch.ones(1, 3, model.config.hidden_size)
    with pytest.raises(UserError, match=r"where='\*:cache' matches nothing"), run.running():
        model(inputs_embeds=features)
    # What was chosen before does not count for what is chosen now.
    run.select(["*.mlp:mul", "*:weight"])
    with run.running():
        model(words(model, 8))
    run.select("*:softmax")
    with pytest.raises(UserError, match="rounds nothing as run"), run.running():
        model(words(model, 8))
    with run.running():
        pass


@pytest.mark.full
@pytest.mark.parametrize("kind", ["variance", "bound"])
def test_predictions_check_their_patterns_too(kind: StateKind) -> None:
    model = built("llama")
    for where, text in (("*:softmax", "rounds nothing as run"), ("*.mlp:mull", "matches nothing")):
        run = Prediction(model, make_arithmetic("bf16"), kind, ["*.mlp:mul", where])
        with torch.no_grad(), pytest.raises(UserError, match=text), run.running():
            model(words(model, 4))


def test_an_option_that_emulate_does_not_have_is_told_where_it_is_typed() -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'weigths'"):
        emulate(nn.Linear(2, 2), "bf16", weigths="int8")


@torch.library.custom_op("layerlab_test::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


def write_many(x: Tensor) -> Tensor:
    values = [x.clone(), x.clone()]
    torch._foreach_add_(values, 1.0)
    return values[0]


class Calling(nn.Module):
    """Calls a function."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


@pytest.mark.parametrize(
    ("call", "options", "text"),
    [
        (double, {}, "is a kernel of its own"),
        (
            lambda x: torch.mv(torch.ones(2, 2), x),
            {"mode": "flat", "accumulate": 1},
            "accumulate= cannot look into",
        ),
        (write_many, {}, "writes into several tensors at once"),
    ],
)
def test_operations_that_cannot_be_followed_are_refused(
    call: Callable[[Tensor], Tensor], options: dict[str, object], text: str
) -> None:
    model = Calling(call)
    with pytest.raises(UserError, match=text), emulate(model, "bf16", **options):
        model(torch.ones(2))


def test_models_that_cannot_be_looked_into_are_refused() -> None:
    model = built("llama")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError, match="which cannot be looked into"), emulate(model, "bf16"):
        pass
    with pytest.raises(UserError, match="is on the meta device, which holds no numbers; load"):
        with emulate(model.to("meta"), "bf16"):
            pass


def test_a_model_within_the_block_is_refused_by_what_would_read_or_change_its_weights() -> None:
    model = built("llama")
    policy = layerlab.Policy(format="bf16", keep=("lm_head",))
    said = "is replaced for now, by the type EmulatedTensor, as in a block of layerlab.emulate"
    with torch.no_grad(), emulate(model, "bf16"):
        refuses(said, layerlab.apply_precision, model, policy)
        refuses(said, layerlab.inspect, model, input_ids=torch.arange(4)[None])
        refuses(said, emulate(model, "fp16").__enter__)
        model(torch.arange(4)[None])
    layerlab.apply_precision(model, policy)
