"""PanGu-pi (pangu23), Theorems 4 and 6 to 9 as `inspect` reports them of whole models.

The right sides are computed again as they are printed, in float64, from a model's weights by their
names and from its attention matrices; the left sides from its modules.
"""

from functools import cache
from math import sqrt

import pytest
import torch
from torch.nn import functional

from layerlab.latency.candidates import build_candidate
from layerlab.loading.model import load_model
from layerlab.measures.quantities import theorems
from layerlab.measures.quantities.diversity import diversity as d
from layerlab.measures.quantities.theorems import MEASURES, SEED
from layerlab.measures.runner import readings
from layerlab.measures.support.sublayers import augmented_attention
from layerlab.model.build import assemble
from layerlab.plugins import list_measures
from tests.claims.adversary import DOUBLE, contraction, spectral

SIZES = "width=24,layers=3,heads=3,inner=40,vocab=64"
GELU, SILU = 1.12891, 1.09984  # their suprema, rounded up
# What float32 may add to a ratio of sums over a few dozen numbers.
NEAR = 2e-4
WITH_SHORTCUTS = ["pangu-pi", "pangu-pi-no-siaf", "as-1", "as-4", "as-16", "as-32", "as-64"]
WITH_SERIES = ["pangu-pi", "pangu-pi-no-as", "siaf-2", "siaf-3", "siaf-4", "siaf-2:body=mlp"]


@cache
def drawn(name):
    """A random model whose modules have left their start, and 20 tokens for it."""
    name, _, options = name.partition(":")
    found = build_candidate(f"{name}:{SIZES},{options}".rstrip(",")).design
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = assemble(found.variant.name, found.spec, found.shape).eval()
    with torch.no_grad():
        for key, one in model.named_parameters():
            moved = "shortcut" in key or "terms" in key
            one.mul_(1 if moved or one.dim() < 2 else 8)
            one.add_(0.3 * moved * torch.randn(one.shape, generator=generator))
    return model.requires_grad_(False), torch.randint(64, (20,), generator=generator)


@cache
def inspected(name):
    model, tokens = drawn(name)
    found = readings(load_model(model), [tokens], [list_measures()["theorems"]])
    rows = {(row["layer"], row["statement"]): row for row in found.rows.get("theorems", ())}
    return rows, found.notes.get("theorems", []), found.refused


class Layer:
    """One block in float64: what its sublayers read, and its maps as the source writes them."""

    def __init__(self, block, calls):
        self.block, self.calls = block, calls
        self.z = calls[block.attention][0][0].double()
        self.f = calls[block.ffn][0][0].double()
        self.heads = 3
        self.values = block.attention.value.weight.double().split(8)
        self.output = block.attention.output.weight.double()

    def matrices(self, z):
        """The attention matrices on any features, of the model's own attention in float64."""
        (_, *rest), options = self.calls[self.block.attention]
        return self.block.attention.double()(z[None], *rest, **options)[1][0].double()

    def msa(self, z):
        seen = [a @ (z @ v.T) for a, v in zip(self.matrices(z), self.values, strict=True)]
        return torch.cat(seen, -1) @ self.output.T

    def factor(self, matrices):
        """sqrt(lambda H) s v1."""
        s = max(spectral(v) for v in self.values)
        return contraction(matrices).max() * sqrt(self.heads) * s * spectral(self.output)

    def paths(self):
        shortcut = getattr(self.block, "attention_shortcut", None)
        return [] if shortcut is None else list(shortcut.paths)

    def shortcuts(self, z):
        made = torch.zeros_like(z)
        for path in self.paths():
            narrow = functional.gelu(z @ path.down.weight.double().T)
            made = made + narrow @ path.up.weight.double().T
        return made

    def sizes(self):
        """L sum over i of ||Theta_i||."""
        norms = [
            spectral(p.down.weight.double()) * spectral(p.up.weight.double()) for p in self.paths()
        ]
        return GELU * sum(norms)

    def terms(self):
        return [(t.scale.double(), t.shift.double()) for t in self.block.ffn.terms]

    def series(self, z):
        if not hasattr(self.block.ffn, "terms"):
            return functional.silu(z)
        first, *rest = self.terms()
        made = functional.silu(first[0] * z + first[1])
        for scale, shift in rest:
            made = made + functional.silu(scale * z + shift) - functional.silu(shift)
        return made

    def slope(self):
        if not hasattr(self.block.ffn, "terms"):
            return SILU
        return SILU * sum(scale.abs() for scale, _ in self.terms()).max()

    def matrix(self, name):
        return getattr(self.block.ffn, name).weight.double()

    def feedforward(self, z):
        up, down = self.matrix("up"), self.matrix("down")
        if hasattr(self.block.ffn, "gate"):
            return (self.series(z @ self.matrix("gate").T) * (z @ up.T)) @ down.T
        return self.series(z @ up.T) @ down.T

    def constant(self, z):
        """(sum L_i) s v2; of a gated one what the range of its gate on z allows."""
        up, down = self.matrix("up"), self.matrix("down")
        if not hasattr(self.block.ffn, "gate"):
            return self.slope() * spectral(up) * spectral(down)
        gate, inner, through = z @ self.matrix("gate").T, z @ up.T, spectral(self.matrix("gate"))
        ways = [
            self.series(gate).abs().max() * spectral(up)
            + self.slope() * inner.mean(0).abs().max() * through,
            self.series(gate.mean(0)).abs().max() * spectral(up)
            + self.slope() * inner.abs().max() * through,
        ]
        return spectral(down) * min(ways)


@cache
def literal(name):
    """The start of the stream, and every block, of the model in float64."""
    from copy import deepcopy

    model, tokens = deepcopy(drawn(name)[0]).double(), drawn(name)[1]
    model.set_attn_implementation("eager")
    calls = {}

    def keep(module, args, options):
        given = [args[0][0], *args[1:]]
        calls[module] = (given, options)

    blocks = list(model.model.layers)
    hooks = [
        one.register_forward_pre_hook(keep, with_kwargs=True)
        for block in blocks
        for one in (block.attention, block.ffn)
    ]
    start = []
    hooks.append(blocks[0].register_forward_pre_hook(lambda m, args: start.append(args[0][0])))
    model(input_ids=tokens[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return start[0], [Layer(block, calls) for block in blocks]


def check(row, measured, bound):
    assert row["measured"] == pytest.approx(float(measured), rel=NEAR)
    assert row["bound"] == pytest.approx(float(bound), rel=NEAR)
    assert not row["violated"] and row["tightness"] >= 1


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_SHORTCUTS)
def test_theorem_4_is_reported_as_it_is_computed_by_hand(name):
    rows, notes, _ = inspected(name)
    for number, layer in enumerate(literal(name)[1]):
        z = layer.z
        left = d(layer.msa(z) + z + layer.shortcuts(z)) / d(z)
        right = layer.factor(layer.matrices(z)) + 1 + layer.sizes()
        check(rows[number, "Theorem 4"], left, right)
        assert rows[number, "Theorem 4"]["shortcut"] == pytest.approx(
            float(layer.sizes()), rel=NEAR
        )
    assert "another stream than attention reads" in " ".join(notes)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", WITH_SHORTCUTS)
def test_theorem_6_is_reported_as_it_is_computed_by_hand(name):
    rows, _, _ = inspected(name)
    for number, layer in enumerate(literal(name)[1]):
        z = layer.z
        noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(SEED + number))
        noise = (noise - noise.mean(0)).to(DOUBLE)
        noise = noise * MEASURES[0].options["noise"] * d(z) / noise.norm()
        before, after = layer.matrices(z), layer.matrices(z + noise)
        change = layer.msa(z + noise) - layer.msa(z) + noise
        change = change + layer.shortcuts(z + noise) - layer.shortcuts(z)
        right = (1 + layer.factor(after) + layer.sizes()) * noise.norm()
        right = right + layer.factor(after - before) * d(z)
        check(rows[number, "Theorem 6"], d(change) / noise.norm(), right / noise.norm())


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_SERIES)
def test_theorem_7_is_reported_with_its_scales(name):
    rows, _, _ = inspected(name)
    gated = "mlp" not in name
    for number, layer in enumerate(literal(name)[1]):
        f = layer.f
        row = rows[number, "Theorem 7, gated" if gated else "Theorem 7"]
        check(row, d(layer.feedforward(f)) / d(f), layer.constant(f))


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted({*WITH_SHORTCUTS, *WITH_SERIES}))
@pytest.mark.parametrize("augmented", [False, True])
def test_theorems_8_and_9_are_reported_of_the_stack_without_norms(name, augmented):
    rows, _, _ = inspected(name)
    start, layers = literal(name)
    z, bound = start, 1.0
    for number, layer in enumerate(layers):
        factor = layer.factor(layer.matrices(z))
        left = layer.msa(z)
        if augmented:
            left, factor = left + z + layer.shortcuts(z), factor + 1 + layer.sizes()
        bound = bound * factor * layer.constant(left)
        z = layer.feedforward(left)
        said = f"Theorem {9 if augmented else 8}" + ("" if "mlp" in name else ", gated")
        row = rows[number, said]
        # What float32 rounds in a layer, those behind it pass on.
        assert row["bound"] == pytest.approx(float(bound), rel=NEAR * 10**number)
        assert row["measured"] == pytest.approx(float(d(z) / d(start)), rel=NEAR * 10**number)
        assert not row["violated"]


@pytest.mark.full
def test_a_bound_that_is_exceeded_is_flagged(monkeypatch):
    zero = torch.zeros((), dtype=DOUBLE)
    monkeypatch.setattr(theorems, "shortcut_bound", lambda *given: zero)
    monkeypatch.setattr(augmented_attention, "attention_bound", lambda *given: (zero, zero))
    rows = inspected.__wrapped__("pangu-pi")[0]
    violated = {said for (_, said), row in rows.items() if row["violated"]}
    assert violated == {"Theorem 4", "Theorem 6", "Theorem 8, gated"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "scaled-identity"])
def test_models_without_the_modules_are_told_where_their_theorems_are(name):
    rows, _, refused = inspected(name)
    assert rows == {} and "Theorems 2 and 3 are under gain" in refused["theorems"]


@pytest.mark.parametrize("name", ["as-4:input=raw", "as-4:rescale=0.75", "as-4:form=circulant"])
def test_theorem_4_is_refused_where_the_shortcut_is_of_another_form(name):
    rows, _, refused = inspected(name)
    assert rows == {} and "its shortcut is not the sum over paths" in refused["theorems"]
