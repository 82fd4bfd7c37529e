"""Rounding by component: names, an error that is planted in one, and sums that are known."""

import numpy as np
import pytest
import torch

from layerlab import builtin
from layerlab.studies.budzinskiy25.models.component_rounding import Trials
from layerlab.studies.budzinskiy25.models.error_sources import (
    ABOUT_FUSED,
    components,
    errs,
    judge_adding,
    judge_attention,
    judge_dominant,
    share_of,
)
from layerlab.studies.budzinskiy25.support.components import COMPONENTS
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.statistics import Interval
from layerlab.studies.support.passages import tokens_of
from tests.studies.small import context

NAMES = (*COMPONENTS, "everything")
WORK = context(models=builtin.NAMES)


@pytest.fixture(scope="module")
def trials():
    return Trials("llama", tokens_of("llama")[:24].view(2, 12), "bf16", "flat")


@pytest.mark.full
def test_all_components_together_are_the_whole_and_none_is_nothing(trials):
    assert torch.equal(trials.rounding(COMPONENTS), trials.whole)
    # A llama adds no positions: what is not there has no error, rather than one of 0.
    assert trials.rounding(["embedding + position"]).isnan().all()
    assert trials.keeping("embedding + position").isnan().all()
    assert (trials.whole > 0).all()


def test_the_error_of_a_passage_does_not_know_its_neighbours(trials):
    alone = Trials("llama", tokens_of("llama")[None, 12:24], "bf16", "flat")
    assert torch.allclose(alone.whole[0], trials.whole[1], rtol=0.02)


def test_rounding_the_logits_alone_errs_by_a_rounding(trials):
    error = trials.rounding(["logits"]).sqrt()
    # Uniform within half a gap, and a gap is 2^-8 to 2^-7 of the number.
    assert (error < 2**-7 / 12**0.5).all() and (error > 2**-8 / 12**0.5).all()


def test_a_component_without_a_place_is_named_and_gives_no_share():
    errors = planted(norms=0.5, logits=0.45)
    for one in errors.values():
        one[:, NAMES.index("feed-forward")] = np.nan
    found = judge_adding(errors, WORK)
    assert found.word == "holds" and "nan" not in found.said
    assert not errs(errors["llama"][:, NAMES.index("feed-forward")])


def planted(**shares):
    errors = np.zeros((24, len(NAMES)))
    errors[:, -1] = np.linspace(1, 2, 24)
    for name, share in shares.items():
        errors[:, NAMES.index(name.replace("_", " "))] = share * errors[:, -1]
    return {model: errors for model in builtin.NAMES}


@pytest.mark.full
def test_a_planted_share_is_found_and_judged():
    for share, word in ((0.8, "holds"), (0.1, "fails")):
        errors = planted(scores_and_softmax=share, norms=0.1)
        assert share_of(
            errors["llama"], ["scores and softmax"], components({}), WORK
        ).value == pytest.approx(share)
        assert judge_attention(errors, WORK, "bf16").word == word
    assert judge_adding(planted(norms=0.5, logits=0.45), WORK).word == "holds"
    assert judge_adding(planted(norms=0.5, logits=0.9), WORK).word == "fails"


@pytest.mark.full
def test_a_fused_kernel_keeps_nothing_where_every_result_is_rounded():
    told = {
        mode: " ".join(
            study("where-noise", draws=4, mode=mode, progress=False, threads=1).to_dict()["remarks"]
        )
        for mode in ("as-run", "flat")
    }
    assert ABOUT_FUSED in told["as-run"] and "float32" not in told["flat"]


def test_what_is_largest_has_another_name_only_where_it_surely_is_another():
    models, sure, near = ("one", "two"), (0.39, 0.41), (0.30, 0.50)
    for ends, word in ((sure, "fails"), (near, "not decided")):
        first, second = Interval(0.4, *ends), Interval(0.35, ends[0] - 0.05, ends[1] - 0.05)
        found = {("one", "norms"): first, ("one", "logits"): second}
        found |= {("two", "norms"): second, ("two", "logits"): first}
        assert judge_dominant(found, models).word == word
    same = {(model, name): one for model in models for (_, name), one in list(found.items())[:2]}
    assert judge_dominant(same, models).word == "not decided"


def test_of_a_single_model_nothing_is_said_of_every_one():
    found = {("one", "norms"): Interval(0.5, 0.4, 0.6), ("one", "logits"): Interval(0.1, 0.0, 0.2)}
    verdict = judge_dominant(found, ("one",))
    assert verdict.word == "holds" and "every model" not in verdict.claim
    assert "one name" not in verdict.said
