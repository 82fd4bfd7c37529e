"""Every study in its fast mode comes to the verdict that is stored; part of .ci/run."""

from pathlib import Path

import pytest

from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import load_record
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.statistics import LOOKED
from layerlab.studies.spectral25.path_decomposition import DEPTH

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# What a sentence asks for, by study: the thresholds of its verdicts, in their order.
ASKED = {
    "where-noise": [
        "above 0.5 was",
        "intervals apart were",
        "one name was",
        "within 0.25 of 1 was",
    ],
    "deep-curve": ["", "above 0.1 was", "above 0.1 was"],
    "unit-ball": [
        "above 0.5, which is most, was",
        "above 0.1 was",
        "above 1.5 was",
        "below 3 was",
        "within a factor of 1.5 of 1 was",
    ],
}
# Numbers of verdicts, by study and place.
NUMBERS = {
    ("attention-gain", 0): pytest.approx(1.64, abs=0.01),
    ("mlp-lipschitz", 0): pytest.approx(0.02, abs=0.02),
    ("rank-collapse", 0): pytest.approx(3, abs=0.5),
    ("series-exchange", 0): 0,
    ("series-exchange", 1): 0,
    ("series-exchange", 3): 3,
}


def check_theorems(found):
    shares = found.frame("statements").query("kind == 'observed / bound'")
    assert (shares["share"].loc[~shares["statement"].str.contains("x 1000")] == 1).all()


def check_ellipse(found):
    ellipse = found.to_dict()["pictures"][0]["data"][1]
    assert max(ellipse["x"]) > max(ellipse["y"]) > 0


def check_steps(found):
    assert found.number < 1 and len(found.frame("steps")) == 3 * DEPTH


def check_remark(found):
    assert LOOKED in found.to_dict()["remarks"]


def check_claim(found):
    assert studies()["shortcut-noise"].claim == found.verdicts[0]["claim"]


# What else is true of a study.
CHECKS = {
    "where-noise": check_remark,
    "shortcut-noise": check_claim,
    "pangu-theorems": check_theorems,
    "unit-ball": check_ellipse,
    "path-length": check_steps,
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
    for threshold, verdict in zip(ASKED.get(name, []), found.verdicts, strict=False):
        assert not threshold or f"{threshold} asked for" in verdict["said"]
    for (study_name, place), number in NUMBERS.items():
        assert study_name != name or found.verdicts[place]["number"] == number
    if name in CHECKS:
        CHECKS[name](found)
