"""Every study in its fast mode comes to the verdict that is stored; part of .ci/run."""

from pathlib import Path

import pytest

from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import load_record
from layerlab.studies.engine.runner import study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.mark.study
@pytest.mark.parametrize("name", studies())
def test_the_fast_mode_comes_to_the_stored_verdicts(name):
    stored = load_record(RESULTS / "studies" / name)
    assert stored is not None, f"layerlab study {name} --out {RESULTS / 'studies' / name}"
    found = study(name, fast=True, runs=RESULTS, progress=False, threads=1)
    assert [(one["claim"], one["word"]) for one in found.verdicts] == [
        (one["claim"], one["word"]) for one in stored.verdicts
    ]
