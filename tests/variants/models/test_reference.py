"""The reference blocks: those of transformers bit for bit, and what differs between their kin."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

from layerlab.blocks.context import Flow
from layerlab.blocks.spec import NONE, BlockSpec, Spec, StackSpec
from layerlab.model.cost.cost import account
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.registry import variant
from tests.model.small import SIZES, shaken, small, tokens

WEIGHT = ("weight", "bias")


def turned(kind: str, value: Tensor) -> Tensor:
    """GPT's Conv1D keeps its matrices as input x output."""
    return value.T if kind == "weight" else value


def from_llama(theirs: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Where every weight of a Llama belongs, written down one by one."""
    body = theirs.model
    yield "model.embed_tokens.weight", body.embed_tokens.weight
    yield "model.norm.weight", body.norm.weight
    yield "lm_head.weight", theirs.lm_head.weight
    for number, layer in enumerate(body.layers):
        here = f"model.layers.{number}"
        yield f"{here}.attention_norm.weight", layer.input_layernorm.weight
        yield f"{here}.attention.query.weight", layer.self_attn.q_proj.weight
        yield f"{here}.attention.key.weight", layer.self_attn.k_proj.weight
        yield f"{here}.attention.value.weight", layer.self_attn.v_proj.weight
        yield f"{here}.attention.output.weight", layer.self_attn.o_proj.weight
        yield f"{here}.ffn_norm.weight", layer.post_attention_layernorm.weight
        yield f"{here}.ffn.gate.weight", layer.mlp.gate_proj.weight
        yield f"{here}.ffn.up.weight", layer.mlp.up_proj.weight
        yield f"{here}.ffn.down.weight", layer.mlp.down_proj.weight


def from_gpt(theirs: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Where every weight of a GPT-1 or a GPT-2 belongs."""
    body = theirs.transformer
    first = hasattr(body, "tokens_embed")
    yield "model.embed_tokens.weight", (body.tokens_embed if first else body.wte).weight
    yield "lm_head.weight", (body.tokens_embed if first else body.wte).weight
    yield "model.embed_positions.weight", (body.positions_embed if first else body.wpe).weight
    for kind in () if first else WEIGHT:
        yield f"model.norm.{kind}", getattr(body.ln_f, kind)
    for number, layer in enumerate(body.h):
        here = f"model.layers.{number}"
        for kind in WEIGHT:
            query, key, value = getattr(layer.attn.c_attn, kind).chunk(3, dim=-1)
            yield f"{here}.attention.query.{kind}", turned(kind, query)
            yield f"{here}.attention.key.{kind}", turned(kind, key)
            yield f"{here}.attention.value.{kind}", turned(kind, value)
            output = getattr(layer.attn.c_proj, kind)
            yield f"{here}.attention.output.{kind}", turned(kind, output)
            yield f"{here}.attention_norm.{kind}", getattr(layer.ln_1, kind)
            yield f"{here}.ffn.up.{kind}", turned(kind, getattr(layer.mlp.c_fc, kind))
            yield f"{here}.ffn.down.{kind}", turned(kind, getattr(layer.mlp.c_proj, kind))
            yield f"{here}.ffn_norm.{kind}", getattr(layer.ln_2, kind)


def filled(theirs: PreTrainedModel) -> PreTrainedModel:
    """The model with weights so large that nothing hides, not training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return theirs.eval()


def their_llama(attention: str, kv_heads: int) -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        vocab_size=61,
        max_position_embeddings=24,
        attn_implementation=attention,
    )
    return filled(LlamaForCausalLM(config))


def their_gpt2(attention: str, width: int) -> PreTrainedModel:
    config = GPT2Config(
        n_embd=width,
        n_layer=3,
        n_head=4,
        n_positions=24,
        vocab_size=61,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
    )
    return filled(GPT2LMHeadModel(config))


def their_gpt1(width: int) -> PreTrainedModel:
    config = OpenAIGPTConfig(n_embd=width, n_layer=3, n_head=4, n_positions=24, vocab_size=61)
    return filled(OpenAIGPTLMHeadModel(config))


def ours(name: str, theirs: PreTrainedModel, attention: str, **sizes: int) -> LabForCausalLM:
    """Our variant with the weights of a model of transformers."""
    model = small(name, dtype=torch.float32, **sizes)
    model.set_attn_implementation(attention)
    read = from_llama if name == "llama" else from_gpt
    model.load_state_dict(dict(read(theirs)))
    return model


def roundings(model: LabForCausalLM, length: int) -> float:
    """A relative bound to first order on what one order of operations differs from another.

    A product of n terms rounds n times; a layer chains the products with the matrices before and
    after the scores, the scores, the weighted sum, and the two of the feed-forward.
    """
    shape = model.config.shape()
    chain = 3 * shape.width + shape.head_width + length + shape.inner
    return shape.layers * chain * torch.finfo(torch.float32).eps


def is_same(model: LabForCausalLM, theirs: PreTrainedModel, x: torch.Tensor) -> bool:
    """Whether both give the same bits.

    A matrix of GPT lies the other way round there: on a processor that rounds the sums of few rows
    otherwise then, of some of these sizes, they are the same within rounding.
    """
    width, generator = model.config.hidden_size, torch.Generator().manual_seed(2)
    rows, bias = (torch.randn(n, generator=generator) for n in ((x.numel(), width), (4 * width,)))
    weight = torch.randn(width, 4 * width, generator=generator)
    alike = True
    for part in (weight, weight[:, : 3 * width], weight[:, :width], weight.T):
        given = rows if len(part) == width else rows.repeat(1, 4)
        turned = functional.linear(given, part.T.contiguous(), bias[: part.shape[1]])
        alike &= torch.equal(torch.addmm(bias[: part.shape[1]], given, part.contiguous()), turned)
    found, expected = model(x).logits, theirs(x).logits
    if alike:
        return torch.equal(found, expected)
    apart = (found - expected).abs().max() / expected.abs().max()
    return bool(apart < roundings(model, x.shape[1]))


@pytest.mark.parametrize("length", [2, 24])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_llama_is_that_of_transformers(attention, kv_heads, length):
    theirs = their_llama(attention, kv_heads)
    model = ours("llama", theirs, attention, inner=80, kv_heads=kv_heads)
    x = tokens(2, length)
    assert torch.equal(model(x).logits, theirs(x).logits)


@pytest.mark.parametrize("length", [2, 24])
@pytest.mark.parametrize("width", [48, 64])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2_is_that_of_transformers(attention, width, length):
    theirs = their_gpt2(attention, width)
    model = ours("gpt2", theirs, attention, width=width)
    assert is_same(model, theirs, tokens(2, length))


@pytest.mark.parametrize("length", [2, 24])
@pytest.mark.parametrize("width", [64, 256])
def test_gpt1_is_that_of_transformers(width, length):
    theirs = their_gpt1(width)
    assert width // 4 in (16, 64), "a scale of 1/4 or 1/8 rounds nothing"
    model = ours("gpt1", theirs, "eager", width=width)
    assert is_same(model, theirs, tokens(2, length))


@pytest.mark.parametrize(("width", "attention"), [(48, "eager"), (48, "sdpa"), (64, "sdpa")])
def test_gpt1_rounds_in_another_order_where_it_must(width, attention):
    theirs = their_gpt1(width)
    model = ours("gpt1", theirs, attention, width=width)
    x = tokens()
    expected = theirs(x).logits
    apart = (model(x).logits - expected).abs().max() / expected.abs().max()
    assert apart < roundings(model, x.shape[1])


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gradients_of_llama_are_those_of_transformers(attention, kv_heads):
    theirs = their_llama(attention, kv_heads).train()
    model = ours("llama", theirs, attention, inner=80, kv_heads=kv_heads).train()
    x = tokens()
    for one in (model, theirs):
        functional.cross_entropy(one(x).logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    places = dict(from_llama(theirs))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, places[name].grad), name


def differences(one: Spec, other: Spec) -> dict[str, object]:
    """The fields in which the second differs, with what they are there."""
    found = {}
    for place, kind in (("block", BlockSpec), ("stack", StackSpec)):
        for part in fields(kind):
            new = getattr(getattr(other, place), part.name)
            if new != getattr(getattr(one, place), part.name):
                found[f"{place}.{part.name}"] = new
    return found


def test_three_single_changes_lead_from_gpt1_to_gpt2():
    gpt1, gpt2 = variant("gpt1").spec, variant("gpt2").spec
    changes = [
        differences(gpt1, variant(f"gpt1-{change}").spec)
        for change in ("pre-norm", "final-norm", "scaled-init")
    ]
    assert [len(change) for change in changes] == [1, 1, 1]
    together: dict[str, object] = {}
    for change in changes:
        together |= change
    assert together == differences(gpt1, gpt2)


def test_scaled_start_shrinks_what_writes_into_the_stream_and_nothing_else():
    plain, scaled = small("gpt1"), small("gpt1-scaled-init")
    factor = 1 / math.sqrt(2 * SIZES["layers"])
    for name, parameter in scaled.named_parameters():
        other = plain.get_parameter(name)
        writes = name.endswith(("attention.output.weight", "ffn.down.weight"))
        expected = other * factor if writes else other
        eps = torch.finfo(torch.float32).eps  # drawn and scaled in float32
        torch.testing.assert_close(parameter, expected, rtol=2 * eps if writes else 0, atol=0)


PLAIN: dict[str, Callable[[float, float], float]] = {
    "ffn-relu": lambda value, slope: max(0.0, value),
    "ffn-prelu": lambda value, slope: value if value >= 0 else slope * value,
    "ffn-gelu": lambda value, slope: value * (1 + math.erf(value / math.sqrt(2))) / 2,
    "ffn-swish": lambda value, slope: value / (1 + math.exp(-value)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_feed_forward_number_by_number(name):
    part = shaken(small(name)).model.layers[0].ffn
    x = torch.randn(1, 2, SIZES["width"], generator=torch.Generator().manual_seed(2)).double()
    up, down = part.up.weight.tolist(), part.down.weight.tolist()
    slopes = getattr(part.activation, "slope", torch.zeros(len(up))).tolist()
    for token, found in zip(x[0].tolist(), part(x, Flow())[0].tolist(), strict=True):
        sums = [sum(a * b for a, b in zip(row, token, strict=True)) for row in up]
        inside = [PLAIN[name](one, slope) for one, slope in zip(sums, slopes, strict=True)]
        expected = [sum(a * b for a, b in zip(row, inside, strict=True)) for row in down]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("width", [48, 96, 768])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_feed_forward_has_the_parameters_of_swiglu(name, width):
    def counted(which: str) -> int:
        model = small(which, width=width, device="meta")
        return account(model.config.parse_spec(), model.config.shape()).parameters

    slopes = 4 * width * SIZES["layers"] if name == "ffn-prelu" else 0
    assert counted(name) == counted("llama") + slopes


def without_skip(layer: nn.Module, feed_forward: bool, x: Tensor, **options: object) -> Tensor:
    """A layer of transformers' Llama of which nothing is skipped."""
    x, _ = layer.self_attn(layer.input_layernorm(x), attention_mask=None, **options)
    return layer.mlp(layer.post_attention_layernorm(x)) if feed_forward else x


def with_skip(layer: nn.Module, x: Tensor, **options: object) -> Tensor:
    """A layer of transformers' Llama without its feed-forward."""
    return x + layer.self_attn(layer.input_layernorm(x), attention_mask=None, **options)[0]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("attention-only", partial(without_skip, feed_forward=False)),
        ("attention-mlp", partial(without_skip, feed_forward=True)),
        ("attention-skip", with_skip),
    ],
)
def test_halves_of_llama_are_parts_of_that_of_transformers(name, step):
    theirs = their_llama("sdpa", 4)
    model = small(name, dtype=torch.float32, inner=80)
    kept = set(model.state_dict())
    weights = {key: value for key, value in from_llama(theirs) if key in kept}
    model.load_state_dict(weights)
    x = tokens()
    hidden = theirs.model.embed_tokens(x)
    angles = theirs.model.rotary_emb(hidden, torch.arange(x.shape[1])[None])
    for layer in theirs.model.layers:
        hidden = step(layer, x=hidden, position_embeddings=angles)
    expected = theirs.lm_head(theirs.model.norm(hidden))
    assert torch.equal(model(x).logits, expected)


def test_halves_differ_from_llama_in_one_slot_each():
    llama = variant("llama").spec
    parts = [differences(llama, variant(f"attention-{one}").spec) for one in ("skip", "mlp")]
    assert [list(one) for one in parts] == [["block.ffn"], ["block.residual"]]
    assert differences(llama, variant("attention-only").spec) == {**parts[0], **parts[1]}
    bare = small("attention-only", norm="none").config.parse_spec().block
    assert bare == replace(variant("attention-only").spec.block, norm=NONE)
