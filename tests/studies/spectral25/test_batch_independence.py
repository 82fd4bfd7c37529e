"""Norms and the batch: numbers by hand, and a model that does mix its texts."""

from math import nan

import pytest
import torch

from layerlab.errors import NotApplicable
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.sampling import Sampler
from layerlab.studies.spectral25.batch_independence import BATCH, LAYER, RMS, WIDTH, beside, norms
from layerlab.studies.support.passages import get_model

QUICK = {"draws": 8, "progress": False, "threads": 1}


def sampler() -> Sampler:
    return Sampler(count=3, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("batch", [2, 9])
def test_a_token_moves_behind_batch_norm_as_a_hand_computes(batch):
    found = norms(sampler(), batch)
    assert not found[LAYER].any() and not found[RMS].any()
    draw = sampler()
    one, others = draw.normal(1, WIDTH), draw.normal(2, batch - 1, WIDTH)
    others[:, 1] *= 10
    for row, token, rests in zip(found[BATCH], one, others, strict=True):
        made = []
        for rest in rests:
            whole = torch.cat([token, rest])
            spread = whole.var(0, unbiased=False) + 1e-5
            made.append((token[0] - whole.mean(0)) / spread.sqrt())
        moved = (made[1] - made[0]).norm() / made[0].norm()
        assert row[0] == pytest.approx(float(moved), rel=1e-9)


def mix(module, given, output):
    return output + output.mean(0, keepdim=True)


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min])
def test_entries_that_a_model_rules_out_are_no_logits(lowest):
    model = get_model("llama").model

    def rule_out(module, given, output):
        output.logits[..., :5] = lowest

    hooks = [model.model.norm.register_forward_hook(mix)]
    try:
        plain = beside(sampler(), "llama")["change"]
        hooks.append(model.register_forward_hook(rule_out))
        found = beside(sampler(), "llama")["change"]
    finally:
        for hook in hooks:
            hook.remove()
    assert (plain > 0.1).all() and torch.allclose(found, plain, rtol=0.5)


@pytest.mark.full
def test_a_model_whose_texts_see_each_other_is_found_out():
    model = get_model("llama").model
    hook = model.model.norm.register_forward_hook(mix)
    try:
        found = study("batch-independence", **QUICK).verdicts
    finally:
        hook.remove()
    assert [one["word"] for one in found] == ["holds", "holds", "fails"]
    assert [one["word"] for one in study("batch-independence", **QUICK).verdicts][2] == "holds"


def test_logits_that_are_not_finite_on_a_passage_decide_nothing():
    hook = get_model("llama").model.model.norm.register_forward_hook(lambda *every: every[2] * nan)
    try:
        with pytest.raises(NotApplicable, match="logits of a passage are not all finite"):
            beside(sampler(), "llama")
    finally:
        hook.remove()
