"""Norms and the batch: numbers by hand, and a model that does mix its texts."""

from math import nan

import pytest
import torch

from layerlab.errors import NotApplicable
from layerlab.studies.engine.runner import study
from layerlab.studies.spectral25.batch_independence import BATCH, LAYER, RMS, WIDTH, beside, norms
from layerlab.studies.support.passages import get_model
from layerlab.system.hooks import temporary_hooks
from tests.studies.small import drawing

QUICK = {"draws": 8, "progress": False, "threads": 1}


@pytest.mark.parametrize("batch", [2, 9])
def test_a_token_moves_behind_batch_norm_as_a_hand_computes(batch):
    found = norms(drawing(3, 5), batch)
    assert not found[LAYER].any() and not found[RMS].any()
    draw = drawing(3, 5)
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

    with temporary_hooks([model.model.norm.register_forward_hook(mix)]):
        plain = beside(drawing(3, 5), "llama")["change"]
        with temporary_hooks([model.register_forward_hook(rule_out)]):
            found = beside(drawing(3, 5), "llama")["change"]
    assert (plain > 0.1).all() and torch.allclose(found, plain, rtol=0.5)


@pytest.mark.full
def test_a_model_whose_texts_see_each_other_is_found_out():
    norm = get_model("llama").model.model.norm
    with temporary_hooks([norm.register_forward_hook(mix)]):
        found = study("batch-independence", **QUICK).verdicts
    assert [one["word"] for one in found] == ["holds", "holds", "fails"]
    assert [one["word"] for one in study("batch-independence", **QUICK).verdicts][2] == "holds"


def test_logits_that_are_not_finite_on_a_passage_decide_nothing():
    norm = get_model("llama").model.model.norm
    with (
        temporary_hooks([norm.register_forward_hook(lambda *every: every[2] * nan)]),
        pytest.raises(NotApplicable, match="logits of a passage are not all finite"),
    ):
        beside(drawing(3, 5), "llama")
