"""Scores as they are heard: exact, masked, in every way that attention is computed."""

import json
import math

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from layerlab import UserError
from layerlab.recipes.training_sections import ControlSection, EmulateSection
from layerlab.training.qk_control import logits
from layerlab.training.qk_control.penalties import QKControl
from layerlab.training.step.emulated_rounding import emulation
from tests.support.forked import python
from tests.training.support.controlled import largest_scores, model, words


def exact_scores(one: PreTrainedModel) -> Tensor:
    """From what a probe hears, all of them formed and masked by hand."""
    from layerlab.observe.architecture.structure import anatomy
    from layerlab.observe.tracing.attention.probe import probe

    found = []
    with probe(anatomy(one), found.append), torch.no_grad():
        one(words())
    layers = []
    for heard in found:
        key = heard.key.repeat_interleave(heard.query.shape[1] // heard.key.shape[1], 1)
        scores = heard.query @ key.mT * heard.scaling
        layers.append(
            scores.masked_fill(~torch.ones(16, 16).tril().bool(), -math.inf).amax((0, 2, 3))
        )
    return torch.stack(layers)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_largest_score_is_heard(attention, tiny):
    for one in (model(large=10.0, kv_heads=2), tiny("gpt2").train(), tiny("llama").train()):
        one.set_attn_implementation(attention)
        for drop in one.modules():
            if isinstance(drop, torch.nn.Dropout):
                drop.p = 0.0
        exact = exact_scores(one)
        assert torch.allclose(largest_scores(one), exact.clamp_min(-math.inf), atol=1e-6)
        # Only heads above the limit are looked at, and those are exact.
        limit = float(exact.median())
        some = largest_scores(one, limit)
        assert torch.allclose(some[exact > limit], exact[exact > limit], atol=1e-6)


def test_no_head_above_the_limit_is_passed_over_in_bfloat16():
    # The key is the query: its score is the bound itself, |q|^2 times the factor.
    found = 0
    for seed in range(20):
        drawn = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(seed))
        query = drawn.bfloat16()
        score = float(query.float().square().sum())
        # Rounded down in bfloat16, the length would promise less than the score.
        found += float(query.norm(dim=-1)) ** 2 < 0.999 * score
        largest = torch.full((1,), -math.inf)
        logits._note(largest, query, query, None, 1.0, True, 0.999 * score)
        assert float(largest) == pytest.approx(score, rel=2**-8)
    assert found


def test_scores_without_a_factor_have_that_of_the_head_width():
    asking = torch.nn.Module()
    vars(asking).update(largest_scores=torch.full((1,), -math.inf), score_limit=0.0)
    ones = torch.ones(1, 1, 2, 4)
    logits._listening(lambda *given, **options: None, "sdpa")(asking, ones, ones, ones, None)
    assert asking.largest_scores.tolist() == [2.0]


def test_masks_of_documents_hide_scores():
    one = model(large=10.0)
    control = QKControl(one, ControlSection(qk_clip=1e-6))
    positions = torch.arange(8).repeat(2)[None].expand(4, -1)
    with torch.no_grad():
        one(words(), position_ids=positions, use_cache=False)
    whole = torch.stack(control._scores.take())
    with torch.no_grad():
        for half in (words()[:, :8], words()[:, 8:]):
            one(half, use_cache=False)
    assert torch.allclose(whole, torch.stack(control._scores.take()), atol=1e-5)


def test_evaluation_is_not_listened_to_and_nothing_stays_behind():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    one = model(large=10.0)
    control = QKControl(one, ControlSection(qk_clip=1e-6))
    one.eval()(words())
    assert torch.isinf(torch.stack(control._scores.take())).all()
    with pytest.raises(IndexError):
        one.train()(torch.full((1, 4), 64))  # no such word
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    control.finish()
    assert not any("largest_scores" in vars(module) for module in one.modules())
    assert not one._forward_hooks and not one._forward_pre_hooks


def test_scores_are_heard_under_rounding_and_keyed_dropout():
    from layerlab.training.step.keyed_dropout import key_dropout

    one = model(large=20.0, dropout=0.1)
    control = QKControl(one, ControlSection(qk_clip=1e-6))
    with key_dropout(one, 0, 0, 0), torch.no_grad():
        one(words())
    exact = torch.stack(control._scores.take())
    with emulation(one, EmulateSection(format="bf16"), 0, 0), key_dropout(one, 0, 0, 0):
        one(words(), labels=words()).loss.backward()
    rounded = torch.stack(control._scores.take())
    assert torch.isfinite(exact).all()
    assert torch.allclose(rounded, exact, rtol=0.1, atol=0.1)


def test_what_cannot_be_heard_is_said(tiny):
    with pytest.raises(UserError) as told:
        QKControl(tiny("openai-gpt"), ControlSection(qk_clip=1.0))
    assert str(told.value) == (
        "control.qk_clip listens to attention functions, and Attention computes attention by "
        "itself; leave clip out"
    )
    one = model()
    QKControl(one, ControlSection(qk_clip=1.0))
    one.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError) as told:
        one(words())
    assert str(told.value) == (
        'control.qk_clip cannot see the scores of train.attn_implementation = "flex_attention"; '
        'write attn_implementation = "sdpa"'
    )


PROGRAM = """
import json, torch
from layerlab.training.qk_control import logits
from layerlab.training.qk_control.penalties import QKControl
from layerlab.recipes.training_sections import ControlSection
from tests.training.support.controlled import model, words
from tests.training.qk_control.test_logits import exact_scores
torch.set_num_threads(1)
one = model(large=10.0, kv_heads=2, layers=1)
exact = exact_scores(one)
control = QKControl(one, ControlSection(qk_clip=1e-6))
for layer in one.model.layers:
    layer.compile(fullgraph=True, backend="aot_eager")
gaps, graphs = [], []
for _ in range(2):
    one(words(), labels=words(), use_cache=False).loss.backward()
    found = torch.stack(control._scores.take())
    gaps.append(float((found - exact).abs().max()))
    graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
print(json.dumps([gaps, graphs]))
"""


@pytest.mark.full
def test_compiled_layers_are_heard_and_compiled_once():
    given = python("-c", PROGRAM)
    assert given.returncode == 0, given.stderr[-2000:]
    gaps, graphs = json.loads(given.stdout.splitlines()[-1])
    assert max(gaps) < 1e-5
    assert graphs[0] == graphs[1]
