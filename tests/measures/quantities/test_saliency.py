"""Saliency against central differences, against Captum, and by the laws that it must keep."""

import warnings
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab.measures.measure import MeasureContext
from layerlab.measures.quantities.diversity import cosine
from layerlab.measures.quantities.saliency import MEASURES, saliency
from layerlab.measures.runner import readings
from layerlab.measures.support.saliency.score import (
    absolute,
    alikeness,
    euclidean,
    objective,
    product,
)
from layerlab.observe.architecture.structure import anatomy, first_tensor
from layerlab.observe.tracing.trace import observing
from layerlab.records.layer_names import EMBEDDING
from tests.measures.asked import TOKENS, differences, gradients, precise, prompt, shifted, subject

(MEASURE,) = MEASURES


def found(model: Any, asked: Any, **options: Any) -> Any:
    with observing(model):
        return saliency(subject(model), asked, **options)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("layer", [EMBEDDING, 0, 1])
def test_every_reduction_is_that_of_central_differences(tiny, family, layer):
    model = precise(tiny(family))
    seen = found(model, prompt(), bins=3).layers[layer]
    expected = differences(model, layer, lambda z: objective(z, 11))
    stream = gradients(model)[0][layer]
    size = float(expected.abs().max())
    near = {"rtol": 0, "atol": 1e-7 * size * expected.shape[1]}
    torch.testing.assert_close(seen.scores["l1"], expected.abs().sum(1), **near)
    torch.testing.assert_close(seen.scores["l2"], expected.square().sum(1).sqrt(), **near)
    torch.testing.assert_close(seen.scores["product"], (expected * stream).sum(1), **near)
    # 16 channels in 3 bins: 6, 5 and 5.
    parts = expected.abs().split([6, 5, 5], 1)
    torch.testing.assert_close(seen.image, torch.stack([p.mean(1) for p in parts], 1), **near)


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "foil"), [({"probability": True}, None), ({}, 4), ({"probability": True}, 4)]
)
def test_probability_and_foil_are_what_is_differentiated(tiny, options, foil):
    model = tiny("gpt2").double()
    seen = found(model, prompt(position=3, foil=foil), **options).layers[1]

    def ask(z: Tensor) -> Tensor:
        return z[11] - z[4] if foil else z.log_softmax(0)[11]

    expected = differences(model, 1, ask, position=3).abs().sum(1)
    torch.testing.assert_close(seen.scores["l1"], expected, rtol=1e-6, atol=1e-9)


def test_captum_says_the_same_at_every_layer(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from captum.attr import LayerGradientXActivation, Saliency

    model = tiny("gpt2").double()
    seen = found(model, prompt()).layers

    def ask(embedded: Tensor) -> Tensor:
        return model(inputs_embeds=embedded, use_cache=False).logits[:, -1]

    embedded = model.transformer.wte(TOKENS[None]).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it sets requires_grad
        peer = Saliency(ask).attribute(embedded.requires_grad_(True), target=11)[0]
    torch.testing.assert_close(seen[EMBEDDING].scores["l1"], peer.sum(1), rtol=1e-10, atol=0)
    for layer, block in enumerate(anatomy(model).blocks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = LayerGradientXActivation(ask, block).attribute(embedded, target=11)
        expected = first_tensor(peer)[0].sum(1).detach()
        torch.testing.assert_close(seen[layer].scores["product"], expected, rtol=1e-9, atol=1e-14)


def test_products_add_up_to_the_derivative_along_the_stream(tiny):
    """Each layer: the sum over tokens is how the target moves as the whole stream is scaled."""
    model = precise(tiny("llama"))
    streams, _ = gradients(model)
    for layer, reading in found(model, prompt()).layers.items():
        ends = []
        for scale in (1e-6, -1e-6):
            with shifted(model, layer, scale * streams[layer]):
                ends.append(float(model(TOKENS[None]).logits[0, -1, 11]))
        expected = (ends[0] - ends[1]) / 2e-6
        assert float(reading.scores["product"].sum()) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(position=st.integers(-len(TOKENS), len(TOKENS) - 1))
def test_nothing_behind_the_position_matters(position):
    model = _llama()
    place = position % len(TOKENS)
    layers = found(model, prompt(position)).layers
    for reading in layers.values():
        assert not reading.scores["l1"][place + 1 :].any() and not reading.image[place + 1 :].any()
        assert reading.scores["l1"][place] > 0
    # After the last block only the position itself is read.
    assert not max(layers.items())[1].scores["l1"][:place].any()


_kept: list[Any] = []


def _llama() -> Any:
    """One small model for all examples of a property."""
    if not _kept:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        small = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
        config = LlamaConfig(vocab_size=16, num_attention_heads=2, **small)
        _kept.append(precise(LlamaForCausalLM(config).eval()))
    return _kept[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 6), width=st.integers(1, 9))
def test_scores_enclose_each_other_and_grow_with_the_gradient(seed, tokens, width):
    draw = torch.Generator().manual_seed(seed)
    stream, gradient = torch.randn(2, tokens, width, generator=draw, dtype=torch.float64)
    l1, l2 = absolute(gradient), euclidean(gradient)
    assert bool((l2 <= l1 * (1 + 1e-12)).all()) and bool((l1 <= width**0.5 * l2 + 1e-12).all())
    # Cauchy and Schwarz.
    assert bool((product(stream, gradient).abs() <= euclidean(stream) * l2 + 1e-12).all())
    torch.testing.assert_close(absolute(-3 * gradient), 3 * l1)
    torch.testing.assert_close(product(stream, -3 * gradient), -3 * product(stream, gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_that_rounding_makes_in_front_of_a_norm_is_zero(tiny, dtype):
    model = tiny("llama", rms_norm_eps=0.0).to(dtype)
    asked = prompt()
    layers = found(model, asked).layers
    *earlier, last = (one.scores["product"][asked.position] for one in layers.values())
    assert float(last) == 0.0 and all(float(one) != 0.0 for one in earlier)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), tokens=st.integers(2, 9), width=st.integers(1, 9))
def test_likeness_of_tokens_is_on_average_the_mean_cosine(seed, tokens, width):
    draw = torch.Generator().manual_seed(seed)
    stream = torch.randn(tokens, width, generator=draw) * 10.0 ** float(seed % 7 - 3)
    mean = float(alikeness(stream).mean())
    assert mean == pytest.approx(max(float(cosine(stream)), -1 / (tokens - 1)), abs=1e-12)


def test_a_token_of_zeros_has_no_likeness():
    seen = alikeness(torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    assert seen[1].isnan() and seen[[0, 2]].tolist() == [1.0, 1.0]


def test_a_short_type_is_read_in_float32(tiny):
    wide, short = (found(tiny("llama").to(t), prompt()) for t in (torch.float32, torch.bfloat16))
    for layer, reading in short.layers.items():
        expected = wide.layers[layer].scores["l1"]
        torch.testing.assert_close(reading.scores["l1"], expected, rtol=0.2, atol=1e-3)


def test_a_long_prompt_is_reported_by_its_largest_tokens(tiny):
    model = tiny("gpt2")
    tokens = torch.arange(40) % 30
    options = {"text": None, "tokens": 8, "target": 11}
    seen = readings(subject(model), [tokens], [MEASURE.given(**options)])
    rows, picture = seen.rows["saliency"], seen.pictures["saliency"]
    assert len(rows) == 3 * 8 and len(picture["positions"]) == 8
    assert picture["positions"][-1] == 39 and picture["length"] == 40
    assert seen.notes["saliency"] == [
        "of 40 tokens the 8 with the largest share of a layer's saliency are reported"
    ]
    whole = readings(subject(model), [tokens], [MEASURE.given(**{**options, "tokens": 40})])
    first = {row["position"]: row["l1"] for row in _embedding(whole.rows["saliency"])}
    assert all(first[row["position"]] == row["l1"] for row in _embedding(rows))
    sizes = pd.DataFrame(whole.rows["saliency"]).pivot(
        index="layer", columns="position", values="l1"
    )
    most = sizes.div(sizes.sum(axis=1), axis=0).max().drop(39).nlargest(7)
    assert picture["positions"] == [*sorted(most.index), 39]


def _embedding(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row["layer"] == EMBEDDING]


def test_what_the_model_predicts_is_asked_about_where_nothing_is_named(tiny):
    model = tiny("gpt2")
    (sequence,) = [TOKENS]
    seen = readings(subject(model), [sequence], [MEASURE.given(text=None)])
    picture = seen.pictures["saliency"]
    assert picture["target"] == picture["prediction"] and picture["target"]["rank"] == 1
    with torch.no_grad():
        assert picture["target"]["id"] == int(model(TOKENS[None]).logits[0, -1].argmax())


def test_a_prompt_that_does_not_fit_is_a_reason_and_not_an_error(tiny):
    seen = readings(subject(tiny("gpt2")), [TOKENS], [MEASURE])
    assert "has no tokenizer" in seen.refused["saliency"]
    seen = readings(subject(tiny("gpt2")), [TOKENS], [MEASURE.given(text=None, position=6)])
    assert "position 6 is outside the prompt, which has 6 tokens" in seen.refused["saliency"]
    assert not seen.pictures


def test_a_gradient_that_is_not_finite_is_a_reason_and_no_row(tiny):
    model = tiny("llama")
    model.model.layers[0].mlp.down_proj.weight.data[0, 0] = torch.nan
    seen = readings(subject(model), [TOKENS], [MEASURE.given(text=None)])
    assert seen.refused["saliency"] == "the gradient behind layer 1 is not finite"
    assert not seen.pictures


def test_a_foil_that_is_predicted_is_no_foil(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        predicted = int(model(TOKENS[None]).logits[0, -1].argmax())
    seen = readings(subject(model), [TOKENS], [MEASURE.given(text=None, foil=predicted)])
    assert seen.refused["saliency"] == (
        f"the foil '{predicted}' is what tiny predicts; say with --target what it is to be "
        "compared with"
    )
    assert not any(module._forward_hooks for module in model.modules())
    given = MEASURE.given(text=None, foil=predicted, target=(predicted + 1) % 30)
    assert not readings(subject(model), [TOKENS], [given]).refused


def test_the_likeliest_three_are_told_in_their_order(tiny):
    model = tiny("gpt2")
    picture = readings(subject(model), [TOKENS], [MEASURE.given(text=None, target=11)]).pictures[
        "saliency"
    ]
    with torch.no_grad():
        chances = model(TOKENS[None]).logits[0, -1].softmax(0)
    told = picture["predictions"]
    assert [one["id"] for one in told] == chances.topk(3).indices.tolist()
    assert [one["rank"] for one in told] == [1, 2, 3] and told[0] == picture["prediction"]
    assert [one["probability"] for one in told] == pytest.approx(chances.topk(3).values.tolist())


def test_the_model_is_left_as_it_was(tiny):
    model = tiny("gpt2").train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    readings(subject(model), [TOKENS], [MEASURE.given(text=None)])
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any("forward" in vars(block) for block in anatomy(model).blocks)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_rows_say_where_the_target_came_before(tiny):
    run = MeasureContext(options={**MEASURE.options, "text": None, "target": 9})
    model = tiny("gpt2")
    from layerlab.measures.measure import ModelContext

    whole = ModelContext(
        subject=subject(model),
        sequences=[TOKENS],
        begin=lambda runs: None,
        step=lambda what: None,
        trace=lambda *given: None,
    )
    with observing(model):
        rows = list(MEASURE.read(whole, run))
    assert {row["position"] for row in rows if row["earlier"]} == {1, 3}
    assert run.picture["earlier"] == [1, 3]
