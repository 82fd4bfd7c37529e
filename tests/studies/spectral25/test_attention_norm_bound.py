"""Norms of attention and their bounds: known heads, planted violations, the verdicts."""

import numpy as np
import pytest
import torch

from layerlab.measures.quantities.weights.querykey import score_bound
from layerlab.studies.engine.given_models import GivenModel
from layerlab.studies.spectral25.attention_norm_bound import (
    HEAD,
    LIMITS,
    TOKENS,
    WIDTH,
    aimed_heads,
    attend,
    heads,
    judge_corrected,
    judge_near_one,
    judge_tells,
    limits,
    random_heads,
)
from layerlab.studies.spectral25.drawn_heads import scale_weights
from layerlab.studies.support.passages import get_model
from tests.families.examination import subject
from tests.families.recipe import build
from tests.studies.small import drawing, given_of, made


@pytest.mark.parametrize("kind", [random_heads, aimed_heads])
def test_heads_have_the_m_that_was_asked_for_behind_what_a_layer_norm_gives(kind):
    stream, weights = kind(drawing(3), 2.0)
    assert torch.allclose(score_bound(weights), torch.full((3,), 2.0, dtype=torch.float64))
    assert stream.mean(-1).abs().max() < 1e-12
    assert torch.allclose(stream.norm(dim=-1), torch.tensor(WIDTH, dtype=torch.float64).sqrt())
    assert attend(stream, weights, causal=False).logits(dtype=torch.float64).abs().max() <= 2.0


@pytest.mark.parametrize("limit", [0.1, 5.0])
def test_an_aimed_head_has_the_norm_that_its_equal_rows_have(limit):
    found = heads(drawing(3), limit, "aimed")
    # Every row gives the first key e^(M / 2) and the others e^(-M / 2).
    first = 1 / (1 + (TOKENS - 1) * np.exp(-limit))
    row = np.hypot(first, (1 - first) / np.sqrt(TOKENS - 1))
    assert found["unmasked"].tolist() == pytest.approx([np.sqrt(TOKENS) * row] * 3, rel=1e-9)


def test_small_scores_give_the_uniform_causal_norm_and_the_bounds_of_no_scores():
    found = heads(drawing(3), 1e-9, "random")
    assert found["causal"][0].item() == pytest.approx(1.646, abs=5e-4)
    assert found["printed"][0].item() == pytest.approx(1, rel=1e-6)
    harmonic = sum(1 / row for row in range(1, TOKENS + 1))
    assert found["corrected"][0].item() == pytest.approx(harmonic**0.5, rel=1e-6)


def test_a_head_of_one_direction_has_the_printed_m_too_small_by_the_root_of_the_heads():
    weights = scale_weights(
        torch.ones(1, HEAD, WIDTH).double(), torch.ones(1, HEAD, WIDTH).double(), 3.0
    )
    norms = [torch.linalg.matrix_norm(part[0], 2) for part in (weights.query, weights.key)]
    printed = norms[0] * norms[1] * WIDTH**0.5
    assert (3.0 / printed).item() == pytest.approx((WIDTH / HEAD) ** 0.5)


def test_a_model_whose_queries_are_not_known_has_no_bound():
    """Latent attention has no weights of its queries that could be cut into heads."""
    whole = subject(build("deepseek_v3"))
    given = {"own": GivenModel(subject=whole, tokens=torch.arange(10, 20), text=None)}
    assert all(not values.size for values in limits("own", given).values())


def test_a_planted_norm_above_the_bound_is_found():
    sound = {"causal": np.full(8, 0.9), "corrected": np.ones(8)}
    found = {kind: dict.fromkeys(LIMITS, sound) for kind in ("random", "aimed")}
    assert judge_corrected(found, 0).word == "holds"
    planted = {**sound, "causal": np.array([0.9] * 7 + [1.01])}
    found["aimed"] = {**found["aimed"], 1.0: planted}
    verdict = judge_corrected(found, 0)
    assert verdict.word == "fails" and verdict.number == pytest.approx(1.01)


@pytest.mark.parametrize(("column", "word"), [(1.01, "holds"), (2.0, "fails")])
def test_column_sums_near_one_are_told_from_others(column, word):
    values = np.full((6, 4), column)
    one = {"norm": values, "column": values**0.5}
    assert judge_near_one({"pre-norm": one, "post-norm": one}, 0).word == word


def test_a_bound_that_a_window_alone_gives_tells_nothing():
    words, model = get_model("llama").tokenizer, made("mistral", sliding_window=16)
    with torch.no_grad():
        for part in model.model.layers:
            part.self_attn.q_proj.weight.mul_(100)
    given = given_of("attention-gain", model=model, tokenizer=words)
    (found,) = [limits(name, given) for name in given]
    # Far below sqrt(128) = 11.3, and what every attention in this window has.
    assert found["prenorm_bound"] == pytest.approx(4, rel=1e-3)
    verdict = judge_tells({"mistral": found})
    assert (verdict.word, verdict.number) == ("fails", 1)
    assert "n = 128, or 16 in a window of as many" in verdict.said
