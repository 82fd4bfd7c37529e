"""Attention taken apart gives what the fused kernel gives."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from layerlab.numerics.emulation import unfused_attention
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, emulate
from layerlab.numerics.emulation.unfused_attention import UnfusedAttention, attention
from layerlab.numerics.prediction.monte_carlo import MonteCarlo
from layerlab.numerics.prediction.predict import Prediction, spreads
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.lanes import Lane, SideBySide
from layerlab.numerics.profiles.plain_attention import COPIES, attend
from layerlab.numerics.profiles.profile import load_profile
from tests.measures.family import built
from tests.support.live_bytes import live_bytes


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


# Plain attention computes its softmax in float32.
computes = pytest.mark.parametrize(("compute", "off"), [(attention, 1e-7), (attend, 1e-6)])


@computes
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.tril(torch.ones(7, 7, dtype=torch.bool))},
        {"attn_mask": torch.randn(7, 7, dtype=torch.float64)},
    ],
)
def test_it_is_the_fused_kernel_in_float64(options, compute, off):
    torch.manual_seed(0)
    query, key, value = (drawn(2, 3, 7, 8) for _ in range(3))
    expected = functional.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(compute(query, key, value, **options), expected, rtol=off, atol=off)


@computes
def test_heads_may_share_keys(compute, off):
    torch.manual_seed(0)
    query, key, value = drawn(2, 6, 5, 8), drawn(2, 2, 5, 8), drawn(2, 2, 5, 8)
    expected = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    found = compute(query, key, value, enable_gqa=True)
    torch.testing.assert_close(found, expected, rtol=off, atol=off)


@pytest.mark.parametrize("mode", ["as-run", "flat"])
@pytest.mark.parametrize("family", ["llama", "bloom", "gpt2"])
def test_scores_of_long_texts_are_those_of_few_heads_at_a_time(monkeypatch, family, mode):
    model, ids = built(family), torch.arange(48)[None] % 64
    found = {}
    for limit in (unfused_attention.SCORES, 4 * 48 * 48):
        monkeypatch.setattr(unfused_attention, "SCORES", limit)
        with emulate(model, "fp16", mode) as run:
            found[limit] = model(ids, use_cache=False).logits, set(run.roundings)
    (whole, places), (parted, others) = found.values()
    assert torch.equal(parted, whole) and others == places


def test_a_cache_that_is_rounded_with_one_scale_is_rounded_whole(monkeypatch):
    model, ids = built("llama"), torch.arange(48)[None] % 64
    found = []
    for limit in (unfused_attention.SCORES, 4 * 48 * 48):
        monkeypatch.setattr(unfused_attention, "SCORES", limit)
        with emulate(model, "fp16", cache="int8"):
            found.append(model(ids, use_cache=False).logits)
    assert torch.equal(*found)


@pytest.mark.parametrize("heads", [1, 6])
def test_a_few_heads_at_a_time_keep_their_keys_and_masks(monkeypatch, heads):
    torch.manual_seed(0)
    query, key, value = drawn(2, 6, 7, 8), drawn(2, 3, 7, 8), drawn(2, 3, 7, 8)
    options = {"attn_mask": drawn(1, heads, 7, 7), "enable_gqa": True}
    expected = attention(query, key, value, **options)
    gone_back = []
    monkeypatch.setattr(unfused_attention, "SCORES", 2 * 2 * 4 * 49)
    with UnfusedAttention(in_place=True, mark=lambda: lambda: gone_back.append(True)):
        found = functional.scaled_dot_product_attention(query, key, value, **options)
    assert torch.equal(found, expected) and len(gone_back) == 1


@pytest.mark.parametrize("masked", ["causal", "of-heads", "of-all", "of-keys", "open"])
@pytest.mark.parametrize("shared", [1, 3])
def test_a_few_rows_of_a_large_head_keep_their_masks(monkeypatch, masked, shared):
    torch.manual_seed(0)
    query, key, value = (
        drawn(1, 6, 200, 8),
        drawn(1, 6 // shared, 210, 8),
        drawn(1, 6 // shared, 210, 8),
    )
    shapes = {"of-heads": (1, 6, 200, 210), "of-all": (200, 210), "of-keys": (1, 1, 1, 210)}
    mask = drawn(*shapes[masked]) if masked in shapes else None
    options = {"attn_mask": mask, "is_causal": masked == "causal", "enable_gqa": shared > 1}
    expected = attention(query, key, value, **options)
    gone_back = []
    monkeypatch.setattr(unfused_attention, "SCORES", 2 * 70 * shared * 210)
    with UnfusedAttention(mark=lambda: lambda: gone_back.append(True)):
        found = functional.scaled_dot_product_attention(query, key, value, **options)
    # 64 rows at a time: 64, 64, 64 and 8 of each group of heads.
    assert len(gone_back) == 3 * 6 // shared + 6 // shared - 1
    assert torch.equal(found[..., :192, :], expected[..., :192, :])
    # Eight rows are another product to a kernel, whose sums may be added in another order.
    torch.testing.assert_close(found, expected)


def emulated(model: nn.Module, ids: torch.Tensor, format: str) -> list[torch.Tensor]:
    with emulate(model, format):
        return [model(ids, use_cache=False).logits]


def predicted(model: nn.Module, ids: torch.Tensor, kind: str) -> list[torch.Tensor]:
    run = partial(model, ids, use_cache=False)
    return spreads(model, run, make_arithmetic("bf16"), [], kind)[1]


def side_by_side(model: nn.Module, ids: torch.Tensor, name: str) -> list[torch.Tensor]:
    pair = [Lane(profile=load_profile(one)) for one in ("torch-eager", name)]
    run = SideBySide(model, pair, OperationIndex(model))
    with run.running():
        return run.values(model(ids, use_cache=False).logits)


@pytest.mark.full
@pytest.mark.parametrize(
    ("read", "kind", "copies"),
    [
        (emulated, "bf16", Emulation.copies),
        (emulated, "t16", Emulation.copies),
        (predicted, "sampled", MonteCarlo.copies),
        (predicted, "variance", Prediction.copies),
        (predicted, "bound", Prediction.copies),
        (side_by_side, "vllm", 2 * COPIES),
    ],
)
def test_scores_of_few_heads_or_rows_are_held_at_a_time(monkeypatch, tiny, read, kind, copies):
    tokens = 256
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 1}
    model = tiny("llama", **sizes, max_position_embeddings=tokens)
    ids = torch.arange(tokens)[None] % 64
    whole = 8 * tokens**2
    found = []
    for scores in (whole, whole // 2, whole // 8):
        monkeypatch.setattr(unfused_attention, "SCORES", copies * scores)
        with live_bytes(list(model.parameters())) as counted:
            found.append(read(model, ids, kind))
        # Streams beside them take less than a byte for each score.
        assert counted.peak < 1.1 * 8 * copies * scores + whole
    for other in found[1:]:
        if kind == "sampled":  # other draws
            assert float(other[0].norm() / found[0][0].norm()) == pytest.approx(1, rel=0.1)
        else:
            assert all(map(torch.equal, other, found[0]))


def test_a_row_that_may_look_nowhere_gives_zeros():
    query, key, value = (drawn(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    found = attention(query, key, value, attn_mask=mask)
    assert found.isfinite().all()
    assert not found[0, 0, 1].any()


def test_the_mode_takes_the_fused_function_s_place_and_leaves():
    query = drawn(1, 2, 4, 8).float()
    fused = functional.scaled_dot_product_attention
    with UnfusedAttention():
        inside = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert functional.scaled_dot_product_attention is fused
    torch.testing.assert_close(inside, attention(query, query, query, is_causal=True))


def test_bf16_weights_meet_values_in_bf16():
    """As flash kernels do: scores and sums in float32, weights brought to the values' dtype."""
    torch.manual_seed(0)
    query, key, value = (drawn(1, 4, 64, 16, dtype=torch.bfloat16) for _ in range(3))
    exact = functional.scaled_dot_product_attention(query.double(), key.double(), value.double())
    kernel = functional.scaled_dot_product_attention(query, key, value)
    ours = attention(query, key, value)
    assert ours.dtype == torch.bfloat16
    errors = [float((out.double() - exact).norm()) for out in (kernel, ours)]
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


@pytest.mark.parametrize("format", ["bf16", "fp8_e4m3", "fp32"])
@pytest.mark.parametrize("mode", ["as-run", "flat"])
@pytest.mark.parametrize("masked", ["causal", "boolean", "added", "open"])
def test_scores_that_are_overwritten_give_the_same_bits(format, mode, masked):
    torch.manual_seed(0)
    query, key, value = (drawn(2, 3, 9, 8, dtype=torch.float32) for _ in range(3))
    blind = torch.tril(torch.ones(9, 9, dtype=torch.bool))
    blind[4] = False
    masks = {"boolean": blind, "added": torch.zeros(9, 9).masked_fill(~blind, -torch.inf)}

    class Attending(nn.Module):
        in_place = True

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            first, second, third = (one * 1 for one in given)
            mask, causal = masks.get(masked), masked == "causal"
            if self.in_place:
                found = functional.scaled_dot_product_attention(
                    first, second, third, mask, 0.0, causal
                )
            else:
                found = attention(first, second, third, mask, 0.0, causal)
            return torch.cat([found, first, second, third], -1)

    model = Attending()
    with emulate(model, format, mode) as run:
        overwritten = model(query, key, value)
        counted = dict(run.roundings)
        model.in_place = False
        kept = model(query, key, value)
    assert torch.equal(overwritten, kept)
    assert overwritten.isfinite().all()
    assert all(2 * counted[place] == count for place, count in run.roundings.items())
