"""Averages over depth against their equations written out with lists, and against Inkling 2."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.inkling2.modeling_inkling2 import (
    Inkling2BlockAttentionResidual,
    Inkling2SlidingDecoderLayer,
)

from layerlab.blocks.context import Flow
from layerlab.blocks.shape import Shape, Site
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.residual.depth import AttentionResiduals
from tests.model.small import SIZES, shaken, small, tokens
from tests.variants.option import with_residual

ROUNDING = 1e-12  # float64 throughout: some thousand operations of 1e-16 each
SINGLE = 1e-5  # float32 of a few layers: hundreds of operations of 6e-8 each


def start(model: LabForCausalLM, ids: Tensor) -> tuple[Any, Tensor, Flow]:
    """The stack, its embeddings, and what its attention needs beside features."""
    stack: Any = model.model
    x = stack.embed_tokens(ids)
    places = torch.arange(ids.shape[1]).unsqueeze(0)
    return stack, x, Flow(rotary=stack.rotary_emb(x, places))


def dense(model: LabForCausalLM, ids: Tensor, dilation: int, period: int) -> Tensor:
    """Y_i = sum over j of alpha_ij X_j, with X_0 .. X_i in a list."""
    stack, x, flow = start(model, ids)
    post = model.config.parse_spec().block.placement == "post"
    outputs, depth = [x], len(stack.layers)
    for i, layer in enumerate(stack.layers, 1):
        if post:
            x = layer.attention_norm(x + layer.attention(x, flow)[0])
            x = layer.ffn_norm(x + layer.ffn(x, flow))
        else:
            x = x + layer.attention(layer.attention_norm(x), flow)[0]
            x = x + layer.ffn(layer.ffn_norm(x), flow)
        outputs.append(x)
        if i % period:
            continue
        after = stack.residual if i == depth else stack.layers[i].attention_residual
        weights = iter(after.alpha)
        x = torch.zeros_like(x)
        for j in range(i + 1):
            if (i - j) % dilation == 0:
                x = x + next(weights) * outputs[j]
        assert next(weights, None) is None, "as many weights as outputs"
    return stack.norm(x)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_denseformer_averages_what_its_equation_says(dilation, period, placement):
    model = with_residual("denseformer", 6, placement, dilation=dilation, period=period)
    ids = tokens(2, 8)
    with torch.no_grad():
        found = model.model(ids).last_hidden_state
        expected = dense(model, ids, dilation, period)
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"period": 2}])
def test_denseformer_starts_as_llama_bit_for_bit(options):
    for dtype in (torch.float32, torch.bfloat16):
        plain = small("llama", dtype=dtype)
        model = small("denseformer", dtype=dtype, **options)
        assert torch.equal(plain(tokens()).logits, model(tokens()).logits)
    assert any(name.endswith("alpha") for name, _ in model.named_parameters())


def root_mean_square(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def averaged(sources: list[Tensor], query: Tensor, normed: bool, scale: float) -> Tensor:
    """sum of a_i v_i, token by token, with a = softmax of w . RMS(v_i)."""
    scores = torch.stack([(root_mean_square(one) @ query) * scale for one in sources])
    weights = torch.exp(scores) / torch.exp(scores).sum(0)
    values = [root_mean_square(one) if normed else one for one in sources]
    return sum((w.unsqueeze(-1) * v for w, v in zip(weights, values, strict=True)), 0 * sources[0])


def looking_back(model: LabForCausalLM, ids: Tensor, size: int, values: str, scale: str) -> Tensor:
    """Every output of every sublayer in a list of blocks of so many sublayers."""
    stack, x, flow = start(model, ids)
    factor = SIZES["width"] ** -0.5 if scale == "inverse-sqrt" else 1.0
    blocks: list[list[Tensor]] = []

    def seen(query: Tensor) -> Tensor:
        sources = [x, *(torch.stack(block).sum(0) for block in blocks)]
        return averaged(sources, query, values == "normed", factor)

    count = 0
    for layer in stack.layers:
        for role in ("attention", "ffn"):
            h = x if count == 0 else seen(getattr(layer, f"{role}_residual").query)
            out = getattr(layer, role)(getattr(layer, f"{role}_norm")(h), flow)
            if count % size == 0:
                blocks.append([])
            blocks[-1].append(out[0] if isinstance(out, tuple) else out)
            count += 1
    return stack.norm(seen(stack.residual.query))


@pytest.mark.parametrize("values", ["raw", "normed"])
@pytest.mark.parametrize("scale", ["one", "inverse-sqrt"])
@pytest.mark.parametrize(
    ("form", "blocks", "size"), [("full", 8, 1), ("block", 2, 4), ("block", 3, 3), ("block", 1, 8)]
)
def test_attention_residuals_average_what_their_equation_says(form, blocks, size, values, scale):
    options = {"form": form, "blocks": blocks, "values": values, "scale": scale}
    model = with_residual("attention-residuals", **options)
    ids = tokens(2, 8)
    with torch.no_grad():
        found = model.model(ids).last_hidden_state
        expected = looking_back(model, ids, size, values, scale)
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)


def test_attention_residuals_start_as_the_plain_average():
    """By what enters every sublayer's norm, beside what the sublayers before it gave."""
    model = small("attention-residuals")
    stack: Any = model.model
    entered: list[Tensor] = []
    given: list[Tensor] = [stack.embed_tokens(tokens())]
    for layer in stack.layers:
        for role in ("attention", "ffn"):
            norm, sublayer = getattr(layer, f"{role}_norm"), getattr(layer, role)
            norm.register_forward_hook(lambda module, x, y: entered.append(x[0]))
            sublayer.register_forward_hook(
                lambda module, x, y: given.append(y[0] if isinstance(y, tuple) else y)
            )
    stack.norm.register_forward_hook(lambda module, x, y: entered.append(x[0]))
    model(tokens())
    assert len(entered) == len(given) == 2 * SIZES["layers"] + 1
    for count, x in enumerate(entered, 1):
        mean = torch.stack(given[:count]).mean(0)
        torch.testing.assert_close(x, mean, rtol=0, atol=ROUNDING)


def test_as_many_blocks_as_sublayers_are_the_full_form():
    sublayers = 2 * SIZES["layers"]
    full = shaken(small("attention-residuals"))
    for name, blocks in (("attention-residuals", sublayers), ("attention-residuals-block", 99)):
        block = shaken(small(name, form="block", blocks=blocks))
        assert torch.equal(full(tokens()).logits, block(tokens()).logits)
    coarse = shaken(small("attention-residuals-block", blocks=2))
    assert not torch.allclose(full(tokens()).logits, coarse(tokens()).logits)


def parts(layers: int, width: int, block_layers: int) -> list[AttentionResiduals]:
    """Our parts in Inkling 2's reading: for each sublayer, then for the end; w not zero."""
    shape = Shape(
        width=width, layers=layers, heads=1, kv_heads=1, head_width=8, inner=8, vocab=8, context=8
    )
    sites = [
        Site(shape=shape, layer=n, role=r) for n in range(layers) for r in ("attention", "ffn")
    ]
    made = []
    for site in [*sites, Site(shape=shape)]:
        blocks = layers // block_layers
        part = AttentionResiduals(
            width, site, form="block", blocks=blocks, values="normed", scale="inverse-sqrt"
        )
        for parameter in part.parameters():
            nn.init.normal_(parameter)
        made.append(part)
    return made


def inkling_average(part: AttentionResiduals, width: int) -> Inkling2BlockAttentionResidual:
    """Inkling 2's module with our query."""
    config = SimpleNamespace(hidden_size=width, _attn_implementation="eager")
    module = Inkling2BlockAttentionResidual(config)
    module.query.data.copy_(part.query.data)
    return module


def test_a_stack_computes_what_inkling_2_computes():
    """Its own layers are run; only what stands between the averages is a matrix and a tanh."""
    torch.manual_seed(0)
    layers, width, block_layers = 6, 16, 2
    ours = parts(layers, width, block_layers)
    matrices = [torch.randn(width, width) / 2 for _ in range(2 * layers)]
    embedding = torch.randn(2, 5, width)

    x, flow = embedding, Flow()
    for part, matrix in zip(ours[:-1], matrices, strict=True):
        x = part.write(x, torch.tanh(part.read(x, flow) @ matrix), flow)
    found = ours[-1].close(x, flow)

    states, blocks = embedding, embedding.new_zeros(2, 5, 0, width)
    for n in range(layers):
        attention, ffn = matrices[2 * n], matrices[2 * n + 1]
        layer = SimpleNamespace(
            is_block_boundary=n % block_layers == 0,
            attention_input=inkling_average(ours[2 * n], width) if n else None,
            mlp_input=inkling_average(ours[2 * n + 1], width),
            self_attn=lambda hidden_states, w=attention, **_: (torch.tanh(hidden_states @ w), None),
            mlp=lambda x, w=ffn: torch.tanh(x @ w),
            input_layernorm=nn.Identity(),
            post_attention_layernorm=nn.Identity(),
            post_attention_convolution=lambda x, **_: x,
            post_mlp_convolution=lambda x, **_: x,
        )
        run = inspect.unwrap(Inkling2SlidingDecoderLayer.forward)  # without its checkpointing
        after = run(layer, states, blocks)
        if layer.is_block_boundary:
            blocks = torch.cat([blocks, states.unsqueeze(-2)], dim=-2)
        states = after
    expected = inkling_average(ours[-1], width)(blocks, states)[0]
    assert blocks.shape[-2] == layers // block_layers
    torch.testing.assert_close(found, expected, rtol=0, atol=SINGLE)


def test_autocast_rounds_no_average_and_keeps_no_copy_of_its_sources():
    """A copy for each average would be memory that grows with the square of the depth."""
    model = shaken(small("attention-residuals", layers=3, dtype=torch.float32))
    part = model.model.layers[2].ffn_residual
    sources = [torch.randn(2, 5, 48, requires_grad=True) for _ in range(6)]
    scales = [part._inverse_size(one).detach() for one in sources]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda x: x):
        plain = part._average(sources, scales)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = part._average(sources, scales)
    assert torch.equal(found, plain) and found.dtype == torch.float32
    assert {one.dtype for one in kept} == {torch.float32}
