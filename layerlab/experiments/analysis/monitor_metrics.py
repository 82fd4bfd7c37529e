"""Readings of a run's monitor as one number, which claims compare in place of the loss."""

from collections.abc import Callable, Mapping

from layerlab.experiments.analysis import gradient_profile, loss_spikes
from layerlab.records.run import RunRecord

UNITS = {"spikes": loss_spikes.UNIT, "gradient": gradient_profile.UNIT}
_COUNTS: Mapping[str, Callable[[RunRecord], float | None]] = {
    "spikes": loss_spikes.count,
    "gradient": gradient_profile.gradient_ratio,
}


def last_readings(measure: str, runs: Mapping[int, RunRecord]) -> dict[int, float]:
    """Return the last reading of each finished run by seed; runs without a monitor have none.

    Args:
        measure: of a claim; one of `UNITS`, which has its unit.
    """
    found = {seed: _COUNTS[measure](run) for seed, run in runs.items() if run.finished}
    return {seed: value for seed, value in found.items() if value is not None}
