"""Collapse by depth: planted collapse is found, and a stack that keeps its tokens is not one."""

import numpy as np
import pytest
import torch

from layerlab.measures.quantities.diversity import relative_residual
from layerlab.studies.pangu23.theory.collapse_depth import (
    EACH,
    TOKENS,
    judge_alike,
    judge_narrow,
    random_depths,
)
from layerlab.studies.support.feature_statistics import DIMENSION, OUTLIERS, RESIDUAL, depths
from layerlab.studies.support.passages import WHOLE, excerpts, get_model, overlap, tokens_of
from tests.studies.small import drawing


def test_passages_are_cut_from_the_text_and_belong_to_the_seed():
    whole = tokens_of("llama").tolist()
    assert len(whole) == WHOLE and f"{len(whole):,} tokens" in overlap(128)
    assert "58 passages of 128 tokens" in overlap(128)
    first, again = (excerpts(drawing(3), "llama", 20, 2) for _ in range(2))
    assert first.shape == (6, 20) and torch.equal(first, again)
    text = ",".join(map(str, whole))
    assert all(",".join(map(str, one)) in text for one in first.tolist())
    assert not torch.equal(first, excerpts(drawing(3, seed=1), "llama", 20, 2))


def test_depths_are_those_of_the_streams():
    subject, ids = get_model("llama"), excerpts(drawing(1), "llama", 40, 2)
    found = depths(subject, ids)
    assert found.shape == (9, 2)
    embedded = subject.model.get_input_embeddings()(ids).detach()
    own = [relative_residual(one[OUTLIERS:]) for one in embedded]
    assert found[0, RESIDUAL].item() == pytest.approx(sum(own).item() / 2)


def test_dimension_and_residual_of_a_random_model_lie_where_they_can():
    found = random_depths(drawing(1), layers=2, width=32)
    assert found["small"].shape == found["ordinary"].shape == (1, 3, 2)
    for one in found.values():
        assert ((one > 0) & (one <= 1)).all()
    # A common factor changes no ratio of the embedding.
    assert torch.allclose(found["small"][:, 0], found["ordinary"][:, 0])
    assert EACH * (TOKENS - OUTLIERS) >= 4 * 64


def planted(last, dimension):
    values = np.ones((8, 5, 2)) * np.random.default_rng(0).normal(1, 0.01, (8, 5, 1))
    values[:, -1, RESIDUAL] *= last
    values[:, :, DIMENSION] *= dimension
    return values


def test_words_follow_what_is_left():
    flat = np.ones(5)
    assert judge_alike("x", planted(0.2, flat), 0, "").word == "holds"
    assert judge_alike("x", planted(0.8, flat), 0, "").word == "smaller than asked"
    assert judge_alike("x", planted(1.2, flat), 0, "").word == "fails"
    assert judge_alike("x", planted(0.5, flat), 0, "").word == "not decided"
    assert judge_narrow(planted(1, np.linspace(1, 0.5, 5)), 0, "it").word == "holds"
    assert judge_narrow(planted(1, np.linspace(0.5, 1, 5)), 0, "it").word == "fails"


def test_the_widest_layer_of_many_is_judged_as_one_of_them():
    noise = np.random.default_rng(0).normal(1, 0.06, (12, 41))
    found = np.ones((12, 41, 2))
    found[..., DIMENSION] = noise - noise.mean(0) + 1
    found[:, 0, DIMENSION] = 1
    found[:, 1, DIMENSION] += 0.05
    assert judge_narrow(found[:, :2], 0, "it").word == "fails"
    assert judge_narrow(found, 0, "it").word == "not decided"
