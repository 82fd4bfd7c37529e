"""Loss spikes of runs, where a monitor listened for them."""

from collections.abc import Mapping

from layerlab.training.record import Record

UNIT = "loss spikes a run"


def spikes(runs: Mapping[int, Record]) -> dict[int, float]:
    """How many each run had, by seed; nothing of runs that were not watched."""
    return {seed: _count(run) for seed, run in runs.items() if run.finished and _heard(run)}


def _heard(run: Record) -> bool:
    """Whether spikes were listened for at all."""
    return bool(run.manifest["recipe"].get("monitor", {}).get("every"))


def _count(run: Record) -> float:
    alarms = (one for one in run.events if one.get("kind") == "alarm")
    return float(sum(one.get("measure") == "loss" for one in alarms))
