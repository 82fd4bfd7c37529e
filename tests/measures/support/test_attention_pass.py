"""The heads of several sequences read as those of one record, beside a decomposition of each."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from layerlab.measures.quantities import attention as attention_measure
from layerlab.measures.quantities import gain
from layerlab.measures.quantities import spectrum as spectrum_measure
from layerlab.measures.quantities.attention import FOCUS, focus
from layerlab.measures.quantities.spectrum import spectrum
from layerlab.measures.support import attention_pass
from layerlab.measures.support.attention_pass import HeadGroup, HeadQuantity
from layerlab.measures.support.lanczos import GAP
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import all_triangular
from tests.measures.regime import KINDS, attention, record, svd_contraction, svd_norm

ODD = 301
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"key": torch.randn(1, ODD, 32, generator=torch.Generator().manual_seed(1))},
    "softcap": {"softcap": 2.0},
    "window": {"window": 20},
    "masked": {"bias": torch.zeros(1, ODD, ODD).index_fill(2, torch.tensor([5]), -3.0)},
    "bidirectional": {"causal": False},
    "sinks": {"sinks": torch.tensor([1.0, -3.0, 6.0])},
}


def asked(dtype: str = "float32") -> list[HeadQuantity]:
    modules = (attention_measure, spectrum_measure, gain)
    return [one.MEASURES[0].heads({"dtype": dtype}) for one in modules]


def group(records, dtype: str = "float32"):
    made = HeadGroup(records, asked(dtype))
    return [made.read(number) for number in range(len(records))]


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """The heads of every record that is read."""
    found: list[int] = []
    own = attention_pass._read_all

    def reading(attended, quantities, dense=attention_pass.DENSE_TOKENS):
        found.append(attended.heads)
        return own(attended, quantities, dense)

    monkeypatch.setattr(attention_pass, "_read_all", reading)
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_sequence_has_the_norms_of_the_svd_in_one_pass(name, dtype, passes):
    records = [record(kind, ODD, **OPTIONS[name]) for kind in KINDS]
    records = [replace(one, query=one.query.to(dtype), key=one.key.to(dtype)) for one in records]
    found = group(records)
    assert passes == [3 * len(KINDS)]
    for one, read in zip(records, found, strict=True):
        matrix = attention(one)
        exact = svd_norm(matrix)
        assert torch.allclose(read.vectors["norm"], exact, rtol=1e-6)
        assert (read.vectors["lower"] <= exact).all() and (exact <= read.vectors["upper"]).all()
        assert (read.vectors["upper"] / read.vectors["lower"] - 1 <= 1e-3).all()
        centred = svd_contraction(matrix)
        assert torch.allclose(read.vectors["contraction"], centred, rtol=2e-6, atol=2e-5)
        assert torch.allclose(read.vectors["sink_mass"].double(), matrix[..., 0].mean(1), rtol=1e-5)


def test_a_head_is_changed_by_those_of_other_sequences_within_its_enclosure_alone():
    records = [record(kind, ODD) for kind in KINDS]
    for one, read in zip(records, group(records), strict=True):
        alone = vars(spectrum(one)) | vars(focus(one))
        for column, values in read.vectors.items():
            loose = GAP if column == "upper" else 1e-6
            assert torch.allclose(values.double(), alone[column].double(), rtol=loose), column


def test_a_sequence_whose_halves_hardly_touch_is_enclosed_beside_others():
    halves = record("init", ODD)
    bias = torch.zeros(1, ODD, ODD)
    bias[:, 150:, :150] = -40.0
    records = [replace(halves, bias=bias), replace(record("peaky", ODD), bias=bias)]
    for one, read in zip(records, group(records), strict=True):
        exact = svd_norm(attention(one))
        assert (read.vectors["lower"] <= exact).all() and (exact <= read.vectors["upper"]).all()
        assert (read.vectors["norm"] / exact - 1 >= -GAP).all()


def test_a_head_that_is_not_finite_spares_other_sequences():
    bad, good = record("init", 40), record("peaky", 40)
    bad.query[1, 4] = torch.nan
    found = group([bad, good])
    assert found[0].vectors["norm"].isnan().tolist() == [False, True, False]
    assert found[1].vectors["norm"].isfinite().all()
    assert found[1].columns["norm"] == found[1].vectors["norm"].tolist()


def test_records_that_differ_are_read_one_after_another(passes):
    whole = record("init", 40)
    scores = AttentionRecord(layer=0, name="scores", scores=torch.zeros(3, 40, 40))
    other = torch.zeros(1, 40, 40).index_fill(2, torch.tensor([3]), -1.0)
    masked = [replace(whole, bias=bias) for bias in (torch.zeros_like(other), other)]
    uneven = [whole, record("init", 30)]
    for records in ([scores, scores], masked, uneven, [whole, replace(whole, softcap=3.0)]):
        passes.clear()
        assert len(group(records)) == 2 and passes == [3, 3]


def test_records_that_are_alike_are_read_together_beside_others(passes):
    whole = record("init", 40)
    records = [whole, replace(whole, window=9), record("peaky", 40), replace(whole, window=9)]
    together = group(records)
    assert passes == [6, 6]
    for one, read in zip(records, together, strict=True):
        (alone,) = group([one])
        assert torch.allclose(read.vectors["norm"], alone.vectors["norm"], rtol=1e-6)
        assert torch.equal(read.vectors["entropy"], alone.vectors["entropy"])


def test_joined_layers_keep_the_sinks_of_each(passes):
    sinks = torch.tensor([1.0, -3.0, 6.0])
    records = [record("init", 40, sinks=one) for one in (sinks, -sinks)]
    together = group(records)
    assert passes == [6]
    for one, read in zip(records, together, strict=True):
        (alone,) = group([one])
        assert torch.equal(read.vectors["sink_mass"], alone.vectors["sink_mass"])


def test_what_one_quantity_gives_is_not_read_for_another(monkeypatch):
    def never(part, known):
        raise AssertionError("the spectrum has it")

    (found,) = group([record("init", 40)])
    assert "contraction" in found.vectors
    lonely = replace(asked()[2], solve=never)
    made = HeadGroup([record("init", 40)], [lonely, *asked()[:2]]).read(0)
    assert torch.equal(made.vectors["contraction"], found.vectors["contraction"])


def test_quantities_of_other_dtypes_have_passes_of_their_own():
    one = record("peaky", 40)
    made = HeadGroup([one], [replace(FOCUS, dtype=torch.float64), asked()[1]]).read(0)
    assert torch.equal(made.vectors["entropy"], focus(one, dtype=torch.float64).entropy)
    assert torch.equal(made.vectors["norm"], spectrum(one).norm)


def cut_off(name: str) -> torch.Tensor:
    """Which keys are allowed where a text has padding, or parts that do not see each other."""
    allowed = torch.ones(1, ODD, ODD).tril().bool()
    if name == "padded behind":
        allowed[:, :, ODD - 40 :] = False
    elif name == "padded in front":
        allowed[:, :, :40] = False
        allowed |= torch.eye(ODD).bool()
    elif name == "decoupled":
        allowed[:, 150:, :150] = False
    else:
        place = torch.arange(ODD) // 43
        allowed &= place[:, None] == place
    return allowed


@pytest.mark.few(1)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["padded behind", "padded in front", "decoupled", "documents"])
def test_joined_heads_behind_a_mask_have_the_norms_of_the_svd(mask, dtype, sinks, passes):
    """Heads that share keys, peaky and uniform ones side by side, at an odd length.

    Each sequence brings a mask of its own, equal to those of the others.
    """
    options = {"sinks": torch.tensor([1.0, -3.0, 6.0])} if sinks else {}
    records = [
        replace(
            one,
            query=one.query.to(dtype),
            key=one.key[:1].to(dtype),
            bias=cut_off(mask),
            causal=False,
        )
        for one in (record(kind, ODD, **options) for kind in KINDS)
    ]
    found = group(records)
    assert passes == [3 * len(KINDS)]
    for one, read in zip(records, found, strict=True):
        scores = one.query.double() @ one.key.double().mT * one.scaling
        scores = scores.masked_fill(~one.bias, -torch.inf)
        if sinks:
            extra = one.sinks.double()[:, None, None].expand(-1, ODD, 1)
            matrix = torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1]
        else:
            matrix = torch.softmax(scores, -1)
        exact = svd_norm(matrix)
        assert (read.vectors["lower"] <= exact).all() and (exact <= read.vectors["upper"]).all()
        assert torch.allclose(read.vectors["norm"], exact, rtol=1e-5)
        assert (read.vectors["norm"] <= exact * (1 + 1e-6)).all()
        centred = svd_contraction(matrix)
        assert torch.allclose(read.vectors["contraction"], centred, rtol=2e-6, atol=2e-5)


def test_masks_of_layers_on_other_devices_are_not_compared():
    here = record("init", 20, bias=torch.zeros(1, 20, 20), causal=False)
    there = record("init", 20, bias=torch.zeros(1, 20, 20, device="meta"))
    assert [one.causal for one in all_triangular([here, there])] == [False, True]
