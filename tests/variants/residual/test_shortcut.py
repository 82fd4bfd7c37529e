"""The augmented shortcut and the scaled identity: formulas, starts, laws and errors."""

import pytest
import torch
from torch import Tensor

from layerlab.blocks.activation import activate
from layerlab.blocks.context import Flow
from layerlab.blocks.shape import Role, Shape, Site
from layerlab.variants.residual.shortcut import (
    Augmented,
    ScaledIdentity,
    bottleneck,
    circulant_block,
)
from tests.model.small import shaken, small, tokens
from tests.variants.option import lawful

WIDTH = 12
SHAPE = Shape(
    width=WIDTH, layers=1, heads=2, kv_heads=2, head_width=6, inner=20, vocab=9, context=8
)
FORMS = ("bottleneck", "full", "circulant")
OPTIONS = [
    *({"form": form} for form in FORMS),
    *({"form": form, "T": 2, "bias": True, "initial": "normal", "rescale": 0.75} for form in FORMS),
    *({"form": form, "input": "raw", "also_ffn": True, "activation": "tanh"} for form in FORMS),
    *({"form": form, "activation": "none"} for form in FORMS),
    {"form": "circulant", "block": 1},
    {"form": "circulant", "block": 3, "bias": True},
    {"form": "circulant", "block": 48},
    {"r": 1 / 4, "T": 3},
    {"activation": "relu", "bias": True},
]
IDENTITIES = [{"form": "identity"}, {"form": "linear"}, {"form": "linear", "also_ffn": True}]


def named(options: dict) -> str:
    return "-".join(f"{key}={value}" for key, value in options.items())


def site(role: Role = "attention") -> Site:
    return Site(shape=SHAPE, layer=0, role=role)


def part(**options: object) -> Augmented:
    """The part alone, in float64, with noise on every parameter."""
    return shaken(Augmented(WIDTH, site(), **Augmented.given(options)).double())


def features(salt: int = 0) -> Tensor:
    return torch.randn(
        2, 5, WIDTH, generator=torch.Generator().manual_seed(salt), dtype=torch.float64
    )


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_every_option_is_causal_cached_and_trained(options):
    lawful("as-32", shortcut=options)


@pytest.mark.parametrize("options", IDENTITIES, ids=named)
def test_the_scaled_identity_is_causal_cached_and_trained(options):
    lawful("scaled-identity", shortcut=options)


@pytest.mark.parametrize("options", [one for one in OPTIONS if "initial" not in one], ids=named)
def test_zero_starts_are_the_baseline_to_the_bit_and_move(options):
    model = small("as-32", dtype=torch.float32, shortcut=options, layers=1)
    x = tokens()
    assert torch.equal(model(x).logits, small("llama", dtype=torch.float32, layers=1)(x).logits)
    model.train()(x, labels=x).loss.backward()
    for path in model.model.layers[0].attention_shortcut.paths:
        last = [one for name, one in path.named_parameters() if "down" not in name]
        assert all(one.grad.abs().sum() > 0 for one in last)


def test_a_matrix_beside_the_identity_starts_as_the_baseline():
    x, options = tokens(), {"form": "linear"}
    model = small("scaled-identity", dtype=torch.float32, shortcut=options)
    assert torch.equal(model(x).logits, small("llama", dtype=torch.float32)(x).logits)


def circulant(kernel: Tensor) -> Tensor:
    """The whole matrix: entry [row, column] of a block is kernel[(column - row) mod side]."""
    blocks, _, side = kernel.shape
    whole = torch.zeros(blocks * side, blocks * side, dtype=kernel.dtype)
    for out in range(blocks):
        for into in range(blocks):
            for row in range(side):
                for column in range(side):
                    value = kernel[out, into, (column - row) % side]
                    whole[into * side + row, out * side + column] = value
    return whole


def literal(made: Augmented, u: Tensor) -> Tensor:
    total, name = torch.zeros_like(u), made.chosen["activation"]
    for path in made.paths:
        given = dict(path.named_parameters())
        if made.chosen["form"] == "bottleneck":
            narrow = u @ given["down.weight"].T + given.get("down.bias", 0)
            total = total + activate(narrow, name) @ given["up.weight"].T + given.get("up.bias", 0)
        elif made.chosen["form"] == "full":
            wide = u @ given["theta.weight"].T + given.get("theta.bias", 0)
            total = total + activate(wide, name)
        else:
            wide = u @ circulant(given["weight"]) + given.get("shift", 0)
            total = total + activate(wide, name)
    return total


@pytest.mark.parametrize("options", [one for one in OPTIONS if one.get("block") != 48], ids=named)
def test_every_option_is_its_formula(options):
    made, entered, raw = part(**options), features(1), features(2)
    read = raw if options.get("input") == "raw" else entered
    factor = options.get("rescale", 1.0)
    expected = factor * literal(made, read) + (factor - 1) * raw
    torch.testing.assert_close(made(entered, raw, Flow()), expected, rtol=0, atol=1e-13)


def test_a_rescale_takes_the_stream_along():
    made, entered, raw = part(rescale=0.75, T=2), features(1), features(2)
    attended = features(3)
    plain = part(T=2)
    plain.load_state_dict(made.state_dict())
    whole = 0.75 * (raw + plain(entered, raw, Flow()) + attended / 0.75)
    torch.testing.assert_close(
        raw + attended + made(entered, raw, Flow()), whole, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_scaled_identity_weighs_the_stream(scale):
    raw = features()
    identity = ScaledIdentity(WIDTH, site(), scale=scale)
    torch.testing.assert_close(
        raw + identity(features(1), raw, Flow()), scale * raw, rtol=0, atol=1e-14
    )
    linear = shaken(ScaledIdentity(WIDTH, site(), scale=scale, form="linear").double())
    expected = scale * raw @ linear.theta.weight.T
    torch.testing.assert_close(linear(features(1), raw, Flow()), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", [Augmented, ScaledIdentity])
def test_it_stands_beside_attention_and_beside_the_feed_forward_if_asked(kind):
    assert kind.present(site("attention"), **kind.given({}))
    assert not kind.present(site("ffn"), **kind.given({}))
    assert kind.present(site("ffn"), **kind.given({"also_ffn": True}))


@pytest.mark.parametrize("r", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("width", [48, 256, 4096])
def test_a_reduction_and_its_fraction_give_one_bottleneck(width, r):
    assert bottleneck(width, r) == bottleneck(width, 1 / r) == max(1, round(width / r))
    made = Augmented(WIDTH, site(), **Augmented.given({"r": r}))
    assert made.paths[0].down.out_features == max(1, round(WIDTH / r))


def test_the_bottleneck_is_sixteen_times_cheaper_as_the_source_says():
    full = Augmented.cost(4096, site(), form="full").flops
    assert full == 16 * Augmented.cost(4096, site(), r=32).flops


def test_circulant_blocks_divide_the_parameters_by_their_side():
    full = Augmented.cost(48, site(), form="full").weights
    for side in (1, 2, 4, 12, 48):
        assert Augmented.cost(48, site(), form="circulant", block=side).weights * side == full


@pytest.mark.parametrize("width", [1, 2, 3, 7, 48, 50, 256])
def test_a_circulant_block_fits_any_width(width):
    side = circulant_block(width, None)
    assert width % side == 0 and side <= max(1, width // 4)
    assert all(width % more for more in range(side + 1, width // 4 + 1))


def test_equal_paths_would_stay_equal_for_ever():
    """What test_refused.py spares: two square paths from zero are one path, counted twice."""
    model = small("as-32", layers=1, shortcut={"form": "full", "T": 2, "initial": "normal"})
    paths = model.model.layers[0].attention_shortcut.paths
    with torch.no_grad():
        for path in paths:
            path.theta.weight.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
        optimizer.step()
    assert paths[0].theta.weight.abs().sum() > 0
    assert torch.equal(paths[0].theta.weight, paths[1].theta.weight)
