"""Training under emulated rounding: which pass is rounded, by how much, and again the same."""

import copy
import json
import math

import pytest
import torch
from torch import Tensor

from layerlab import UserError, build
from layerlab.model.modeling import LabForCausalLM
from layerlab.numerics.emulation.emulate import reference
from layerlab.recipes.training_sections import EmulateSection
from layerlab.training.step.emulated_rounding import emulation
from tests.support.forked import python
from tests.training.support.controlled import words

SIZES = {"width": 16, "layers": 1, "heads": 2, "vocab": 64, "context": 16}


def model(**options: object) -> LabForCausalLM:
    # Larger weights than usual: errors are then those of a model that does something.
    made = build("llama", **SIZES, **options).train()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter *= 10
    made.set_attn_implementation("eager")
    return made


def gradient(one: LabForCausalLM) -> Tensor:
    return torch.cat([parameter.grad.double().flatten() for parameter in one.parameters()])


def gradients(one: LabForCausalLM, section: EmulateSection, update: int = 0) -> Tensor:
    one.zero_grad()
    with emulation(one, section, 0, update):
        one(words(), labels=words()).loss.backward()
    return gradient(one)


def distance(mine: Tensor, exact: Tensor) -> float:
    return float((mine - exact).norm() / exact.norm())


@pytest.fixture(scope="module")
def exact() -> Tensor:
    one = model()
    with reference(one, backward=True) as run:
        one(words(), labels=words()).loss.backward()
    names = dict(one.named_parameters())
    return torch.cat([run.gradients[name].flatten() for name in names])


def test_no_format_is_no_rounding():
    one = model()
    one(words(), labels=words()).loss.backward()
    plain = gradient(one)
    assert torch.equal(gradients(one, EmulateSection()), plain)


def test_gradients_err_as_much_as_torch_s_own(exact):
    one = model()
    low = copy.deepcopy(one).bfloat16()
    low(words(), labels=words()).loss.backward()
    real = distance(gradient(low), exact)
    emulated = distance(gradients(one, EmulateSection(format="bf16")), exact)
    assert emulated == pytest.approx(real, rel=0.15)
    assert emulated > 1e-3


def test_each_pass_alone_errs_less_than_both(exact):
    one = model()
    errors = {
        where: distance(gradients(one, EmulateSection(format="bf16", where=where)), exact)
        for where in ("forward", "backward", "both")
    }
    assert 1e-4 < errors["backward"] < errors["both"]
    assert 1e-4 < errors["forward"] < errors["both"]
    # Independent causes: their squares add up.
    assert math.hypot(errors["forward"], errors["backward"]) == pytest.approx(
        errors["both"], rel=0.35
    )


def loss(one: LabForCausalLM, section: EmulateSection) -> float:
    with emulation(one, section, 0, 0):
        found = one(words(), labels=words()).loss
        found.backward()
    return float(found.detach())


def test_the_forward_pass_is_float32_where_the_backward_pass_alone_is_rounded():
    one = model()
    plain = float(one(words(), labels=words()).loss.detach())
    unrounded = loss(one, EmulateSection(format="fp8_e4m3", where="backward"))
    assert unrounded == pytest.approx(plain, rel=1e-6)
    rounded = [loss(one, EmulateSection(format="fp8_e4m3", where=w)) for w in ("forward", "both")]
    assert rounded[0] == rounded[1]
    assert abs(rounded[0] - plain) > 1e-3


def test_straight_through_is_the_gradient_at_the_rounded_values():
    """One product: d/dW of sum(c * round(round(W) x)) is c x^T, of unrounded factors c."""
    layer = torch.nn.Linear(3, 2, bias=False)
    x = torch.tensor([[1.0, 2.0, 4.0]])  # in every format
    c = torch.tensor([[1.001, -0.333]])
    with emulation(layer, EmulateSection(format="bf16", where="forward"), 0, 0):
        (layer(x) * c).sum().backward()
    assert torch.equal(layer.weight.grad, c.T @ x)
    layer.weight.grad = None
    with emulation(layer, EmulateSection(format="bf16", where="backward"), 0, 0):
        (layer(x) * c).sum().backward()
    assert not torch.equal(layer.weight.grad, c.T @ x)
    assert torch.equal(layer.weight.grad, layer.weight.grad.bfloat16().float())


@pytest.mark.parametrize("where", ["forward", "both"])
def test_a_layer_that_is_run_again_is_rounded_the_same(where):
    one = model()
    section = EmulateSection(format="bf16", where=where)
    plain = gradients(one, section)
    one.activation_checkpointing_enable({"use_reentrant": False})
    # As without rounding, sums are taken in another order; a value rounded differently is 1e-3.
    assert distance(gradients(one, section), plain) < 1e-6


def test_gradients_are_added_in_float32_and_weights_stay():
    one = model()
    before = copy.deepcopy(one.state_dict())
    section = EmulateSection(format="bf16")
    once = gradients(one, section)
    with emulation(one, section, 0, 0):
        one(words(), labels=words()).loss.backward()
    assert torch.equal(gradient(one), 2 * once)
    assert all(parameter.grad.dtype == torch.float32 for parameter in one.parameters())
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())


def test_after_an_error_no_gradient_is_left_and_the_model_is_whole():
    one = model()
    with pytest.raises(ValueError), emulation(one, EmulateSection(format="bf16"), 0, 0):
        one(words(), labels=words()).loss.backward()
        raise ValueError
    assert all(parameter.grad is None for parameter in one.parameters())
    assert torch.isfinite(one(words()).logits).all()


PROGRAM = """
import json, torch
from layerlab import build
from layerlab.training.step.emulated_rounding import emulation
from layerlab.recipes.training_sections import EmulateSection
torch.set_num_threads(1)

def curve(updates, **section):
    one = build("llama", width=16, layers=1, heads=2, vocab=64, context=16).train()
    optimizer = torch.optim.AdamW(one.parameters(), lr=2e-2)
    losses = []
    for update in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for first in (0, 2):
            draw = torch.Generator().manual_seed(update % 2 * 2 + first)
            ids = torch.randint(64, (2, 16), generator=draw)
            with emulation(one, EmulateSection(**section), 5, update, first):
                found = one(ids, labels=ids).loss / 2
                found.backward()
            total += float(found.detach())
        optimizer.step()
        losses.append(total)
    return losses

print(json.dumps([curve(14, format="bf16"), curve(2, format="bf16")]))
print(json.dumps([curve(count, format="bf16", mode="stochastic") for count in (4, 2)]))
for format in ("fp8_e4m3", "fp16", "mxfp8_e4m3", "int8"):
    print(json.dumps(curve(2, format=format)))
"""


@pytest.mark.full
def test_runs_learn_are_the_same_again_and_survive_narrow_formats():
    given = python("-c", PROGRAM)
    assert given.returncode == 0, given.stderr[-2000:]
    nearest, stochastic, *narrow = map(json.loads, given.stdout.splitlines())
    for curve, again in (nearest, stochastic):
        assert curve[-1] < curve[0] - 0.1
        assert curve[: len(again)] == again
    assert nearest[0][-1] < nearest[0][0] - 1
    assert nearest[0][:4] != stochastic[0]
    assert [len(curve) for curve in narrow] == [2] * 4


def test_stochastic_rounding_depends_on_update_and_micro_batch_but_weights_on_update_alone():
    one = model()
    section = EmulateSection(format="fp8_e4m3", mode="stochastic")

    def rounded(update: int, first: int) -> tuple[Tensor, Tensor]:
        with emulation(one, section, 0, update, first), torch.no_grad():
            weight = one.lm_head.weight.held.clone()
            return weight, one(words()).logits.clone()

    weight, logits = rounded(3, 0)
    assert torch.equal(rounded(3, 0)[1], logits)
    assert torch.equal(rounded(3, 2)[0], weight) and not torch.equal(rounded(3, 2)[1], logits)
    assert not torch.equal(rounded(4, 0)[0], weight)


def test_keyed_dropout_is_the_same_under_rounding():
    from layerlab.training.step.keyed_dropout import key_dropout

    one = model(dropout=0.2)
    section = EmulateSection(format="bf16")
    found = []
    for _ in range(2):
        one.zero_grad()
        with emulation(one, section, 0, 0), key_dropout(one, 0, 0, 0):
            one(words(), labels=words()).loss.backward()
        found.append(gradient(one))
    assert torch.equal(*found)
    one.zero_grad()
    with key_dropout(one, 0, 0, 0):
        one(words(), labels=words()).loss.backward()
    assert distance(found[0], gradient(one)) < 0.1


def test_a_format_that_is_none_is_named():
    section = EmulateSection(format="bf17")
    with pytest.raises(UserError, match="did you mean 'bf16'"), emulation(model(), section, 0, 0):
        pass
