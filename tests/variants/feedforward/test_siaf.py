"""The series activation: every form against its formula, its start, its ties, its errors."""

from itertools import product

import pytest
import torch
from torch import Tensor

from layerlab.blocks.activation import activate
from layerlab.blocks.context import Flow
from layerlab.blocks.ffn import Plain
from layerlab.blocks.shape import Shape, Site
from layerlab.variants.feedforward.siaf import CURVED, FLAT_BELOW, SPREAD, Siaf
from tests.model.small import shaken, small, tokens
from tests.variants.option import ignores_padding, lawful

FORMS = ("affine-in", "scale-out", "multi-projection", "convolution")
SHAPE = Shape(width=12, layers=1, heads=2, kv_heads=2, head_width=6, inner=20, vocab=9, context=8)
MIXED = ("gelu", "tanh", "relu")


def possible(form: str, position: str, body: str) -> bool:
    return position == "gate" or (form != "multi-projection" and body == "swiglu")


OPTIONS = [
    {"form": form, "granularity": grain, "position": position, "body": body, "bias": bias}
    for (form, position, body), (grain, bias) in product(
        product(FORMS, ("gate", "product"), ("swiglu", "mlp")),
        (("channel", True), ("scalar", False)),
    )
    if possible(form, position, body)
] + [{"activations": MIXED}, {"activations": MIXED, "form": "multi-projection"}]


def named(options: dict) -> str:
    return "-".join(str(value) for value in options.values())


def part(**options: object) -> Siaf:
    """The part alone, in float64, with noise on every parameter."""
    made = Siaf(SHAPE.width, Site(shape=SHAPE), **Siaf.given(options)).double()
    return shaken(made)


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_every_option_is_causal_cached_and_trained(options):
    lawful("siaf-3", ffn=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_every_option_starts_as_its_first_term_to_the_bit(options, dtype):
    first = {"n": 1, "activations": options.get("activations", ("silu",))[0]}
    one = small("siaf-3", ffn={**options, **first}, dtype=dtype, layers=1)
    many = small("siaf-3", ffn=options, dtype=dtype, layers=1)
    assert torch.equal(one(tokens()).logits, many(tokens()).logits)
    assert sum(1 for _ in many.parameters()) > sum(1 for _ in one.parameters())


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("form", FORMS)
def test_every_activation_starts_as_its_first_term(form, name):
    options = {"form": form, "activations": name}
    alone = small("siaf-3", ffn={**options, "n": 1}, layers=1)(tokens()).logits
    assert torch.equal(alone, small("siaf-3", ffn=options, layers=1)(tokens()).logits)


def test_one_term_on_a_plain_body_is_the_plain_feed_forward():
    options = {"activations": "gelu-tanh", "bias": True}
    series = part(n=1, body="mlp", **options)
    plain = shaken(Plain(SHAPE.width, Site(shape=SHAPE)).double())
    assert {name: one.shape for name, one in series.named_parameters()} == {
        name: one.shape for name, one in plain.named_parameters()
    }
    plain.load_state_dict(series.state_dict())
    assert torch.equal(series(features(), Flow()), plain(features(), Flow()))


def features() -> Tensor:
    return torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def literal(made: Siaf, x: Tensor) -> Tensor:
    """The docstring, term by term and token by token."""
    options, names = made.chosen, made.chosen["activations"]
    names = [names] * options["n"] if isinstance(names, str) else names
    z = made.gate(x) if options["body"] == "swiglu" else made.up(x)
    factor = made.up(x) if options["body"] == "swiglu" else torch.ones_like(z)
    first, *rest = made.terms
    inside = options["position"] == "gate"
    form = options["form"]
    if form == "affine-in":
        total = activate(first.scale * z + first.shift, names[0])
    elif form == "scale-out":
        total = first.scale * activate(z + first.shift, names[0])
    elif form == "multi-projection":
        total = activate(z, names[0])
    else:
        total = activate(z + first.shift, names[0])
    total = total if inside else total * factor
    source = z if inside else total
    for name, term in zip(names[1:], rest, strict=False):
        if form == "affine-in":
            own = activate(term.scale * source + term.shift, name)
            total = total + own - activate(term.shift, name)
        elif form == "scale-out":
            total = total + term.scale * activate(source + term.shift, name)
        else:
            own = activate(x @ term.projection.weight.T + term.shift, name)
            total = total + own - activate(term.shift, name)
    if form == "convolution":
        kernel, mixed = made.neighbours.weight, torch.zeros_like(total)
        for token in range(x.shape[1]):
            for back in range(min(token + 1, options["n"])):
                mixed[:, token] += kernel[:, back] * total[:, token - back]
        total = mixed
    return made.down(total * factor if inside else total)


@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_every_option_is_its_formula(options):
    made, x = part(n=3, **options), features()
    torch.testing.assert_close(made(x, Flow()), literal(made, x), rtol=0, atol=1e-13)


def test_the_convolution_does_not_read_padding():
    ignores_padding(shaken(small("siaf-3", ffn={"form": "convolution"})))


# Ties


def after_training(model: torch.nn.Module, steps: int = 4) -> torch.nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = tokens(2, 12)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, labels=x).loss.backward()
        optimizer.step()
    return model


def terms(model: torch.nn.Module) -> list[list[dict[str, Tensor]]]:
    """The numbers of the terms from the second on, by layer."""
    return [
        [dict(term.named_parameters()) for term in layer.ffn.terms[1:]]
        for layer in model.model.layers
    ]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("form", FORMS[:3])
def test_terms_that_start_equal_stay_equal_for_ever(form, value):
    model = small("siaf-4", layers=1, ffn={"form": form}).train()
    with torch.no_grad():
        for term in model.model.layers[0].ffn.terms[1:]:
            for name, parameter in term.named_parameters():
                parameter.fill_(0.0 if name == "shift" else value)
    start = [one["shift"].clone() for one in terms(model)[0]]
    [(second, third, fourth)] = terms(after_training(model))
    assert same(second, third) and same(third, fourth)
    assert not torch.equal(second["shift"], start[0])


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("form", FORMS[:3])
def test_terms_part_from_our_start(form, name):
    options = {"form": form, "activations": name}
    model = small("siaf-4", layers=1, ffn=options).train()
    for start in terms(model):
        weights = [next(one for key, one in term.items() if key != "shift") for term in start]
        assert all(not weight.abs().sum() > 0 for weight in weights)
    for second, third, fourth in terms(after_training(model)):
        for key in second:
            assert not torch.equal(second[key], third[key])
            assert not torch.equal(third[key], fourth[key])


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("form", FORMS)
def test_every_term_moves_at_the_first_step(form, name):
    model = small("siaf-3", layers=1, ffn={"form": form, "activations": name}).train()
    x = tokens()
    model(x, labels=x).loss.backward()
    for layer in model.model.layers:
        moving = [layer.ffn.neighbours] if form == "convolution" else layer.ffn.terms[1:]
        for term in moving:
            key = next(key for key, _ in term.named_parameters() if key != "shift")
            gradient = dict(term.named_parameters())[key].grad
            reached = gradient != 0
            # A flat activation that is read as it is moves only the channels that some token opens.
            some = form in ("scale-out", "convolution") and name in FLAT_BELOW
            assert reached.any() if some else reached.all()


@pytest.mark.parametrize("name", FLAT_BELOW)
def test_a_flat_term_that_starts_at_or_below_zero_is_dead(name):
    model = small("siaf-2", ffn={"activations": name}).train()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.ffn.terms[1].shift.mul_(-1)
    x = tokens()
    model(x, labels=x).loss.backward()
    for layer in model.model.layers:
        assert not layer.ffn.terms[1].scale.grad.abs().sum() > 0


def test_shifts_start_with_the_spread_that_is_said():
    model = small("siaf-3", width=192, heads=4)
    for one in terms(model):
        for term in one:
            size = term["shift"].numel()
            # The standard deviation of n Gaussian numbers is off by 1/sqrt(2 n), six times at most.
            assert abs(term["shift"].std() / SPREAD - 1) < 6 / (2 * size) ** 0.5


def test_a_list_of_activations_survives_the_configuration():
    model = small("siaf-3", ffn={"activations": list(MIXED)})
    again = type(model.config).from_dict(model.config.to_dict())
    assert again.parse_spec() == model.config.parse_spec()
    assert again.parse_spec().block.ffn.given()["activations"] == MIXED
