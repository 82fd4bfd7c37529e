"""The features of frequent tokens against what a model gives when it is asked plainly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layerlab import UserError
from layerlab.measures.quantities.features import MEASURES, choice
from layerlab.measures.runner import readings
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.trace import trace
from tests.measures.asked import subject

(MEASURE,) = MEASURES
TEXTS = [torch.tensor([3, 9, 2, 9, 7, 3, 9, 5]), torch.tensor([9, 2, 2, 9, 9, 4, 3, 2, 9, 2])]


def streams(model, texts=TEXTS) -> dict[int, list[Tensor]]:
    found: dict[int, list[Tensor]] = {}
    trace(
        model,
        anatomy(model),
        texts,
        lambda layer: found.setdefault(layer.layer, []).append(layer.stream.clone()),
    )
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "openai-gpt", "llama"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_every_layer_is_that_of_scikit_learn_without_the_first_tokens(tiny, family, skip):
    from sklearn.decomposition import PCA

    model = tiny(family)
    options = {"words": 2, "points": 50, "skip": skip}
    seen = readings(subject(model), TEXTS, [MEASURE.given(**options)])
    picture, rows = seen.pictures["features"], seen.rows["features"]
    assert [word["id"] for word in picture["words"]] == [9, 2]
    for row, shares, points in zip(rows, picture["shares"], picture["points"], strict=True):
        parts = streams(model)[row["layer"]]
        whole = torch.cat([part[skip:] for part in parts]).double().numpy()
        peer = PCA(n_components=3, svd_solver="full").fit(whole)
        assert row["tokens"] == len(whole) and row["width"] == 16
        assert [row[name] for name in ("first", "second", "third")] == pytest.approx(
            peer.explained_variance_ratio_, rel=1e-6
        )
        assert row["three"] == pytest.approx(sum(shares), rel=1e-4)
        assert row["variance"] == pytest.approx(whole.var(0, ddof=1).sum())
        for word, places, drawn in zip((9, 2), picture["places"], points, strict=True):
            at = [(s, p) for s, t in enumerate(TEXTS) for p in range(skip, len(t)) if t[p] == word]
            assert places == [list(place) for place in at]
            features = np.stack([parts[s][p].double().numpy() for s, p in at])
            theirs = np.abs(peer.transform(features))
            # Of a component that is hardly larger than the next, the direction is uncertain.
            np.testing.assert_allclose(np.abs(drawn), theirs, rtol=0.02, atol=1e-3 * theirs.max())


def test_first_tokens_are_left_out_by_default_and_the_report_says_so(tiny):
    seen = readings(subject(tiny("gpt2")), TEXTS, [MEASURE])
    said = "; ".join(seen.notes["features"])
    assert "first token of each sequence left out" in said
    assert "16 tokens for a width of 16: with fewer than 64 the shares" in said
    kept = readings(subject(tiny("gpt2")), TEXTS, [MEASURE.given(skip=0)])
    assert "left out" not in "; ".join(kept.notes["features"])
    assert kept.rows["features"][0]["tokens"] == 18


def test_a_far_first_token_takes_the_first_direction_only_where_it_is_kept(tiny):
    """What the source calls an outlier: one token far from all others."""
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[0] += 50 * torch.linspace(-1, 1, 16)
    shares = [
        readings(subject(model), TEXTS, [MEASURE.given(skip=skip)]).rows["features"][0]["first"]
        for skip in (0, 1)
    ]
    assert shares[0] > 0.99 and shares[1] < 0.7


def test_a_text_that_is_too_short_is_a_reason(tiny):
    seen = readings(subject(tiny("gpt2")), TEXTS, [MEASURE.given(skip=10)])
    assert seen.refused["features"] == "no text is longer than the first 10 tokens left out"
    assert "features" not in seen.pictures


def test_a_layer_that_is_not_finite_leaves_its_points_open(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[4] = float("nan")  # in the second text alone
    seen = readings(subject(model), TEXTS, [MEASURE.given(words=1)])
    points, places = (seen.pictures["features"][name] for name in ("points", "places"))
    open_ = [
        place[0] for place, point in zip(places[0], points[0][0], strict=True) if None in point
    ]
    assert set(open_) == {1} and len(open_) < len(places[0])
    elsewhere = readings(
        subject(model), [torch.arange(5, 13), TEXTS[1][4:]], [MEASURE.given(words=1, skip=3)]
    )
    assert elsewhere.pictures["features"]["points"] == [[[[None] * 3] * 2]] * 3
    assert all(row["apart"] != row["apart"] for row in elsewhere.rows["features"])


def test_the_same_text_gives_the_same_picture_and_sequences_add_up(tiny):
    model = tiny("llama")
    whole = torch.arange(60) * 7 % 20
    measure = MEASURE.given(words=3, points=4, skip=0)
    first, again = (
        readings(subject(model), [whole, whole + 1], [measure]).pictures["features"]
        for _ in range(2)
    )
    assert first == again
    assert [len(places) for places in first["places"]] == [4, 4, 4]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=20), min_size=1, max_size=4),
    words=st.integers(1, 8),
    points=st.integers(1, 6),
    skip=st.integers(0, 3),
)
def test_what_is_drawn_are_occurrences_of_the_most_frequent(texts, words, points, skip):
    sequences = [torch.tensor(text) for text in texts]
    found = choice(sequences, words, points, skip)
    counts = [count for _, count in found.words]
    assert counts == sorted(counts, reverse=True)
    rest = [t for text in texts for t in text[skip:]]
    assert len(found.words) == min(words, len(set(rest)))
    assert all(rest.count(token) == count for token, count in found.words)
    others = set(rest) - {token for token, _ in found.words}
    assert all(rest.count(token) <= counts[-1] for token in others)
    for (token, count), places in zip(found.words, found.places, strict=True):
        assert len(places) == len(set(places)) == min(points, count)
        assert all(texts[s][p] == token and p >= skip for s, p in places)


@pytest.mark.parametrize(("option", "value"), [("words", 0), ("points", 0), ("skip", -1)])
def test_an_option_out_of_range_is_one_line(option, value):
    with pytest.raises(UserError, match=f"option {option} of measure 'features' got {value}"):
        MEASURE.given(**{option: value})
