"""Every study in its fast mode comes to the verdict that is stored; part of .ci/run."""

from pathlib import Path

import pytest

from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import load_record
from layerlab.studies.engine.runner import study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# Of few draws, too, by the place of their verdict.
NUMBERS = {
    "attention-gain": {0: pytest.approx(1.64, abs=0.01)},
    "mlp-lipschitz": {0: pytest.approx(0.02, abs=0.02)},
    "rank-collapse": {0: pytest.approx(3, abs=0.5)},
    "series-exchange": {0: 0, 1: 0, 3: 3},
}
# What has to stand in the sentence of each verdict.
ASKED = {
    "deep-curve": ["above 0.1, the least that the source reads", *["above 0.1 was asked for"] * 2],
    "unit-ball": ["above 0.5, which is most,", "above 0.1", "above 1.5", "below 3", "of 1.5 of 1"],
    "where-noise": ["above 0.5", "intervals apart", "one name", "within 0.25 of 1"],
}


@pytest.mark.study
@pytest.mark.parametrize("name", studies())
def test_the_fast_mode_comes_to_the_stored_verdicts(name):
    stored = load_record(RESULTS / "studies" / name)
    assert stored is not None, f"layerlab study {name} --out {RESULTS / 'studies' / name}"
    found = study(name, fast=True, runs=RESULTS, progress=False, threads=1)
    assert [(one["claim"], one["word"]) for one in found.verdicts] == [
        (one["claim"], one["word"]) for one in stored.verdicts
    ]
    for place, number in NUMBERS.get(name, {}).items():
        assert found.verdicts[place]["number"] == number
    for asked, verdict in zip(ASKED.get(name, ()), found.verdicts, strict=False):
        assert asked in verdict["said"] and "asked for" in verdict["said"]
