"""One component at a time: which places belong to it, and that errors are those of its own runs."""

from math import isfinite, isnan

import pytest
import torch
from torch import nn

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import WEIGHTS, SiteIndex, attribution, error, outputs
from layerlab.numerics.emulation.emulate import Emulation, emulate, reference
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.records.layer_names import EMBEDDING

TOKENS = torch.arange(2, 34)[None]


def call(model):
    return lambda: model(input_ids=TOKENS, use_cache=False)


def logits(model, entering):
    with entering:
        return model(input_ids=TOKENS, use_cache=False).logits


@pytest.fixture(scope="module")
def found(tiny):
    model = tiny("gpt2")
    told = []
    result = attribution(
        model, call(model), "bf16", last=model.transformer.h[-1], cross=True, step=told.append
    )
    return model, result, told


@pytest.mark.full
def test_a_component_is_what_emulate_gives_where_only_it_rounds(found):
    model, result, _ = found
    true = logits(model, reference(model))
    shares = {part.name: part.error.logits for part in result.components}
    # Patterns select the operation alone where they name one.
    alone = logits(model, emulate(model, "bf16", where="transformer.h.*:add"))
    assert shares["residual stream"] == error(alone, true)
    whole = logits(model, emulate(model, "bf16"))
    assert result.whole.logits == error(whole, true)


@pytest.mark.full
def test_every_place_is_in_one_component_and_in_one_layer(found):
    _, result, _ = found
    for parts in (result.components, result.layers, result.cross):
        places = [place for part in parts for place in part.places]
        assert len(places) == len(set(places))
    every = {place for part in result.components for place in part.places}
    assert every == {place for part in result.layers for place in part.places}
    assert every == {place for part in result.cross for place in part.places}
    assert [part.layer for part in sorted(result.layers, key=lambda part: part.layer or 0)] == [
        *range(EMBEDDING, 3)
    ]


def test_weights_are_one_component_and_operations_have_the_names_of_their_modules(found):
    _, result, _ = found
    names = {part.name for part in result.components}
    assert {WEIGHTS, "residual stream", "mlp.c_fc", "ln_1", "lm_head"} <= names
    (weights,) = (part for part in result.components if part.name == WEIGHTS)
    assert OpSite("transformer.wte", "weight") in weights.places


def test_parts_are_ranked_and_add_up_to_the_closure(found):
    _, result, _ = found
    sizes = [part.error.logits for part in result.components]
    assert sizes == sorted(sizes, reverse=True)
    assert result.closure == pytest.approx(sum(sizes) / result.whole.logits)
    # Random weights at bf16 are in the linear regime: roundings are all but independent.
    assert 0.7 < result.closure < 1.4


def test_the_head_does_not_reach_the_last_stream(found):
    _, result, _ = found
    (head,) = (part for part in result.components if part.name == "lm_head")
    assert head.error.logits > 0
    # What is left is float32 against float64.
    assert head.error.stream < (64 * 2**-24) ** 2


def test_every_run_is_announced_and_none_is_made_twice(found):
    _, result, told = found
    assert len(told) == result.runs + 1
    assert len(set(told)) == len(told)


@pytest.mark.full
def test_pairs_are_run_where_the_closure_is_off(tiny, found):
    assert abs(found[1].closure - 1) < 0.2 and found[1].pairs == ()
    model = tiny("gpt2")
    with torch.no_grad():
        # The same vector again and again: its roundings are the same, and so add up in full.
        for block in model.transformer.h:
            block.mlp.c_fc.weight.mul_(40)
    result = attribution(model, call(model), "fp8_e4m3")
    assert abs(result.closure - 1) > 0.2 and result.pairs
    for pair in result.pairs:
        known = {part.name: part.error.logits for part in result.components}
        together = known[pair.first] + known[pair.second] + pair.excess.logits
        assert pair.joint.logits == pytest.approx(together)


@pytest.mark.full
def test_an_exact_format_has_no_error_and_no_closure(tiny):
    model = tiny("gpt2").double()
    result = attribution(model, call(model), "fp64")
    assert result.whole.logits == 0
    assert result.closure != result.closure
    assert result.pairs == ()


@pytest.mark.full
def test_what_overflows_has_no_share_and_the_place_that_does_so_first(tiny):
    model = tiny("llama")
    with torch.no_grad():
        # Squares of 1e22 are beyond float32, in which a norm of bf16 is computed as well.
        model.model.layers[1].self_attn.o_proj.weight.mul_(1e22)
    found = attribution(model, call(model), "bf16", last=model.model.layers[-1])
    assert found.overflow == "model.layers.1.post_attention_layernorm"
    assert all(map(isnan, (found.whole.logits, found.whole.stream, found.closure)))
    found = attribution(model, call(model), "fp16")
    assert found.overflow == "model.layers.1.self_attn.o_proj"
    assert isnan(found.whole.logits) and not found.pairs
    sizes = [part.error.logits for part in found.components]
    assert [isfinite(one) for one in sizes] == sorted(isfinite(one) for one in sizes)


@pytest.mark.full
def test_an_infinite_number_that_moves_no_logit_leaves_the_shares_as_they_are(tiny):
    model = tiny("gpt2")
    plain, steps = attribution(model, call(model), "bf16"), list[str]()
    model.transformer.h[0].mlp.register_forward_hook(
        lambda module, args, output: output + (output.float().abs() + 1e3).exp().reciprocal()
    )
    found = attribution(model, call(model), "bf16", step=steps.append)
    assert found.overflow is None and "no place" in steps
    assert found.closure == pytest.approx(plain.closure, rel=0.1)  # it rounds as well


def test_no_places_is_no_rounding_and_the_choice_can_be_taken_back(tiny):
    model = tiny("gpt2")
    run = Emulation(model, make_arithmetic("bf16"))
    full = outputs(run, call(model), ())[-1]
    run.only(())
    none = outputs(run, call(model), ())[-1]
    with torch.no_grad():
        plain = model(input_ids=TOKENS).logits
    assert not torch.equal(full, none)
    torch.testing.assert_close(none, plain)
    run.select(None)
    assert torch.equal(outputs(run, call(model), ())[-1], full)


def test_outputs_are_what_enters_what_each_module_gives_and_the_logits(tiny):
    model = tiny("llama")
    blocks = list(model.model.layers)
    run = Emulation(model, make_arithmetic("fp32"))
    entered, *streams, last = outputs(run, call(model), blocks)
    with torch.no_grad():
        hidden = model(input_ids=TOKENS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(entered.float(), hidden[0])
    torch.testing.assert_close(streams[0].float(), hidden[1])
    assert len(streams) == len(blocks) and last.shape[-1] == model.config.vocab_size


def test_numbered_experts_are_one_component_and_what_runs_first_is_the_embedding():
    places = [
        OpSite("embed", "weight"),
        OpSite("layers.0.experts.1.up"),
        OpSite("layers.1.experts.0.up"),
        OpSite("layers.1", "add"),
        OpSite("head"),
    ]
    model = nn.Module()
    model.embed = nn.Embedding(2, 2)
    known = SiteIndex(model, places)
    assert [known.kind(place) for place in places] == [
        *(WEIGHTS, "experts.*.up", "experts.*.up", "residual stream", "head")
    ]
    assert [known.floor(place) for place in places] == [EMBEDDING, 0, 1, 1, 2]
    assert known.floor_name(EMBEDDING) == "embedding"
    assert known.floor_name(2) == "behind the blocks"


@pytest.mark.parametrize(
    ("module", "operation", "name"),
    [
        ("h.0.attn", "cast", "attn:cast (attention weights or output, narrowed)"),
        ("transformer", "add", "transformer:add (embedding + position)"),
        ("model.rotary_emb", "", "model.rotary_emb (rotary tables)"),
        ("h.0.mlp", "add", "mlp:add"),
    ],
)
def test_a_name_that_says_too_little_is_explained(module, operation, name):
    places = [OpSite("h.0.ln"), OpSite(module, operation)]
    assert SiteIndex(torch.nn.Identity(), places).kind(places[1]) == name
