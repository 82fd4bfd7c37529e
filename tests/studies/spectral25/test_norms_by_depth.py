"""Norms over 36 layers: known products, planted drifts, scores of the wanted size, the verdicts."""

import math

import numpy as np
import pytest
import torch

from layerlab.studies.spectral25.norms_by_depth import (
    DEPTH,
    FALL,
    PLATEAU,
    RISE,
    TEXTS,
    TOKENS,
    VOCAB,
    at_depth,
    drift,
    judge_bounded,
    judge_lacks,
    judge_products,
    norm_of_product,
    norms,
    random,
    sharpen,
)
from tests.studies.small import drawing


def test_products_of_known_matrices():
    one_column = torch.zeros(5, 5, dtype=torch.float64)
    one_column[:, 0] = 1
    found = norm_of_product(torch.stack([one_column] * 3))
    assert found["product"].item() == pytest.approx(math.sqrt(5))
    assert found["norms"].item() == pytest.approx(5**1.5)
    even = torch.full((4, 5, 5), 0.2, dtype=torch.float64)
    assert [norm_of_product(even)[name].item() for name in ("product", "norms")] == pytest.approx(
        [1, 1]
    )


def planted(slope, product=2.0):
    """Norms that rise by `slope` over the whole depth, in every stack."""
    rows = np.tile(1.5 + slope * np.arange(DEPTH) / DEPTH, (12, 1))
    one = {"norm": rows, "product": np.full(12, product), "norms": np.full(12, 1e6)}
    return {
        (place, scores): one for place in ("pre-norm", "post-norm") for scores in ("start", "sharp")
    }


@pytest.mark.parametrize(
    ("slope", "post", "words"),
    [
        (0.0, 0.0, ("fails", "fails")),
        (0.0, 1.0, ("holds", "holds")),
        (1.0, 1.0, ("fails", "holds")),
        (1.0, 0.0, ("fails", "fails")),
    ],
)
def test_what_pre_norm_keeps_from_growing_grows_without_it(slope, post, words):
    parts = planted(slope)
    for scores in ("start", "sharp"):
        parts["post-norm", scores] = planted(post)["post-norm", scores]
    assert (judge_bounded(parts, 0).word, judge_lacks(parts, 0).word) == words
    # From the mean of layers 2 to 10 to that of 20 to 32 it is 20 layers.
    assert drift(parts["pre-norm", "start"]["norm"]) == pytest.approx(slope * 20 / DEPTH)


def test_a_product_beyond_the_root_of_the_tokens_would_be_told():
    assert judge_products(planted(0.0)).word == "fails"
    assert judge_products(planted(0.0, product=5.0)).word == "holds"


@pytest.mark.full
def test_sharp_scores_are_sharper_and_both_placements_start_alike():
    model = random("pre-norm", seed=3)
    ids = torch.arange(TOKENS)[None] % VOCAB
    most = []
    for sharpness in (1.0, 10.0):
        sharpen(model, sharpness)
        with torch.no_grad():
            most.append(float(model(ids, output_attentions=True).attentions[0].amax(-1).mean()))
    assert most[0] < 0.5 < most[1]
    pre, post = (random(place, 3).model.layers[5].attention for place in ("pre-norm", "post-norm"))
    assert torch.equal(pre.query.weight, post.query.weight)


@pytest.mark.full
def test_every_layer_has_a_norm_between_one_and_the_root_of_the_tokens():
    found = norms(drawing(), "post-norm")
    for scores in ("start", "sharp"):
        assert found[f"{scores} norm"].shape == (1, DEPTH) and TEXTS > 1
        assert (found[f"{scores} norm"] > 1).all()
        assert (found[f"{scores} norm"] < math.sqrt(TOKENS)).all()


@pytest.mark.parametrize(
    ("layers", "rise", "plateau", "fall"),
    [
        (DEPTH, range(1, 10), range(19, 32), range(33, 36)),
        (12, [1, 2], [6, 7, 8, 9], [11]),
        (4, [0], [2], [3]),
        (3, [0], [1], [2]),
    ],
)
def test_layers_of_another_depth_are_those_in_between_or_the_nearest(layers, rise, plateau, fall):
    rows = 2.0 ** np.arange(layers)[None]
    for asked, own in ((RISE, rise), (PLATEAU, plateau), (FALL, fall)):
        assert at_depth(rows, asked) == pytest.approx(np.mean(2.0 ** np.array(own)))
