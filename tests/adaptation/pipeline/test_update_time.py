"""Where a model is too large to be tried, an update takes what the formula says."""

import pytest

from layerlab.adaptation.pipeline.dry_update import DryUpdate
from layerlab.adaptation.pipeline.update_time import (
    EXCHANGE,
    LARGEST,
    SHORT,
    Update,
    time_update,
)
from layerlab.experiments.estimate.step_time import ASSUMED
from layerlab.recipes.adaptation_sections import StageRunSection, StepSection

LARGE = DryUpdate(
    parameters=LARGEST + 1,
    weights=4000,
    learned=1000,
    layer=0,
    edge=0,
    learned_edge=0,
    shared=0,
    peak=0,
    inside=0,
    flops=6_000,
    forward=2_000,
    tokens=10,
    build=0.0,
)
UPDATE = Update(rows=8, micro=2, block=64)


@pytest.mark.parametrize(
    ("run", "sent"),
    [
        ({}, 0.0),
        # Gradients that are summed pass twice; of two processes each hands over a half.
        ({"num_processes": 2}, 2 * 1000 / 2),
        ({"num_processes": 4}, 2 * 1000 * 3 / 4),
        # Weights that are shared out are gathered for each of four passes, forward and back.
        ({"num_processes": 2, "sharding": "fsdp"}, (1000 + 2 * 4 * 4000) / 2),
    ],
)
def test_an_update_takes_its_flops_at_the_assumed_rate_and_its_exchange(run, sent):
    peak = 1e6
    settings = StageRunSection.model_validate(run)
    found = time_update(None, StepSection(), settings, UPDATE, LARGE, peak)
    token = 1 / 10 / (ASSUMED * peak)  # seconds of a FLOP of a pass, by its tokens
    assert not found.measured
    updates = 8 * 64 * 6_000 * token
    assert found.seconds == pytest.approx(updates + sent / EXCHANGE["cpu"], rel=1e-12)
    assert found.forward == pytest.approx(2 * 64 * 2_000 * token)
    assert found.short == pytest.approx(SHORT * 2_000 * token)
