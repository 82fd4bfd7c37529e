"""A number that is not finite is traced to the module that was made to make it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab import build
from layerlab.recipes.training_sections import TrainSection
from layerlab.training.step.nonfinite import NonFiniteOrigin, explain_origin, find_origin
from tests.support.forked import python

SIZES = {"width": 16, "layers": 3, "heads": 2, "vocab": 64, "context": 16}
IDS = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> PreTrainedModel:
    return build("llama", **SIZES)


def again(model: PreTrainedModel) -> Callable[[], Tensor]:
    return lambda: model(input_ids=IDS, labels=IDS).loss


class Steep(torch.autograd.Function):
    """The identity, with an infinite derivative."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:  # type: ignore[override]
        return upstream * math.inf


def spoiled(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Let a module's own forward end in a change of its output."""
    former = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = former(*args, **kwargs)
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    module.forward = forward


PLACES = [
    "model.embed_tokens",
    "model.layers.0",
    "model.layers.1.attention",
    "model.layers.2.ffn",
    "model.norm",
    "lm_head",
]


def test_a_sound_model_has_no_origin(model):
    before = {name: one.clone() for name, one in model.named_parameters()}
    assert find_origin(model, again(model)) is None
    assert all(one.grad is None for one in model.parameters())
    assert all(torch.equal(before[name], one) for name, one in model.named_parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_module_whose_output_is_not_finite_is_named(model, place, value):
    spoiled(model.get_submodule(place), lambda output: output * value)
    found = find_origin(model, again(model))
    assert found == NonFiniteOrigin(place, "forward")
    assert str(found) == f"the first module whose output is not finite is {place}"


@pytest.mark.parametrize("place", PLACES)
def test_the_module_whose_gradient_is_not_finite_is_named(model, place):
    spoiled(model.get_submodule(place), Steep.apply)
    assert bool(torch.isfinite(again(model)()))
    found = find_origin(model, again(model))
    assert found == NonFiniteOrigin(place, "backward")
    assert str(found) == f"the first module whose gradient is not finite is {place}"


def test_what_a_module_does_before_its_child_is_its_own(model):
    def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (Steep.apply(args[0]), *args[1:])

    # It runs before the watch's own, as the code of the caller does.
    model.model.layers[1].attention.output.register_forward_pre_hook(before)
    assert find_origin(model, again(model)) == NonFiniteOrigin(
        "model.layers.1.attention", "backward"
    )


def test_weights_that_are_not_finite_are_named(model):
    name = "model.layers.1.ffn.down.weight"
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = math.nan
    found = find_origin(model, again(model))
    assert found == NonFiniteOrigin(name, "weight")
    assert str(found) == f"the weight {name} was not finite already, before this update"


def test_a_loss_that_is_not_finite_over_finite_logits_is_the_losss_own(model):
    assert find_origin(model, lambda: again(model)() * math.inf) == NonFiniteOrigin(
        "loss", "forward"
    )
    found = find_origin(model, lambda: Steep.apply(again(model)()))
    assert found == NonFiniteOrigin("loss", "backward")
    assert str(found).startswith(
        "every module's gradient is finite; the first gradient that is not"
    )


def test_weights_that_have_grown_too_large_are_found_where_they_overflow(model):
    """Nothing is put in by hand but large numbers: a product overflows float32."""
    with torch.no_grad():
        for one in model.model.layers[1].ffn.parameters():
            one.fill_(1e30)
    found = find_origin(model, again(model))
    assert found is not None and found.name.startswith("model.layers.1.ffn")


COMPILED = """
import math, torch
from layerlab import build
from layerlab.training.step.nonfinite import find_origin

model = build("llama", width=16, layers=2, heads=2, vocab=64, context=16).train()
ids = torch.arange(32).reshape(2, 16)
calls = []
def backend(graph, inputs):
    calls.append(graph)
    return graph.forward
for layer in model.model.layers:
    layer.compile(dynamic=False, backend=backend)
again = lambda: model(input_ids=ids, labels=ids).loss
again()
assert len(calls) == 2, calls
with torch.no_grad():
    for weight in model.model.layers[1].ffn.parameters():
        weight.fill_(1e30)
print(find_origin(model, again))
assert len(calls) == 2, calls
"""


@pytest.mark.full
def test_a_compiled_layer_is_watched_too():
    """In a process of its own, since type checks break graphs."""
    ended = python("-c", COMPILED)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(
        "the first module whose output is not finite is model.layers.1.ffn"
    )


def test_the_user_is_told_in_one_line_what_to_type():
    train = TrainSection(max_steps=10, learning_rate=0.01, mixed_precision="bf16")
    found = NonFiniteOrigin("model.layers.3.attention", "forward")
    assert explain_origin(found, math.nan, 120, train) == (
        "loss is nan at update 120; the first module whose output is not finite is "
        "model.layers.3.attention; lower train.learning_rate (now 0.01), "
        'or write train.mixed_precision = "fp32"'
    )
    plain = TrainSection(max_steps=10)
    assert explain_origin(None, 3.5, 7, plain) == (
        "the gradient of a finite loss is not finite at update 7; when the batch was run again, "
        "everything was finite; lower train.learning_rate (now 0.001)"
    )
    assert explain_origin(None, math.nan, 7, plain, sharded=True) == (
        "loss is nan at update 7; in a sharded model its origin is not looked for; "
        "lower train.learning_rate (now 0.001)"
    )
