"""Runs side by side, against emulation one run at a time."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from layerlab import UserError, emulate
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.lanes import Lane, SideBySide
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from tests.families.recipe import build

IDS = torch.arange(5, 29)[None]
EAGER, SDPA = load_profile("torch-eager"), load_profile("torch-sdpa")
SUMMED_APART = NumericsProfile(
    name="summed apart",
    operations={"norm_input": "fp32"},
    sums={
        **dict.fromkeys(("projection", "router", "head"), "t14 sequential 8, bf16 split-k 2"),
        "scores": "fp16 sequential 4",
        **dict.fromkeys(("norm_inside", "softmax"), "bf16 sequential 4"),
        "context": "bf16 tree 4",
    },
)
FAMILIES = ("llama", "gpt2", "qwen3", "mixtral", "gemma2")


def run_lanes(model: nn.Module, *lanes: Lane) -> list[Tensor]:
    index = OperationIndex(model)
    for _ in range(2):  # the first run counts the operations of norms
        run = SideBySide(model, lanes, index)
        with run.running():
            values = run.values(model(input_ids=IDS, use_cache=False).logits)
    return values


# GPT-2's activation has a cube, which is two roundings here, as in torch, and one in an emulation.
@pytest.mark.full
@pytest.mark.parametrize("family", [one for one in FAMILIES if one != "gpt2"])
def test_a_profile_of_nothing_but_a_format_is_the_model_as_it_is_loaded(family):
    model = build(family, "eager")
    values = run_lanes(model, Lane(profile=EAGER), Lane(profile=SDPA))
    with emulate(model, "bf16"):
        alone = model(input_ids=IDS, use_cache=False).logits
    torch.testing.assert_close(values[0], alone, rtol=0, atol=0)
    assert not torch.equal(values[0], values[1])


# Gemma's kernel has no bound on scores, which its eager code has.
@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES[:4])
def test_fused_attention_taken_apart_is_eager_attention(family):
    eager = run_lanes(build(family, "eager"), *[Lane(profile=EAGER)] * 2)
    fused = run_lanes(build(family, "sdpa"), *[Lane(profile=EAGER)] * 2)
    torch.testing.assert_close(fused[0], eager[0], rtol=0, atol=0)


def test_float32_is_the_model_itself():
    model = build("llama")
    values = run_lanes(model, *[Lane(profile=load_profile("float32"))] * 2)
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
    torch.testing.assert_close(values[0], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "b", ["torch-sdpa", "torch-compile", "autocast-bf16", "float32", SUMMED_APART]
)
def test_a_run_with_all_errors_of_b_is_b_and_with_none_is_a(family, b):
    model = build(family)
    lanes = [Lane(profile=EAGER), Lane(profile=load_profile(b))]
    lanes += [Lane(takes=lambda result: True), Lane(takes=lambda result: False)]
    a, b, everything, nothing = run_lanes(model, *lanes)
    torch.testing.assert_close(nothing, a, rtol=0, atol=0)
    torch.testing.assert_close(everything, b, rtol=1e-4, atol=1e-4)


def test_runs_that_sum_alike_sum_what_is_their_own():
    model = build("llama")
    gates = {**SUMMED_APART.operations, "gate": "fp8_e4m3"}
    coarse = replace(SUMMED_APART, name="coarse", operations=gates)
    *_, beside = run_lanes(model, *(Lane(profile=one) for one in (EAGER, SUMMED_APART, coarse)))
    alone = run_lanes(model, *[Lane(profile=coarse)] * 2)[0]
    torch.testing.assert_close(beside, alone, rtol=0, atol=0)


def test_runs_that_do_the_same_share_every_value():
    model = build("llama")
    index = OperationIndex(model)
    run = SideBySide(model, [Lane(profile=EAGER)] * 4, index)
    with run.running():
        values = run.values(model(input_ids=IDS, use_cache=False).logits)
    assert all(one is values[0] for one in values)
    assert run.computed == run.products


def test_biases_are_not_of_the_weights_that_engines_quantize():
    model = build("gpt2")
    quantized = NumericsProfile(name="quantized", operations={"weights": "int4:group8"})
    run = SideBySide(model, [Lane(profile=EAGER), Lane(profile=quantized)], OperationIndex(model))
    with run.running(by_layer=False):
        model(input_ids=IDS, use_cache=False)
        lanes = {name: one.lanes for name, one in model.named_parameters() if name.find(".h.") > 0}
    apart = {name.rpartition(".")[2] for name, values in lanes.items() if values is not None}
    assert apart == {"weight"} and len(lanes) > len(apart)


def test_the_model_is_as_it_was():
    model = build("mixtral")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_lanes(model, Lane(profile=EAGER), Lane(profile=SDPA))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(module._forward_hooks for module in model.modules())


def test_experts_are_chosen_by_the_first_run_and_others_are_counted():
    model = build("mixtral")
    index = OperationIndex(model)
    coarse = NumericsProfile(name="coarse", operations={"router": "t2"})
    run = SideBySide(model, [Lane(profile=EAGER), Lane(profile=coarse)], index)
    with run.running():
        model(input_ids=IDS, use_cache=False)
    changed = torch.cat([one.changed.flatten() for one in run.choices.values()])
    assert changed.numel() == IDS.numel() * model.config.num_hidden_layers
    assert 0 < int(changed.sum()) < changed.numel()


class Writer(nn.Module):
    """Writes what it computes into a part of a tensor that all runs share."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        return self.write(torch.zeros(2, 8), self.linear(x))


def into_whole(zeros: Tensor, y: Tensor) -> Tensor:
    zeros.add_(y)
    return zeros * 2


def into_part(zeros: Tensor, y: Tensor) -> Tensor:
    seen = zeros[:, :4]
    zeros[0].add_(y[0])
    zeros[:, 4:] = y[:, :4]
    return zeros + seen.sum()


def into_transposed(zeros: Tensor, y: Tensor) -> Tensor:
    turned = (zeros + 1).t()[1:].t()
    turned[:, 2:5] = y[:, 2:5]
    return turned


def run_writer(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold each of several runs side by side against a run of its own."""
    torch.manual_seed(0)
    model = Writer(write)
    profiles = [
        NumericsProfile(name=name, format=name)
        for name in ("bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3")
    ]
    lanes = [Lane(profile=one) for one in profiles]
    together = SideBySide(model, lanes, OperationIndex(model))
    with together.running():
        values = together.values(model(torch.ones(2, 8)))
    for profile, value in zip(profiles, values, strict=True):
        alone = SideBySide(model, [Lane(profile=profile)] * 2, OperationIndex(model))
        with alone.running():
            own = alone.values(model(torch.ones(2, 8)))[0]
        torch.testing.assert_close(value, own, rtol=0, atol=0)
    assert not torch.equal(values[0], values[1])


@pytest.mark.parametrize("write", [into_whole, into_part, into_transposed])
def test_each_run_writes_into_a_tensor_of_its_own(write):
    run_writer(write)


def test_what_is_written_into_a_parameter_is_told():
    model = Writer(into_whole)

    def scale(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        model.linear.weight.mul_(args[0].sum())

    model.linear.register_forward_pre_hook(scale)
    lanes = [Lane(profile=EAGER), Lane(profile=NumericsProfile(name="coarse", format="fp8_e5m2"))]
    run = SideBySide(model, lanes, OperationIndex(model))
    with pytest.raises(UserError, match="Writer writes by mul_ into a parameter"):
        with run.running():
            model(torch.full((2, 8), 0.3))
