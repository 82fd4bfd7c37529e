"""Norms of texts and of padded batches: what a trace finds, planted gaps, the verdicts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.measures.quantities.spectrum import spectrum
from layerlab.studies.spectral25.gpt1_gpt2 import (
    LENGTHS,
    judge_larger,
    judge_length,
    judge_padding,
    judge_placement,
    matrices,
    norms,
)
from layerlab.studies.support.passages import for_each_layer, get_model, tokens_of
from tests.families.recipe import family_config
from tests.studies.small import drawing

TEXT = torch.arange(3, 21)[None]


@pytest.mark.full
@pytest.mark.parametrize("name", ["pre-norm", "post-norm"])
def test_a_text_of_a_padded_batch_has_the_norms_that_it_has_alone(name):
    ids, heard = tokens_of(name)[40:58], []
    padded = matrices(name, ids[None], torch.tensor([12]))

    def read(layer):
        if layer.attention is not None:
            heard.append(spectrum(layer.attention).norm.double())

    for_each_layer(get_model(name), ids[None, :12], read)
    for alone, layer in zip(heard, padded, strict=True):
        own = torch.linalg.matrix_norm(layer[0, :, :12, :12], 2)
        assert torch.allclose(own, alone, rtol=1e-5)
        assert (torch.linalg.matrix_norm(layer[0], 2) > own).all()


def given(family, **changes):
    config = family_config(family)
    for name, value in changes.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config).eval()
    whole = LoadedModel(name=family, source="memory", model=model, tokenizer=None)
    return {family: SimpleNamespace(subject=whole)}


@pytest.mark.parametrize("biased", [True, False])
def test_an_attention_that_the_model_does_not_run_with_is_refused(biased):
    """Asked for its matrices, Falcon adds its mask as ones and zeros, or its ALiBi twice."""
    with pytest.raises(NotApplicable, match="code of falcon returns is not the one"):
        matrices("falcon", TEXT, torch.tensor([12]), given("falcon", alibi=biased))


def test_a_model_that_returns_its_matrices_is_left_with_its_own_attention():
    own = given("gpt_neox")
    assert len(matrices("gpt_neox", TEXT, torch.tensor([12]), own)) == 2
    assert own["gpt_neox"].subject.model.config._attn_implementation == "sdpa"


def test_lengths_are_those_of_the_source_and_one_token_has_norm_one():
    found = norms(drawing(40), "pre-norm", "short")
    lone = found["uniform"] == 1
    assert lone.any() and not lone.all()
    assert torch.allclose(found["own"][lone], torch.ones(8, dtype=torch.float64))
    full = found["uniform"] == found["uniform"].max()
    assert torch.allclose(found["padded"][full], found["own"][full])
    assert (found["padded"] >= found["own"] - 1e-12).all()


def planted(gap, excess=0.0):
    """Norms of 1 + i / 100, a gap between the models, and what padding adds."""
    base = np.tile(1 + np.arange(8) / 100, (24, 1))
    parts = {}
    for texts, factor in zip(LENGTHS, (1.0, 1.2), strict=True):
        for name in ("pre-norm", "post-norm"):
            own = factor * base + gap * (name == "post-norm")
            uniform = np.full(24, factor)
            parts[name, texts] = {"own": own, "padded": own + excess, "uniform": uniform}
    return parts


@pytest.mark.parametrize(
    ("gap", "word"), [(0.2, "holds"), pytest.param(-0.2, "fails", marks=pytest.mark.full)]
)
def test_a_planted_gap_is_judged(gap, word):
    verdict = judge_placement(planted(gap), 0)
    assert verdict.word == word and verdict.number == pytest.approx(gap)


@pytest.mark.parametrize(("excess", "word"), [(0.5, "fails"), (0.0, "holds")])
def test_what_padding_adds_is_found(excess, word):
    verdict = judge_padding(planted(0.1, excess), 0)
    assert verdict.word == word and verdict.number == pytest.approx(excess)


def test_a_growth_like_that_of_uniform_attention_is_all_explained():
    verdict = judge_length(planted(0.0), 0)
    assert verdict.word == "holds" and verdict.number == pytest.approx(1.2)
    assert "uniform attention explains 1 of" in verdict.said


def test_a_length_that_lowers_the_norm_moves_it_as_well():
    parts = planted(0.1)
    for one in parts.values():
        one["own"] = 3 - one["own"]
    found = judge_larger(parts, 0)
    assert found.word == "fails" and found.number == pytest.approx(0.1 - 0.2 * 1.035)
    assert "length that of pre-norm by 0.207" in found.said


def test_norms_that_do_not_grow_leave_nothing_to_explain():
    parts = planted(0.0)
    for found in parts.values():
        found["own"] = np.ones_like(found["own"])
    said = [judge(parts, 0).said for judge in (judge_length, judge_larger)]
    assert "is 1 in pre-norm, 1 in post-norm: not in both is there a growth" in said[0]
    assert "a difference of 0 (mean" in said[1]
