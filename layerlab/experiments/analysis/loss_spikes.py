"""Loss spikes of a run, where a monitor listened for them."""

from layerlab.records.run import RunRecord

UNIT = "loss spikes a run"


def count(run: RunRecord) -> float | None:
    """Count the loss spikes of a run; None without a monitor."""
    if not run.manifest["recipe"].get("monitor", {}).get("interval"):
        return None
    alarms = (one for one in run.events if one.get("kind") == "alarm")
    return float(sum(one.get("measure") == "loss" for one in alarms))
