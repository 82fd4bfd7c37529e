"""muP: features and their changes keep their size at any width, in every variant."""

import math
import statistics
from collections.abc import Mapping

import pytest
import torch

from layerlab import list_variants
from layerlab.blocks.init import Axes, Constant, axes, normal, starts
from layerlab.model.build import assemble
from layerlab.model.design import design, with_base
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.parametrization import Growth, Scale, growths, scale
from layerlab.model.surgery.retrofit import rebuild
from layerlab.recipes.training_sections import TrainSection
from layerlab.training.optimizer import build_optimizer

# One between them would not move a slope: of three evenly spaced points the ends decide it.
WIDTHS = 64, 256
NARROW = 32, 128  # where what an update promises already grows as it does behind them
BASE = 64
SEEDS = range(2)
STEPS = 5
RATE = 2**-7
VOCAB, CONTEXT = 64, 16
# Features of size 1 have the slope 0. A part whose first weights are small against what it learns
# is not there yet: what it learned falls by up to a half per doubling, as a sum of what is not yet
# aligned does, or two such parts in a row by one; and a block without a norm before its head learns
# unevenly. What a rule has wrong by one power grows or falls by 1 more.
GROWS, FALLS = 0.35, -0.9
# What an update promises of the loss, at a rate at which it is still proportional to that; wrong by
# one power it grows by 1 more.
GENTLE, PROMISED = RATE / 4, 0.35
SOME = ("llama", "attention-residuals")
OPTIONS = [
    ("as-1", {"form": "full"}),
    ("as-1", {"form": "circulant"}),
    ("as-1", {"form": "circulant", "initial": "normal", "block": 16}),
    ("mhc", {"collapse": "head"}),
    ("gated-attention", {"gate": "head"}),
    ("laurel", {"normed": True}),
    ("qk-norm", {"form": "full"}),
    ("qk-norm", {"form": "l2"}),
    ("llama", {"head": "tied"}),
    ("llama", {"embedding_norm": "scale"}),
    ("siaf-2", {"form": "multi-projection"}),
    ("value-residual", {"form": "learned"}),
]
every = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, {}, marks=() if name in SOME else pytest.mark.full)
        for name in list_variants()
    ]
    + [pytest.param(name, options, marks=pytest.mark.full) for name, options in OPTIONS],
)


def made(name, width, seed=0, options=None, mup=True, head_width=None, base=BASE, **stack):
    heads = {"heads": 4} if head_width is None else {"heads": width // head_width}
    sizes = {"width": width, "layers": 2, "vocab": VOCAB, "context": CONTEXT, **heads}
    sizes |= {} if head_width is None else {"head_width": head_width}
    found = design(name, sizes=sizes, options={**(options or {}), **stack})
    found = with_base(found, base) if mup else found
    spec, shape = found.spec, found.shape
    return assemble(name, spec, shape, seed=seed, base=found.base).train()


def section(mup=True, rate=RATE, **settings):
    if mup:
        settings = {"parametrization": "mup", "mup_base_width": BASE, **settings}
    return TrainSection(max_steps=1, learning_rate=rate, **settings)


def tokens(seed=0):
    return torch.randint(VOCAB, (8, CONTEXT), generator=torch.Generator().manual_seed(seed))


def learn(model, optimizer, seed=0, steps=STEPS):
    text = tokens(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=text, labels=text).loss.backward()
        optimizer.step()


def sizes(model, seed=0) -> dict[str, float]:
    """Mean absolute values of what layers, their sublayers and shortcuts, and the head give."""
    found: dict[str, float] = {}

    def listen(name, module):
        def hook(module, given, output):
            first = output[0] if isinstance(output, tuple) else output
            found[name] = first.detach().abs().mean().item()

        return module.register_forward_hook(hook)

    hooks = [listen("logits", model.lm_head)]
    for number, layer in enumerate(model.model.layers):
        hooks.append(listen(f"layer {number}", layer))
        for part in (*layer.roles, "attention_shortcut", "ffn_shortcut"):
            if part in layer._modules:
                hooks.append(listen(f"{part} {number}", getattr(layer, part)))
    with torch.no_grad():
        model(input_ids=tokens(seed))
    for hook in hooks:
        hook.remove()
    return found


def slopes(found: Mapping[int, list[dict[str, float]]]) -> dict[str, float]:
    """Slopes of log2 of the mean over seeds against log2 of the width."""
    octaves = [math.log2(width) for width in found]
    return {
        name: statistics.linear_regression(
            octaves,
            [math.log2(statistics.mean(one[name] for one in of)) for of in found.values()],
        ).slope
        for name in next(iter(found.values()))[0]
        if all(one[name] > 0 for of in found.values() for one in of)
    }


def coordinates(name, options=None, mup=True, optimizer="adamw", steps=STEPS, **more):
    found: dict[int, list[dict[str, float]]] = {}
    for width in WIDTHS:
        for seed in SEEDS:
            model = made(name, width, seed, options, mup, **more)
            learn(model, build_optimizer(model, section(mup, optimizer=optimizer)), seed, steps)
            found.setdefault(width, []).append(sizes(model, seed))
    return slopes(found)


@pytest.mark.full
@every
def test_features_keep_their_size_after_some_updates(name, options):
    found = coordinates(name, options)
    assert {"layer 0", "layer 1", "logits"} <= found.keys()
    for part, slope in found.items():
        assert FALLS <= slope <= GROWS, (part, slope, found)


@pytest.mark.full
@pytest.mark.parametrize("head_width", [None, 16], ids=["wider heads", "more heads"])
def test_standard_blows_up(head_width):
    found = coordinates("llama", mup=False, head_width=head_width)
    assert found["layer 0"] > 1.5 and found["layer 1"] > 1.5 and found["logits"] > 0.5
    scaled = coordinates("llama", head_width=head_width)
    assert all(FALLS <= slope <= GROWS for slope in scaled.values()), scaled


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "pangu-pi", "hyper-connections", "laurel"])
def test_features_keep_their_size_under_muon(name, monkeypatch):
    # Its products are in bf16, for which many processors have no instruction: 35 times as long.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    found = coordinates(name, optimizer="muon")
    assert all(FALLS <= slope <= GROWS for slope in found.values()), found
    assert coordinates(name, optimizer="muon", mup=False)["layer 1"] > 0.5


@pytest.mark.full
@every
def test_no_parameter_promises_more_at_a_larger_width(name, options):
    """To first order an update of AdamW changes the loss by rate times the sum of |gradient|."""
    found: dict[int, list[dict[str, float]]] = {}
    for width in NARROW:
        for seed in SEEDS:
            model = made(name, width, seed, options, base=NARROW[0])
            own = section(rate=GENTLE, mup_base_width=NARROW[0])
            optimizer = build_optimizer(model, own)
            learn(model, optimizer, seed, steps=3)
            optimizer.zero_grad()
            text = tokens(seed)
            model(input_ids=text, labels=text).loss.backward()
            names = {id(one): name for name, one in model.named_parameters()}
            promised = {
                names[id(one)]: group["lr"] * one.grad.abs().sum().item()
                for group in optimizer.param_groups
                for one in group["params"]
                if one.grad is not None
            }
            found.setdefault(width, []).append(promised)
    wide = made(name, NARROW[-1], options=options, base=NARROW[0])
    grown = growths(wide.config, LabForCausalLM)
    total = sum(found[NARROW[-1]][0].values())
    for parameter, slope in slopes(found).items():
        # The sum of a single number is its noise, as is what hardly counts.
        one = grown[parameter]
        counts = max(of[parameter] for of in found[NARROW[-1]]) > 1e-3 * total
        if (one.read or one.written) and counts:
            assert slope <= PROMISED, (parameter, slope)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["bottleneck", "full", "circulant"])
def test_a_shortcut_of_any_form_starts_at_the_same_size(form):
    found = coordinates(
        "as-1", {"form": form, "initial": "normal", "shortcut.activation": "none"}, steps=0
    )
    for layer in (0, 1):
        assert abs(found[f"attention_shortcut {layer}"]) < 0.1, found


MATRIX, OUT, IN = (
    Growth(read=read, written=written, start=0) for read, written in ((1, 1), (0, 1), (1, 0))
)


def test_the_rules_are_those_of_the_source():
    """yang22's table 3, with widths over the base: 4 times as wide."""
    assert scale(MATRIX, 4) == Scale(std=1 / 2, rate=1 / 4, epsilon=1 / 4)
    assert scale(OUT, 4) == Scale(std=1, rate=1, epsilon=1 / 4)
    assert scale(IN, 4) == Scale(std=1 / 4, rate=1 / 4, epsilon=1)
    assert scale(Growth(read=0, written=0, start=0.5), 4) == Scale(start=1 / 2)
    assert all(scale(one, 1) == Scale() for one in (MATRIX, OUT, IN))


@pytest.mark.parametrize("name", list(list_variants()))
def test_every_parameter_of_every_variant_has_a_rule(name):
    model = made(name, 48, base=16)
    found = growths(model.config, LabForCausalLM)
    for parameter, one in model.named_parameters():
        growth = found[parameter]
        assert (growth.read, growth.written) in {(0, 0), (1, 0), (0, 1), (1, 1)}
        if one.dim() == 2 and min(one.shape) >= 48 and "embed" not in parameter:
            assert (growth.read, growth.written) == (1, 1) or parameter == "lm_head.weight"


@pytest.mark.parametrize(
    ("name", "options", "parameter", "growth"),
    [
        ("llama", {}, "model.embed_tokens.weight", OUT),
        ("llama", {}, "model.layers.0.ffn_norm.weight", OUT),
        ("llama", {}, "lm_head.weight", IN),
        ("gpt2", {}, "model.embed_positions.weight", OUT),
        ("gpt2", {}, "model.layers.0.ffn.up.bias", OUT),
        ("as-32", {}, "model.layers.0.attention_shortcut.paths.0.down.weight", MATRIX),
        ("as-1", {"form": "circulant"}, "model.layers.0.attention_shortcut.paths.0.weight", MATRIX),
        ("laurel", {}, "model.layers.0.ffn_residual.left.weight", IN),
        ("laurel", {}, "model.layers.0.ffn_residual.right.weight", OUT),
        ("mhc", {}, "model.layers.0.ffn_residual.weight", IN),
        ("hyper-connections", {}, "model.layers.0.ffn_residual.weight.weight", IN),
        ("attention-residuals", {}, "model.layers.0.ffn_residual.query", IN),
        ("canon", {}, "model.layers.0.attention.canon_a.weight", OUT),
        ("widenet", {}, "model.layers.0.ffn.router.weight", IN),
        ("ffn-prelu", {}, "model.layers.0.ffn.activation.slope", OUT),
    ],
)
def test_parameters_are_what_they_read_and_write(name, options, parameter, growth):
    model = made(name, 32, options=options, base=16)
    assert growths(model.config, LabForCausalLM)[parameter] == growth


def test_gates_of_heads_follow_what_grows():
    def growth(**more):
        model = made("gated-attention", 64, options={"gate": "head"}, base=32, **more)
        return growths(model.config, LabForCausalLM)["model.layers.0.attention.gate.weight"]

    assert growth() == IN  # four heads, twice as wide
    assert growth(head_width=16) == MATRIX  # twice as many heads


def test_a_constant_that_is_a_power_of_the_width_stays_what_it_is_at_the_base():
    small, large = (made("dyt", width) for width in (64, 256))
    for name, one in large.named_parameters():
        if "scale" in name or "alpha" in name:
            assert torch.equal(one, small.get_parameter(name)), name
    assert made("dyt", 256, mup=False).model.embedding_norm.scale.item() == 16


@pytest.mark.parametrize("head", ["untied", "tied"])
def test_at_the_base_width_nothing_differs(head):
    """First weights, groups of the optimizer and weights after updates, to the bit."""
    ways = True, False
    models = [made("pangu-pi", BASE, mup=mup, head=head) for mup in ways]
    optimizers = [
        build_optimizer(model, section(mup)) for model, mup in zip(models, ways, strict=True)
    ]
    one, other = (optimizer.state_dict()["param_groups"] for optimizer in optimizers)
    assert one == other
    for model, optimizer in zip(models, optimizers, strict=True):
        learn(model, optimizer)
    for name, weight in models[0].state_dict().items():
        assert torch.equal(weight, models[1].state_dict()[name]), name


def test_scores_fall_with_the_head_width_and_not_with_the_number_of_heads():
    def scaling(width, **more):
        return made("llama", width, **more).model.layers[0].attention.scaling

    assert scaling(256) == pytest.approx(scaling(64) / 4)  # 1 / head_width
    assert scaling(256, head_width=16) == scaling(64)
    assert made("qk-norm", 256, options={"form": "l2"}).model.layers[0].attention.scaling == 1


@pytest.mark.parametrize("head", ["untied", "tied"])
def test_a_saved_model_is_the_same_model(head, tmp_path):
    model = made("llama", 128, head=head).eval()
    model.save_pretrained(tmp_path)
    again = LabForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(model(tokens()).logits, again(tokens()).logits)
    # The embedding is drawn and moves as at the base, so as a head it counts for half.
    assert model.logit_factor == (0.5 if head == "tied" else 1)


@pytest.mark.full
@pytest.mark.parametrize("head", ["untied", "tied"])
def test_a_rebuilt_model_keeps_its_base(head):
    model = made("llama", 128, head=head).eval()
    again, other = rebuild(model, None, {}), rebuild(model, "pangu-pi", {})
    with torch.no_grad():
        for one in (again, other):  # which starts as llama
            assert torch.equal(model(tokens()).logits, one(tokens()).logits)
            assert (one.config.mup_base_width, one.config.mup_base_head_width) == (BASE, 16)


def test_rows_that_are_added_start_as_the_others_do():
    model = made("llama", 256)
    rows = model.resize_token_embeddings(VOCAB + 4096, mean_resizing=False).weight[VOCAB:]
    assert float(rows.detach().std()) == pytest.approx(0.02, rel=0.02)
    head = model.lm_head.weight[VOCAB:]
    assert float(head.detach().std()) == pytest.approx(0.02 / 4, rel=0.02)


def test_a_part_of_ones_own_falls_under_the_same_rules():
    """A vector is a gain unless it says that it is summed over."""

    class Own(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.empty(width))
            self.query = torch.nn.Parameter(torch.empty(width))
            starts(self, gain=Constant(1.0), query=normal)
            axes(self, query=Axes(read=(0,)))

    config = made("llama", 32, base=16).config
    found = growths(config, lambda one: torch.nn.ModuleDict({"own": Own(one.hidden_size)}))
    assert found == {"own.gain": OUT, "own.query": IN}
