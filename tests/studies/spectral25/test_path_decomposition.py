"""Paths of a stack sum to its output, in known cases each has what it must; the verdicts."""

import numpy as np
import pytest
import torch

from layerlab.errors import NotApplicable
from layerlab.loading.model import LoadedModel
from layerlab.loading.text_input import sample
from layerlab.numerics.theory.modules import TheoryAttention, TheoryNorm
from layerlab.studies.engine.given_models import GivenModel
from layerlab.studies.spectral25.path_decomposition import (
    CAUSAL,
    DEPTH,
    FALLING,
    HEADS,
    TOKENS,
    WIDTH,
    Piece,
    apart,
    embed,
    judge_nearer,
    judge_ranked,
    judge_short,
    length,
    paths,
    random,
    share,
    steps,
    trained_layers,
)
from layerlab.studies.support.passages import for_each_layer, get_model, tokens_of
from tests.families.recipe import build
from tests.studies.small import drawing


def features(seed=0):
    return torch.randn(
        TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.full
def test_the_paths_of_the_trained_model_sum_to_its_own_stream():
    ids, streams = tokens_of("llama")[100 : 100 + TOKENS], []
    for_each_layer(
        get_model("llama"), ids[None], lambda layer: streams.append(layer.stream.double())
    )
    parts = paths(embed(get_model("llama"), ids), trained_layers("llama"))
    assert len(parts) == DEPTH + 1
    # The model computes in float32, through eight layers.
    assert (parts.sum(0) - streams[-1]).norm() < 1e-5 * streams[-1].norm()


def test_a_stream_that_is_another_between_two_layers_has_no_paths():
    subject = LoadedModel(name="given", source="memory", model=build("llama"), tokenizer=None)
    tokens = torch.arange(TOKENS) % 30 + 3

    def own():
        return GivenModel(subject=subject, tokens=tokens, text=sample())

    assert len(trained_layers("given", own())) == len(subject.stack.blocks)

    class Scaled(type(subject.stack.blocks[-1])):
        """Is called with more than the block before gave, as if code between them scaled it."""

        def __call__(self, stream, *args, **options):
            return super().__call__(1.5 * stream, *args, **options)

    subject.stack.blocks[-1].__class__ = Scaled
    with pytest.raises(NotApplicable, match="do not sum to the stream behind its last layer"):
        trained_layers("given", own())


@pytest.mark.parametrize("causal", [True, False])
def test_the_paths_of_a_random_stack_sum_to_what_it_computes(causal):
    x, pieces = features(), random(drawing(seed=1), causal)
    parts = paths(x, pieces)
    for piece in pieces:
        x = x + piece.attention.value_of(piece.norm.value(x))
    assert torch.allclose(parts.sum(0), x, rtol=1e-10, atol=1e-10)
    assert share(parts).sum().item() == pytest.approx(1)
    assert apart(parts).sum().item() == pytest.approx(1)


def own(factor):
    """Attention in which every token sees itself alone, and takes over `factor` times what it is.

    Its norm divides by the root mean square, which is 1 for the features it is given here.
    """
    eye = factor * torch.eye(WIDTH, dtype=torch.float64)[None]
    attention = TheoryAttention(
        query=eye,
        key=eye,
        value=eye,
        output=torch.eye(WIDTH, dtype=torch.float64)[None],
        scale=1.0,
        allowed=torch.eye(TOKENS, dtype=torch.bool),
    )
    return Piece(norm=TheoryNorm(kind="rms"), attention=attention)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [0.5, 0.5]), (0.0, [1.0, 0.0])])
def test_a_layer_that_adds_a_multiple_of_its_input_shares_as_it_must(factor, expected):
    x = features()
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    assert share(paths(x, [own(factor)])).tolist() == pytest.approx(expected)


def test_mean_lengths_are_weighed_by_shares_and_long_paths_are_told():
    even, late = np.full((12, DEPTH + 1), 1 / (DEPTH + 1)), np.zeros((12, DEPTH + 1))
    late[:, -1] = 1
    assert length(even).tolist() == pytest.approx([DEPTH / 2] * 12)
    assert judge_short({"llama": late}, 0).word == "fails"
    assert judge_short({"llama": late[:, ::-1]}, 0).word == "holds"


def test_a_head_more_does_not_make_a_path_longer():
    assert HEADS > 1 and len(paths(features(), random(drawing(seed=1), causal=True)[:3])) == 4


def residuals(*factors):
    """Of twelve draws, whose residual each sublayer more multiplies by a factor."""
    one = np.cumprod([1.0, *factors])
    return {CAUSAL: steps(np.tile(one, (12, 1)) * np.linspace(1, 2, 12)[:, None], 0)}


@pytest.mark.full
def test_a_residual_that_rises_again_is_told_though_its_end_is_below_its_beginning():
    falling, rising = [0.5] * DEPTH, [0.5] * (DEPTH - 2) + [1.2, 1.1]
    assert [step.value for step in residuals(*rising)[CAUSAL]] == pytest.approx(rising)
    assert judge_ranked(residuals(*falling)).word == "holds"
    assert "It rises: nowhere" in judge_ranked(residuals(*falling)).said
    found = judge_ranked(residuals(*rising))
    assert found.word == "fails" and found.number == pytest.approx(1.2)
    assert "1.2 from 6 to 7 in random, causal mask; 1.1 from 7 to 8" in found.said
    assert judge_nearer(residuals(*rising), 5).word == "holds"
    assert judge_nearer(
        residuals(*[0.5] * (FALLING - 1), *[1.1] * (DEPTH - FALLING + 1)), 5
    ).word == ("fails")


@pytest.mark.full
def test_a_step_that_chance_explains_decides_nothing():
    draws = np.ones((40, DEPTH + 1)) * np.exp(np.random.default_rng(0).normal(0, 1, (40, 9)))
    assert judge_ranked({CAUSAL: steps(draws, 0)}).word == "not decided"
