"""PanGu-pi's theorems in `inspect`: what is heard and refused; numbers are in tests/claims."""

from typing import Any

import pytest
import torch
from torch import Tensor

import layerlab
from layerlab.errors import NotApplicable
from layerlab.latency.candidates import build_candidate
from layerlab.loading.model import load_model
from layerlab.measures.runner import readings
from layerlab.model.build import assemble
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.trace import trace
from layerlab.plugins import list_measures
from tests.measures.family import built

TOKENS = torch.arange(24)
EVERY = {"Theorem 4", "Theorem 6", "Theorem 7, gated", "Theorem 8, gated", "Theorem 9, gated"}


def made(name: str = "pangu-pi", moved: float = 0.3, grown: float = 1.0) -> Any:
    """A small random model of a variant, whose modules have left their start by so much."""
    name, _, options = name.partition(":")
    sizes = "width=16,layers=2,heads=2,inner=24,vocab=64"
    found = build_candidate(f"{name}:{sizes},{options}".rstrip(",")).design
    assert found is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = assemble(found.variant.name, found.spec, found.shape).eval()
        with torch.no_grad():
            for key, one in model.named_parameters():
                if "terms" in key or "shortcut" in key:
                    one.add_(moved * torch.randn(one.shape))
                elif one.dim() > 1:
                    one.mul_(grown)
    return model


def read(model: Any, ids: Tensor = TOKENS, name: str = "theorems", **options: Any) -> Any:
    return readings(load_model(model), [ids], [list_measures()[name].given(**options)])


def check_whole(rows: Any) -> None:
    """Every theorem has a row in both layers, and holds."""
    assert {(row["layer"], row["statement"]) for row in rows} == {
        (layer, statement) for layer in range(2) for statement in EVERY
    }
    assert not any(row["violated"] for row in rows)


@pytest.mark.few(1)
@pytest.mark.parametrize("moved", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_theorem_has_a_row_in_every_layer_from_the_start_on(moved, dtype):
    rows = read(made(moved=moved).to(dtype)).rows["theorems"]
    check_whole(rows)
    # A stack without shortcuts may end with tokens that float32 cannot tell apart.
    assert all(row["tightness"] >= 1 for row in rows if row["measured"] > 0)
    assert all((row["shortcut"] == 0) == (moved == 0) for row in rows if "4" in row["statement"])


@pytest.mark.full
def test_a_series_has_a_bound_under_gain_as_well():
    found = read(made(), name="gain")
    rows = [row for row in found.rows["gain"] if row["sublayer"] == "ffn"]
    assert all(row["ranged"] and 0 < row["measured"] <= row["bound"] for row in rows)
    seventh = [one for one in read(made()).rows["theorems"] if "7" in one["statement"]]
    assert [one["bound"] for one in seventh] == pytest.approx([row["bound"] for row in rows])


@pytest.mark.full
def test_the_first_tokens_and_a_noise_are_as_they_are_asked_for():
    model = made()
    whole, short = read(model), read(model, tokens=8)
    measured = [
        [one["measured"] for one in found.rows["theorems"]]
        for found in (short, read(model, TOKENS[:8]), whole)
    ]
    assert measured[0] == measured[1] != measured[2]
    loud = read(model, noise=10.0).rows["theorems"]
    changed = {
        one["statement"]
        for one, other in zip(whole.rows["theorems"], loud, strict=True)
        if one["measured"] != other["measured"]
    }
    assert changed == {"Theorem 6"}


def test_an_attention_of_another_form_leaves_the_theorems_that_do_not_speak_of_it():
    model = made()
    model.model.layers[0].attention.output.register_forward_hook(lambda *given: given[2].tanh())
    found = read(model)
    (note,) = (one for one in found.notes["theorems"] if one.startswith("attention: "))
    assert note.startswith("attention: not applicable to layer 0, because its value path is not")
    seen = {(row["layer"], row["statement"]) for row in found.rows["theorems"]}
    alone = {"Theorem 4", "Theorem 6", "Theorem 7, gated"}
    assert seen == {(0, "Theorem 7, gated"), *((1, name) for name in alone)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shortcut_of_another_form_is_no_squared_relu_for_what_bfloat16_rounds(dtype):
    # It takes a part of the stream away, which no activation of its paths does.
    ids = torch.randint(64, (24,), generator=torch.Generator().manual_seed(3))
    rows = read(made("pangu-pi:rescale=0.75", grown=6).to(dtype), ids).rows["theorems"]
    assert {row["statement"] for row in rows} == {"Theorem 7, gated"}


@pytest.mark.full
@pytest.mark.parametrize("grown", [1e-3, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_whose_squares_underflow_are_held_against_the_theorems(grown, dtype):
    rows = read(made(grown=grown).to(dtype)).rows["theorems"]
    check_whole(rows)


@pytest.mark.full
def test_a_stack_ends_where_its_own_features_underflow_and_says_so():
    found = read(made(grown=1e-7))
    (note,) = (one for one in found.notes["theorems"] if "not applicable" in one)
    assert note == "Theorem 8: not applicable to layer 1, because its features underflow in float32"
    assert (1, "Theorem 9, gated") in {
        (row["layer"], row["statement"]) for row in found.rows["theorems"]
    }


@pytest.mark.full
def test_features_below_float16_are_refused_as_such():
    notes = [one for one in read(made().half()).notes["theorems"] if "not applicable" in one]
    assert notes == [
        f"{name}: not applicable to layer 1, because its features underflow in float16"
        for name in ("Theorem 8", "Theorem 9")
    ]


def test_one_token_has_no_theorem():
    assert "one token has no diversity" in read(made(), TOKENS[:1]).refused["theorems"]


@pytest.mark.parametrize("family", ["gptj", "mixtral", "gemma2", "opt"])
def test_families_without_the_modules_are_not_run_for_them(family):
    found = read(built(family), torch.arange(8))
    assert "Theorems 2 and 3 are under gain" in found.refused["theorems"]


def layers(model: Any) -> list[Layer]:
    found = list[Layer]()

    def keep(layer: Layer) -> None:
        if layer.attend is not None:
            entered = layer.sublayers["attention"].entered
            left, record = layer.attend(entered)
            assert layer.attention is not None
            assert torch.equal(left, layer.sublayers["attention"].left)
            assert torch.equal(record.weights(), layer.attention.weights())
            other, _ = layer.attend(2 * entered)
            assert not torch.equal(other, left)
        found.append(layer)

    trace(model, anatomy(model), [TOKENS], keep)
    return [one for one in found if one.layer >= 0]


def test_attention_runs_on_other_features_and_leaves_the_pass_as_it_is():
    model = made()
    with torch.no_grad():
        logits = model(input_ids=TOKENS[None]).logits
    seen = layers(model)
    assert len(seen) == 2 and all(one.attend is not None for one in seen)
    for one in seen:
        shortcut, attention = one.sublayers["shortcut"], one.sublayers["attention"]
        assert torch.equal(shortcut.entered, attention.entered)
        middle = one.entered + attention.left + shortcut.left
        assert torch.allclose(one.stream, middle + one.sublayers["ffn"].left, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(input_ids=TOKENS[None]).logits, logits)


@pytest.mark.parametrize("family", ["llama", "gptj", "phi"])
def test_a_feed_forward_that_reads_what_attention_reads_is_no_shortcut(family):
    assert all("shortcut" not in one.sublayers for one in layers(built(family)))


def test_attention_that_is_not_heard_again_is_refused():
    model = made()

    def keep(layer: Layer) -> None:
        if layer.layer == 0:
            assert layer.attend is not None
            layer.attend(torch.zeros(3, 16))

    with pytest.raises((NotApplicable, RuntimeError)):
        trace(model, anatomy(model), [TOKENS], keep)


@pytest.mark.full
def test_a_report_on_models_without_the_modules_leaves_it_out_unless_it_is_named():
    def told(models: Any, **options: Any) -> dict[str, Any]:
        found = layerlab.inspect(models, input_ids=[[*range(9)]], progress=False, **options)
        return {one["name"]: one["not_applicable"] for one in found.to_dict()["measures"]}

    usual = told(built("llama"))
    assert "theorems" not in usual and "gain" in usual
    (refused,) = told(built("llama"), measures="theorems")["theorems"]
    assert "Theorems 2 and 3 are under gain" in refused["reason"]
    both = told([made(), built("llama")])["theorems"]
    assert len(both) == 1
