"""Canon layers: against a literal transcription, with every choice of places, while generating."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.models.canon import EVERYWHERE, SUBSETS
from tests.model.small import SIZES, shaken, small, tokens
from tests.variants.option import TIGHT, close

FEW = ("a", "b", "c", "d", "ac", "abcd")


def canon(module: torch.nn.Module | None, x: Tensor) -> Tensor:
    """x + conv(x) with PyTorch's own depthwise convolution."""
    if module is None:
        return x
    weight = module.weight.flip(1).unsqueeze(1)
    padded = functional.pad(x.transpose(1, 2), (module.kernel - 1, 0))
    return x + functional.conv1d(padded, weight, groups=x.shape[2]).transpose(1, 2)


def feed_forward(part: torch.nn.Module, x: Tensor) -> Tensor:
    x = canon(part.canon_c, x)
    gate, up = canon(part.canon_d, torch.cat((part.gate(x), part.up(x)), -1)).chunk(2, -1)
    return part.down(functional.silu(gate) * up)


def projected(part: torch.nn.Module, x: Tensor) -> list[Tensor]:
    x = canon(part.canon_a, x)
    joint = torch.cat((part.query(x), part.key(x), part.value(x)), -1)
    parts = canon(part.canon_b, joint).split([48, 24, 24], -1)
    return [one.view(2, 24, -1, 12).transpose(1, 2) for one in parts]


@pytest.mark.parametrize("places", FEW)
def test_it_is_what_the_source_says(places):
    model = shaken(small("canon", places=places, kv_heads=2))
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    layer = model.model.layers[1]
    layer.ffn.register_forward_hook(lambda _, given, out: seen.update(ffn=(given[0], out)))
    layer.attention.register_forward_pre_hook(lambda _, given: seen.update(attention=given))
    model(tokens())
    close(feed_forward(layer.ffn, seen["ffn"][0]), seen["ffn"][1])
    x, flow = seen["attention"]
    flow.cache = None
    for found, expected in zip(
        layer.attention.heads(x, flow), projected(layer.attention, x), strict=True
    ):
        close(found, expected)


def test_all_choices_of_places_are_taken_and_each_has_its_convolutions():
    assert len(SUBSETS) == 2 ** len(EVERYWHERE) - 1
    for places in SUBSETS:
        model = small("canon", places=places, device="meta")
        names = {name.split(".")[4] for name, _ in model.named_parameters() if "canon" in name}
        assert names == {f"canon_{place}" for place in places}
        assert model.model.convolutions == len(places)


def test_each_place_has_an_effect():
    states = [shaken(small("canon", places=places))(tokens()).logits for places in EVERYWHERE]
    for one, other in itertools.pairwise(states):
        assert not torch.allclose(one, other)


def test_at_an_identity_start_it_is_llama_and_gradient_reaches_the_kernels():
    model, plain = small("canon", start="identity"), small("llama")
    assert torch.equal(model(tokens()).logits, plain(tokens()).logits)
    model.train()
    model(tokens(), labels=tokens()).loss.backward()
    kernels = [one for name, one in model.named_parameters() if "canon" in name]
    assert len(kernels) == 12
    assert all(one.grad.abs().sum() > 0 for one in kernels)


@pytest.mark.parametrize("kernel", [2, 4, 7])
def test_kernels_start_as_those_of_a_pytorch_convolution(kernel):
    found = torch.cat(
        [
            one.flatten()
            for name, one in small("canon", kernel=kernel, width=192).named_parameters()
            if "canon" in name
        ]
    )
    bound = kernel**-0.5
    theirs = torch.nn.Conv1d(4096, 4096, kernel, groups=4096, bias=False).weight
    assert theirs.abs().max() <= bound and theirs.abs().max() > 0.99 * bound
    assert found.abs().max() <= bound and found.abs().max() > 0.99 * bound
    # The variance of n uniform numbers is bound^2 / 3, give or take 0.9 / sqrt(n): five of these.
    assert abs(found.var().item() / (bound**2 / 3) - 1) < 5 * 0.9 / found.numel() ** 0.5


def generated(model: LabForCausalLM, x: Tensor, **options: object) -> Tensor:
    settings = {"attention_mask": torch.ones_like(x), "pad_token_id": 0, **options}
    return model.generate(x, max_new_tokens=9, min_new_tokens=9, **settings)


def model_of_words(**options: object) -> LabForCausalLM:
    return shaken(small("canon", dtype=torch.float64, **options))


@pytest.mark.parametrize("prompt", [1, 2, 8])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_is_generation_without(prompt, beams):
    model, x = model_of_words(), tokens(2, prompt)
    cached = generated(model, x, num_beams=beams, do_sample=False)
    plain = generated(model, x, num_beams=beams, do_sample=False, use_cache=False)
    assert torch.equal(cached, plain)
    assert cached.shape == (2, prompt + 9)


def test_generation_with_a_static_cache_is_generation_without():
    model, x = model_of_words(), tokens(2, 5)
    static = generated(
        model, x, do_sample=False, cache_implementation="static", disable_compile=True
    )
    assert torch.equal(static, generated(model, x, do_sample=False, use_cache=False))


def test_a_padded_prompt_is_continued_as_it_is_alone():
    model, x = model_of_words(), tokens(1, 6)
    batch = torch.cat((tokens(1, 10, seed=3), torch.cat((torch.zeros(1, 4).long(), x), 1)))
    mask = torch.ones_like(batch)
    mask[1, :4] = 0
    found = generated(model, batch, attention_mask=mask, do_sample=False)
    alone = generated(model, x, do_sample=False)
    assert torch.equal(found[1:, 10:], alone[:, 6:])


def test_a_drafting_model_changes_nothing_but_the_time():
    model, draft, x = model_of_words(), shaken(small("llama"), seed=3), tokens(1, 6)
    plain = generated(model, x, do_sample=False)
    assert torch.equal(generated(model, x, do_sample=False, assistant_model=draft), plain)


def test_a_value_of_a_shared_option_holds_for_both_sublayers():
    layer = small("canon", places="ad", kernel=3).model.layers[0]
    assert layer.attention.canon_a.kernel == layer.ffn.canon_d.kernel == 3
    assert layer.attention.canon_b is None and layer.ffn.canon_c is None
    apart = small("canon", **{"attention.kernel": 2}).model.layers[0]
    assert (apart.attention.canon_a.kernel, apart.ffn.canon_c.kernel) == (2, 4)


def test_the_context_of_a_layer_is_the_kernel_where_nothing_attends():
    """With closed attention a token sees kernel - 1 tokens back per place and layer, not more."""
    model = shaken(small("canon", places="c", layers=2))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.output.weight.zero_()
    x = tokens(1, 24)
    y = x.clone()
    y[:, 4] = (y[:, 4] + 1) % SIZES["vocab"]
    change = (model(x).logits - model(y).logits).abs().amax(-1)[0]
    assert (change[4:11] > TIGHT).all()
    assert not change[:4].any() and not change[11:].any()
