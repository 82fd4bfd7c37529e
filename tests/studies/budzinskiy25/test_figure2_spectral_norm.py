"""What a page says of the ends of Figure 2 is read off its numbers, at any precision."""

import numpy as np
import pytest

from layerlab.studies.budzinskiy25.figure2_spectral_norm import (
    DEPTHS,
    NORMS,
    describe_ends,
    judge_degrees,
)
from layerlab.studies.budzinskiy25.support.random_transformers import NAMES, NORMWISE
from layerlab.studies.engine.runner import study


def test_both_ends_are_told_as_they_are():
    means = np.array([1.0, 1.1, 2, 4, 8, 16, 32, 40, 60]) / 1000
    errors = np.zeros((4, len(NORMS), len(DEPTHS), len(NAMES)))
    errors[:, :, -1, NORMWISE] = means
    assert describe_ends(errors) == (
        "After 20 layers the mean error grows x 1.1 from a norm of 1 to 2 and x 1.5 from 128 to "
        "256, where it is 0.06 of the result (normwise)."
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("powers", "noise", "word"),
    [
        ((1.0, 1.5, 2.0), 0.01, "holds"),
        ((1.45, 1.5, 2.0), 0.01, "holds"),
        ((1.45, 1.5, 2.0), 2.0, "not decided"),  # the interval reaches beyond 1.5
        ((1.0, 1.5, 2.6), 0.01, "fails"),
        ((1.0, 1.5, 2.6), 2.0, "not decided"),
    ],
)
def test_powers_are_judged_by_their_intervals(powers, noise, word):
    normal = np.random.default_rng(0).standard_normal((100, len(NORMS), len(DEPTHS), len(NAMES)))
    exact = np.array(NORMS)[:, None] ** powers
    assert judge_degrees(exact[..., None] * np.exp(noise * normal), 0).word == word


@pytest.mark.full
def test_no_error_of_24_digits_is_called_as_large_as_the_result():
    found = study("rounding-norm", draws=4, digits=24, progress=False, threads=1)
    rows = found.frame().query("statistic == 'normwise' and layers == 20 and spectral_norm == 256")
    told = found.to_dict()["remarks"][-1]
    assert f"where it is {rows['mean'].item():.2g} of the result" in told
    assert rows["mean"].item() == pytest.approx(0, abs=0.1)
    # Of four draws no interval has its level, and the record of such is valid JSON.
    assert {one["word"] for one in found.verdicts} == {"not decided"}
    assert "(-inf to inf)" in found.verdicts[0]["said"] and found.to_json()
