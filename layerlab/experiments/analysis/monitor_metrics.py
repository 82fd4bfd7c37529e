"""Readings of a run's monitor as one number, which claims compare in place of the loss."""

from collections.abc import Callable, Mapping

from layerlab.experiments.analysis import gradient_profile
from layerlab.records.run import RunRecord


def _loss_spikes(run: RunRecord) -> float | None:
    """Count how many there were; None where nobody listened."""
    if not run.manifest["recipe"].get("monitor", {}).get("interval"):
        return None
    alarms = (one for one in run.events if one.get("kind") == "alarm")
    return float(sum(one.get("measure") == "loss" for one in alarms))


UNITS = {"spikes": "loss spikes a run", "gradient": gradient_profile.UNIT}
_COUNTS: Mapping[str, Callable[[RunRecord], float | None]] = {
    "spikes": _loss_spikes,
    "gradient": gradient_profile.gradient_ratio,
}


def last_readings(measure: str, runs: Mapping[int, RunRecord]) -> dict[int, float]:
    """Return the last reading of each finished run by seed; runs without a monitor have none.

    Args:
        measure: of a claim; one of `UNITS`, which has its unit.
    """
    found = {seed: _COUNTS[measure](run) for seed, run in runs.items() if run.finished}
    return {seed: value for seed, value in found.items() if value is not None}
