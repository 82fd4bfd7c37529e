"""Calls of a block's children are read as its sublayers, in families of every form."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.block_calls import BlockCall, ChildCall, sublayers
from layerlab.observe.tracing.trace import trace
from tests.families.recipe import build

TOKENS = torch.arange(10, 34)


def read(model):
    layers, fronts = [], {}
    trace(model, anatomy(model), [TOKENS], layers.append, fronts=fronts)
    return layers, fronts


@pytest.mark.parametrize("family", ["openai-gpt", "gpt2", "bloom"])
def test_a_front_is_the_norm_that_ended_the_block_before(family):
    # The feed-forward of bloom gives the stream, too, which it is handed to add to it.
    model = build(family)
    blocks = anatomy(model).blocks
    ends = [block.ln_2 for block in blocks] if family == "openai-gpt" else []
    assert read(model)[1] == dict(enumerate(ends, 1))


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_attention_is_run_on_other_features_where_it_adds_no_residual(family):
    model, again = build(family), []

    def keep(layer):
        if layer.attend is not None:
            attention = layer.sublayers["attention"]
            left, record = layer.attend(attention.entered)
            other, _ = layer.attend(2 * attention.entered)
            again.append((left, attention.left, record.weights(), layer.attention.weights()))
            assert not torch.equal(other, left)

    trace(model, anatomy(model), [TOKENS], keep)
    assert len(again) == (0 if family == "bloom" else len(anatomy(model).blocks))
    for left, own, weights, expected in again:
        assert torch.equal(left, own) and torch.equal(weights, expected)


def test_heads_of_several_attentions_in_a_block_are_counted_on():
    layers, _ = read(build("longcat_flash"))
    records = [one.attention for one in layers if one.attention is not None]
    blocks = {one.layer: [] for one in records}
    for one in records:
        blocks[one.layer] += range(one.first, one.first + one.heads)
    assert len(records) == 2 * len(blocks)
    assert all(heads == list(range(len(heads))) for heads in blocks.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_branch_ends_in_front_of_the_child_that_adds_the_residual(dtype):
    # In bfloat16 the norm behind that child reads a copy of what it gave.
    for layer in read(build("zaya").to(dtype))[0]:
        for one in layer.sublayers.values():
            assert one.branch is not None and torch.equal(one.branch, one.left)


def call(module, entered, name=""):
    left = module(entered)
    return ChildCall(
        module=module, name=name, entered=entered, left=left, kept=left.clone(), residual=None
    )


def block_call(*calls, inner=()):
    return BlockCall(
        index=0,
        args=(),
        options={},
        entered=calls[0].entered,
        calls=list(calls),
        inner={one.module: one for one in inner},
    )


@torch.no_grad()
def test_a_shortcut_is_the_one_matrix_that_reads_what_attention_reads():
    attention, ffn, *beside = (nn.Linear(4, 4) for _ in range(4))
    part = SimpleNamespace(outer=attention, module=attention)
    stream, other = torch.randn(2, 1, 3, 4)
    calls = [call(attention, stream), call(ffn, other, "mlp")]

    def find(*read):
        extra = [
            call(one, given, "attention_beside") for one, given in zip(beside, read, strict=False)
        ]
        found = sublayers(block_call(*calls, *extra), part)
        assert set(found) - {"shortcut"} == {"attention", "ffn"}
        return found.get("shortcut")

    assert torch.equal(find(stream).left, beside[0](stream)[0])
    assert find(other) is None and find(stream, stream) is None
    assert torch.equal(find(other, stream).left, beside[1](stream)[0])


@torch.no_grad()
def test_theorems_speak_of_the_attention_inside_of_a_child():
    norm, attention = nn.LayerNorm(4), nn.Linear(4, 4)
    outer = nn.Sequential(norm, attention, nn.ReLU())
    stream = torch.randn(1, 3, 4)
    inner = call(attention, norm(stream))
    calls = block_call(call(outer, stream), inner=[inner])
    given = stream + outer(stream)
    found = sublayers(calls, SimpleNamespace(outer=outer, module=attention), given)["attention"]
    assert torch.equal(found.entered, norm(stream)[0]) and torch.equal(found.left, inner.left[0])
    assert torch.equal(found.branch, outer(stream)[0]) and found.joins is outer
