"""A stream read out is what the model makes of it: held against each family written out."""

from itertools import count
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from layerlab import build
from layerlab.errors import NotApplicable
from layerlab.known_names import VARIANTS
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.readout import Answer, answer, reading_out, spread
from tests.families.recipe import FAMILIES, UNBUILT
from tests.families.recipe import build as family

TEXT = torch.arange(3, 31)
PLACES = torch.tensor([0, 5, 27])


def answered(model: PreTrainedModel) -> Answer:
    return answer(model, anatomy(model), TEXT, PLACES)


def read(model: PreTrainedModel, layer: int) -> torch.Tensor:
    given = answered(model)
    with torch.no_grad(), reading_out(model, anatomy(model), given) as readout:
        return readout(given.streams[layer])


def gpt2(model: PreTrainedModel, x: torch.Tensor) -> torch.Tensor:
    norm = model.transformer.ln_f
    scaled = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, unbiased=False, keepdim=True) + norm.eps
    ).sqrt()
    return (scaled * norm.weight + norm.bias) @ model.transformer.wte.weight.T


def llama(model: PreTrainedModel, x: torch.Tensor) -> torch.Tensor:
    norm = model.model.norm
    scaled = x / (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return (scaled * norm.weight) @ model.lm_head.weight.T


def gemma2(model: PreTrainedModel, x: torch.Tensor) -> torch.Tensor:
    norm, cap = model.model.norm, model.config.final_logit_softcapping
    scaled = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return cap * torch.tanh((scaled * (1 + norm.weight)) @ model.lm_head.weight.T / cap)


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("written", [gpt2, llama, gemma2])
def test_each_layer_meets_the_final_norm_and_the_head(written, layer):
    """As TransformerLens defines the logit lens, the final norm applied, with its soft cap."""
    model = family(written.__name__).double()
    with torch.no_grad():
        expected = written(model, answered(model).streams[layer][PLACES])
    torch.testing.assert_close(read(model, layer), expected, rtol=1e-6, atol=1e-6)


def test_layer_by_layer_it_is_the_stream_of_the_model(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        states = model(TEXT[None], output_hidden_states=True).hidden_states
    found = answered(model).streams
    assert len(found) == len(states)
    for one, other in zip(found[:-1], states[:-1], strict=True):  # the last is behind the norm
        assert torch.equal(one, other[0])


@pytest.mark.parametrize("name", ["hyper-connections", "mhc", "history-5", "pangu-pi"])
def test_several_streams_are_read_as_the_model_reads_them(name):
    model = build(name, width=16, layers=2, heads=2, vocab=64, context=64).eval()
    assert torch.equal(read(model, -1), answered(model).logits)


def test_a_gradient_passes(tiny):
    model = tiny("llama")
    given = answered(model)
    stream = given.streams[1].clone().requires_grad_()
    with reading_out(model, anatomy(model), given) as readout:
        readout(stream)[0, 3].backward()
    # Of the positions that are read, the first alone is asked about.
    assert (
        stream.grad is not None and bool(stream.grad[0].any()) and not bool(stream.grad[1:].any())
    )


def test_the_model_is_as_it_was_found(tiny):
    model = tiny("llama")
    stack = anatomy(model)
    own = stack.blocks[0].forward
    stack.blocks[0].forward = lambda *args, **options: own(*args, **options)  # as accelerate does
    mine, before = vars(stack.blocks[0])["forward"], answered(model).logits
    with pytest.raises(ZeroDivisionError), reading_out(model, stack, answered(model)):
        _ = 1 / 0
    assert vars(stack.blocks[0])["forward"] is mine and "forward" not in vars(stack.blocks[1])
    assert torch.equal(answered(model).logits, before)


def test_what_is_made_of_more_than_the_last_stream_is_refused(tiny):
    model = tiny("llama")
    seen = []
    model.model.layers[0].register_forward_hook(lambda *given: seen.append(given[2]))
    model.model.norm.register_forward_pre_hook(lambda module, args: (args[0] + torch.rand(()),))
    with pytest.raises(NotApplicable, match="more than the stream behind its last block"):
        read(model, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_reaches_the_logits_is_seen_where_it_is_little(tiny, dtype):
    """A tenth of the largest logit more in every pass; and of a model as it is, nothing."""
    model = tiny("llama").to(dtype)
    assert read(model, 0).isfinite().all()
    tenth, passes = answered(model).logits.abs().max() / 10, count()
    model.lm_head.register_forward_hook(lambda *given: given[2] + tenth * next(passes))
    with pytest.raises(NotApplicable, match="more than the stream behind its last block"):
        read(model, 0)


def shaken(name: str, **options: Any) -> PreTrainedModel:
    """Return a variant whose every part matters, as after training."""
    model = build(name, width=16, layers=4, heads=2, vocab=64, context=64, **options).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) / 5)
    return model


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("denseformer", {}),
        ("attention-residuals", {}),
        ("attention-residuals-block", {"blocks": 2}),
        ("mhc", {"collapse": "head"}),
    ],
)
def test_logits_made_of_what_earlier_blocks_handed_on_are_refused(name, options):
    """The end of the finished pass reads what later blocks made: no lens of an earlier layer."""
    with pytest.raises(NotApplicable, match="more than the stream behind its last block"):
        read(shaken(name, **options), 0)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_no_later_block_speaks_in_an_earlier_readout(name):
    model = shaken(name)
    try:
        before = read(model, 1)
    except NotApplicable:
        return
    first, *_, last = anatomy(model).blocks
    with torch.no_grad():
        for parameter in {*last.parameters()} - {*first.parameters()}:  # some share between blocks
            parameter.mul_(2)
    assert torch.equal(read(model, 1), before)


def test_logits_that_are_no_numbers_the_second_time_are_refused(tiny):
    model = tiny("llama")
    given = answered(model)
    model.model.norm.register_forward_hook(lambda module, args, output: output * torch.nan)
    with pytest.raises(NotApplicable, match="more than"), reading_out(model, anatomy(model), given):
        pass


REFUSED = {
    **dict.fromkeys(("blt", "cpmant", "gemma3n_text", "prophetnet", "reformer"), "not one entry"),
    "xlnet": "not one entry per token",
    **dict.fromkeys(("dory", "hrm_text", "inkling2_loop_text"), "once in a forward"),
    "xlm": "are not modules of their own",
}


@pytest.mark.parametrize("name", ["blt", "hrm_text"])
def test_a_stack_that_cannot_be_stepped_over_is_refused(name):
    with pytest.raises(NotApplicable, match=REFUSED[name]):
        read(family(name), 0)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - UNBUILT))
def test_each_family_is_read_or_says_why(name):
    model = family(name)
    if name in REFUSED:
        with pytest.raises(NotApplicable, match=REFUSED[name]):
            read(model, 0)
        return
    before = answered(model).logits
    assert read(model, 0).shape == before.shape
    assert torch.equal(answered(model).logits, before), "it is as it was found"


def test_no_logits_and_no_numbers_are_refused(tiny):
    with pytest.raises(NotApplicable, match="gives no logits for every"):
        answered(tiny("llama").model)
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(torch.inf)
    with pytest.raises(NotApplicable, match="features behind layer 0 are not finite"):
        answered(model)


def test_a_model_without_a_place_for_the_head_gives_the_same(tiny):
    """Where a model computes all logits, those at the positions are taken."""
    model = tiny("llama")
    own = model.forward
    model.forward = lambda input_ids, use_cache: own(input_ids=input_ids, use_cache=use_cache)
    with torch.no_grad():
        whole = model(input_ids=TEXT[None], use_cache=False).logits[0]
    assert torch.equal(answered(model).logits, whole[PLACES])
    assert torch.equal(read(model, -1), whole[PLACES])


@pytest.mark.parametrize(("count", "most", "found"), [(28, 3, [0, 14, 27]), (3, 16, [0, 1, 2])])
def test_positions_are_spread_from_the_first_to_the_last(count, most, found):
    assert spread(count, most).tolist() == found
