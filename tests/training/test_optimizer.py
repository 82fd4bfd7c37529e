"""What decays and what does not, in every variant, and what Muon has of it."""

import copy
import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from layerlab import build, list_variants
from layerlab.model.build import assemble
from layerlab.model.design import design, with_base
from layerlab.recipes.training_sections import ControlSection, TrainSection
from layerlab.training.optimizer import MuonWithAdamW, allocate, build_optimizer
from layerlab.training.qk_control.penalties import QKControl
from tests.support.refused import refuses

TRAIN = TrainSection(max_steps=1, weight_decay=0.25)
MUON = TRAIN.model_copy(update={"optimizer": "muon"})
SIZE = {"width": 16, "layers": 2, "heads": 2, "vocab": 32, "context": 8}


def split(model):
    names = {id(one): name for name, one in model.named_parameters()}
    groups = build_optimizer(model, TRAIN).param_groups
    return {group["weight_decay"]: {names[id(one)] for one in group["params"]} for group in groups}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", list(list_variants()))
def test_every_parameter_is_in_one_group_and_vectors_do_not_decay(name):
    model = build(name, width=16, layers=2, heads=2, vocab=32, context=8, device="meta")
    found = split(model)
    assert found[0.25] | found[0.0] == {name for name, _ in model.named_parameters()}
    assert not found[0.25] & found[0.0]
    for one, parameter in model.named_parameters():
        assert one in found[0.0] or parameter.dim() >= 2


def test_scales_and_shifts_of_a_series_do_not_decay_and_its_matrices_do():
    found = split(build("pangu-pi", width=16, layers=1, heads=2, vocab=32, context=8))
    series = {name for name in found[0.0] if ".ffn." in name}
    assert series and all("weight" in name for name in found[0.25])
    assert any("shortcut" in name for name in found[0.25])


def test_it_is_adamw():
    """Over several steps: the first does not depend on the betas."""
    settings = {"learning_rate": 0.1, "adam_beta1": 0.7, "adam_beta2": 0.6, "adam_epsilon": 0.5}
    model = nn.Linear(3, 3)
    twin = copy.deepcopy(model)
    pair = [
        build_optimizer(model, TRAIN.model_copy(update=settings)),
        torch.optim.AdamW(
            [{"params": [twin.weight]}, {"params": [twin.bias], "weight_decay": 0.0}],
            lr=0.1,
            betas=(0.7, 0.6),
            eps=0.5,
            weight_decay=0.25,
        ),
    ]
    for x in torch.randn(3, 4, 3):
        for one, optimizer in zip((model, twin), pair, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", [TRAIN, MUON], ids=["adamw", "muon"])
def test_moments_made_beforehand_are_those_of_the_first_step(train):
    """To the bit, with their names in order: a checkpoint is the same."""
    model = build("pangu-pi", width=16, layers=1, heads=2, vocab=32, context=8)
    states = []
    for early in (True, False):
        twin = copy.deepcopy(model)
        optimizer = build_optimizer(twin, train)
        if early:
            allocate(optimizer)
            sizes = {len(optimizer.state[one]) for one in twin.parameters()}
            assert sizes == ({3} if train is TRAIN else {1, 3})
        for seed in (0, 1):
            tokens = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(seed))
            twin(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        states.append(optimizer.state_dict()["state"])
    early, late = ({key: list(one.items()) for key, one in state.items()} for state in states)
    assert early.keys() == late.keys() and len(early) > 0
    for key in early:
        for (name, mine), (other, theirs) in zip(early[key], late[key], strict=True):
            assert name == other and mine.dtype == theirs.dtype and mine.device == theirs.device
            assert mine.stride() == theirs.stride() and torch.equal(mine, theirs)


def test_moments_that_are_there_stay():
    model = nn.Linear(3, 3)
    optimizer = build_optimizer(model, TRAIN)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    before = optimizer.state[model.weight]["exp_avg"]
    allocate(optimizer)
    assert optimizer.state[model.weight]["exp_avg"] is before


def muon_names(model):
    names = {id(one): name for name, one in model.named_parameters()}
    optimizer = build_optimizer(model, MUON)
    first, *rest = optimizer.param_groups
    assert all("momentum" not in group for group in rest)
    listed = [names[id(one)] for group in optimizer.param_groups for one in group["params"]]
    assert sorted(listed) == sorted(names.values())
    return {names[id(one)] for one in first["params"]}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", list(list_variants()))
def test_muon_has_matrices_of_layers_alone(name):
    model = build(name, **SIZE, device="meta")
    edge = {id(model.lm_head.weight), id(model.model.embed_tokens.weight)}
    parameters = dict(model.named_parameters())
    linear = {
        f"{place}.weight" for place, one in model.named_modules() if isinstance(one, nn.Linear)
    }
    found = muon_names(model)
    assert found == {name for name in linear & parameters.keys() if name != "lm_head.weight"}
    for one in found:
        assert parameters[one].dim() == 2 and id(parameters[one]) not in edge


LAYER = {"attention.query", "attention.key", "attention.value", "attention.output"}


@pytest.mark.parametrize(
    ("variant", "inside"),
    [
        ("llama", LAYER | {"ffn.gate", "ffn.up", "ffn.down"}),
        ("gpt2", LAYER | {"ffn.up", "ffn.down"}),
        (
            "pangu-pi",
            LAYER
            | {"ffn.gate", "ffn.up", "ffn.down"}
            | {f"attention_shortcut.paths.0.{way}" for way in ("down", "up")},
        ),
    ],
)
def test_muon_has_exactly_these(variant, inside):
    """Of gpt2, whose head is the embedding, neither; of pangu-pi shortcuts and no series."""
    model = build(variant, **SIZE)
    whole = {f"model.layers.{layer}.{name}.weight" for layer in (0, 1) for name in inside}
    assert muon_names(model) == whole
    if variant == "gpt2":
        assert model.lm_head.weight is model.model.embed_tokens.weight


def orthogonalized(matrix):
    """Five steps of Newton-Schulz in bfloat16, with the published coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.T).float()


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_muon_is_the_published_equation(shape):
    """W <- (1 - r d) W - r 0.2 sqrt(max(rows, columns)) NS(g + m M), M <- m M + (1 - m) g."""
    rate, decay, m = 0.1, 0.25, 0.95
    train = MUON.model_copy(update={"learning_rate": rate})
    model = nn.Sequential(nn.Linear(*shape[::-1], bias=False), nn.LayerNorm(shape[0]))
    optimizer = build_optimizer(model, train)
    weight = model[0].weight
    expected, held = weight.detach().clone(), torch.zeros(shape)
    scale = 0.2 * math.sqrt(max(shape))
    for seed in (0, 1, 2):
        weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        before = weight.detach().clone()
        optimizer.step()
        held = held.lerp(weight.grad, 1 - m)
        update = orthogonalized(weight.grad.lerp(held, m))
        expected = expected * (1 - rate * decay) - rate * scale * update
        # Three roundings of a step, each of half a unit in the last place.
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-6, atol=1e-6)
        # Whatever the gradient, the update is nearly orthogonal, and as large as one of AdamW.
        moved = ((before * (1 - rate * decay) - weight.detach()) / rate).double()
        sizes = torch.linalg.svdvals(moved / scale)
        assert 0.5 < sizes.min() and sizes.max() < 1.5
        assert 0.1 < moved.square().mean().sqrt() < 0.3


def taught(model, optimizer, seeds):
    for seed in seeds:
        tokens = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def test_muon_goes_on_from_its_state_to_the_bit():
    model = build("pangu-pi", **SIZE)
    optimizer = build_optimizer(model, MUON)
    taught(model, optimizer, (0, 1))
    other, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    twin = build_optimizer(other, MUON)
    twin.load_state_dict(state)
    # What a schedule sets after that reaches both.
    for one in (optimizer, twin):
        for group in one.param_groups:
            group["lr"] = 0.01
    taught(model, optimizer, (2, 3))
    taught(other, twin, (2, 3))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert sum(len(group["params"]) for group in twin.param_groups) == len(twin.state)


def test_muon_under_the_scaler_of_float16():
    """A gradient that is not finite leaves all as it was; a scaled one is what it would be."""
    Accelerator(cpu=True)
    start = build("pangu-pi", **SIZE)
    tokens = torch.arange(16).view(2, 8)
    models = [copy.deepcopy(start) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = AcceleratedOptimizer(build_optimizer(models[0], MUON), scaler=scaler)
    plain = AcceleratedOptimizer(build_optimizer(models[1], MUON))
    for _ in range(2):
        for model, optimizer in zip(models, (scaled, plain), strict=True):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            (scaler.scale(loss) if optimizer is scaled else loss).backward()
            optimizer.step()
    # A power of two scales without a rounding.
    for one, same in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, same)
    before = copy.deepcopy(models[0].state_dict())
    for one in models[0].parameters():
        one.grad = torch.full_like(one, math.inf)
    scaled.step()
    assert scaled.step_was_skipped
    torch.testing.assert_close(models[0].state_dict(), before, rtol=0, atol=0)


def test_muon_with_nothing_to_do_is_refused():
    model = build("llama", **SIZE)
    model.model.layers.requires_grad_(False)
    refuses(r'no linear layer .* learns; write optimizer = "adamw"', build_optimizer, model, MUON)
    assert not isinstance(build_optimizer(model, TRAIN), MuonWithAdamW)


MUP = {"parametrization": "mup", "mup_base_width": 8}


def scaled(train, *, variant="pangu-pi", width=16):
    """A model of twice the base width, and its optimizer."""
    found = with_base(design(variant, sizes={**SIZE, "width": width}), 8)
    model = assemble(variant, found.spec, found.shape, base=found.base)
    return model, build_optimizer(model, train.model_copy(update=MUP))


def factors(model, optimizer):
    """Rate, rate times decay, and epsilon of every parameter beside those of the recipe."""
    names = {id(one): name for name, one in model.named_parameters()}
    return {
        names[id(one)]: (
            group["lr"] / TRAIN.learning_rate,
            group["lr"] * group["weight_decay"] / TRAIN.learning_rate / TRAIN.weight_decay,
            group["eps"] / TRAIN.adam_epsilon,
        )
        for group in optimizer.param_groups
        for one in group["params"]
    }


def test_rates_under_mup_follow_the_width_and_decay_does_not():
    model, optimizer = scaled(TRAIN)
    found = factors(model, optimizer)
    assert found["model.layers.0.ffn.up.weight"] == (0.5, 1, 0.5)
    assert found["model.layers.0.attention_shortcut.paths.0.down.weight"] == (0.5, 1, 0.5)
    assert found["lm_head.weight"] == (0.5, 1, 1)
    assert found["model.embed_tokens.weight"] == (1, 1, 0.5)
    assert found["model.norm.weight"] == found["model.layers.1.ffn.terms.1.scale"] == (1, 0, 0.5)
    assert found.keys() == dict(model.named_parameters()).keys()
    # A schedule multiplies: what it sets is the rate at the base.
    assert all(
        group["lr"] == TRAIN.learning_rate * group.get("lr_factor", 1.0)
        for group in optimizer.param_groups
    )


@pytest.mark.parametrize("variant", ["llama", "laurel"])
def test_an_update_of_muon_has_the_norm_of_one_at_the_base(variant):
    """Its spectral norm over sqrt(outputs / inputs), whatever the shape and the width."""
    found = {}
    for width in (8, 64):
        model, optimizer = scaled(
            MUON.model_copy(update={"weight_decay": 0.0}), variant=variant, width=width
        )
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        taught(model, optimizer, (0,))
        for group in optimizer.param_groups:
            for one in group["params"] if "momentum" in group else ():
                name = next(key for key, value in model.named_parameters() if value is one)
                norm = torch.linalg.matrix_norm(one.detach() - before[name], 2)
                if norm > 0:
                    rows, columns = one.shape
                    found.setdefault(name, []).append(float(norm) * math.sqrt(columns / rows))
    assert len(found) > 10
    for name, (small, large) in found.items():
        # Newton-Schulz leaves singular values between 0.7 and 1.2; ranks and sizes are rounded.
        assert 0.4 < large / small < 2.5, (name, small, large)


@pytest.mark.parametrize("train", [TRAIN, MUON], ids=["adamw", "muon"])
def test_mup_goes_on_from_its_state_to_the_bit(train):
    model, optimizer = scaled(train)
    taught(model, optimizer, (0, 1))
    other, twin = scaled(train)
    other.load_state_dict(model.state_dict())
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert sum("momentum" in group for group in twin.param_groups) == (0 if train is TRAIN else 1)
    taught(model, optimizer, (2, 3))
    taught(other, twin, (2, 3))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_wrapped_matrix_keeps_its_rate():
    model, _ = scaled(TRAIN)
    QKControl(model, ControlSection(sigma_reparam=True))
    found = factors(model, build_optimizer(model, TRAIN.model_copy(update=MUP)))
    place = "model.layers.0.attention.query.parametrizations.weight"
    assert found[f"{place}.original"] == (0.5, 1, 0.5) and found[f"{place}.0.gamma"] == (1, 0, 1)


@pytest.mark.parametrize(
    "model", [build("llama", **SIZE), nn.Linear(2, 2)], ids=["ours", "torch's"]
)
def test_a_model_that_was_not_built_for_mup_is_refused(model):
    said = f'"mup", and this {type(model).__name__} was not built for it, .*; write parametrization'
    refuses(said, build_optimizer, model, TRAIN.model_copy(update=MUP))
