"""What keeping a part buys: known extremes, planted shares, and the stored words."""

import numpy as np
import pytest
import torch

from layerlab import builtin
from layerlab.studies.budzinskiy25.models.component_rounding import Trials
from layerlab.studies.budzinskiy25.models.precision_advice import (
    ALL,
    AS_RUN,
    KEPT,
    NAMES,
    judge_advised,
    judge_islands,
    judge_most,
    judge_together,
    share_left,
)
from layerlab.studies.budzinskiy25.support.components import COMPONENTS, SCORES
from layerlab.studies.support.passages import tokens_of

FUSED = ("pre-norm", "llama")


@pytest.mark.full
def test_what_is_kept_is_a_component_and_keeping_all_leaves_nothing():
    assert {name for names in KEPT.values() for name in names} <= set(COMPONENTS)
    trials = Trials("post-norm", tokens_of("post-norm")[None, :8], "bf16", "flat")
    assert trials.keeping(*COMPONENTS) < 1e-10 < trials.whole
    # GPT-1's code has no float32 of its own.
    run = Trials("post-norm", tokens_of("post-norm")[None, :8], "bf16", "as-run")
    assert torch.equal(run.whole, trials.whole)


def planted(**shares):
    """What is left by name, everything else as if nothing had been kept."""
    errors = np.outer(np.linspace(1, 2, 24), np.ones(len(NAMES)))
    for name, share in shares.items():
        errors[:, NAMES.index({"softmax": SCORES, "code": AS_RUN}.get(name, name))] *= share
    found = {name: share_left(errors, name, 0, 3) for name in NAMES[:-1]}
    return {(model, name): one for model in builtin.NAMES for name, one in found.items()}


@pytest.mark.full
def test_planted_shares_are_judged():
    assert planted(softmax=0.4)["llama", SCORES].value == pytest.approx(0.4)
    assert judge_advised(planted(softmax=0.4), "bf16", FUSED).word == "holds"
    assert judge_advised(planted(softmax=0.95), "bf16", FUSED).word == "fails"
    assert judge_most(planted(softmax=0.4, norms=0.8), builtin.NAMES).word == "holds"
    assert judge_most(planted(softmax=0.8, norms=0.4), builtin.NAMES).word == "fails"
    assert judge_together(planted(**{ALL: 0.9})).word == "fails"
    assert judge_islands(planted(code=1.1), FUSED).word == "fails"
