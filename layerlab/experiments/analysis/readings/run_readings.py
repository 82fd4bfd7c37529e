"""Readings of a run as one number, which is compared beside the loss."""

from collections.abc import Iterator, Mapping

from layerlab.experiments.analysis.readings import gradient_profile
from layerlab.recipes.compared_measures import STEP_UNIT, ComparedMeasure, parse_measure
from layerlab.records.run import RunRecord
from layerlab.records.scores import ModelScore

_LOSS_UNITS = {"nats": "nats", "bits_per_byte": "bits per byte"}


def name_unit(metric: str) -> str:
    """Return the unit of the losses that are compared."""
    return _LOSS_UNITS.get(metric, f"in {metric}")


def unit_of(measure: str, counted: str = STEP_UNIT) -> str:
    """Return the unit of a measure's numbers.

    Args:
        counted: what the steps of runs are.
    """
    parsed = parse_measure(measure)
    if parsed.kind == "peak":
        return f"in {parsed.reading}"
    if parsed.scored:
        return "in score"
    return {
        "steps": counted,
        "spikes": "loss spikes a run",
        "gradient": gradient_profile.UNIT,
    }[parsed.kind]


def read_runs(measure: str, runs: Mapping[int, RunRecord], metric: str) -> dict[int, float]:
    """Return the reading of each run by seed that ended and did not diverge, if it has one.

    What a monitor read of a run before it diverged is not the reading of a run.

    Args:
        measure: by its name in a recipe.
        metric: of the losses that are compared.
    """
    parsed = parse_measure(measure)
    found = {
        seed: _read(parsed, run, metric)
        for seed, run in runs.items()
        if run.finished and run.diverged is None
    }
    return {seed: value for seed, value in found.items() if value is not None}


def read_scores(measure: str, runs: Mapping[int, RunRecord]) -> dict[int, ModelScore]:
    """Return the score of each run's finished model by seed, where it has one."""
    key = parse_measure(measure).key
    return {
        seed: run.scores[key]
        for seed, run in runs.items()
        if key in run.scores and run.diverged is None
    }


def explain_unreached(
    measure: str, runs: Mapping[int, RunRecord], metric: str, counted: str = STEP_UNIT
) -> dict[int, str]:
    """Return by seed why a run never came to what a measure counts the steps to.

    Args:
        runs: that ended with a loss in the metric.
        counted: what their steps are.
    """
    parsed = parse_measure(measure)
    if parsed.kind != "steps":
        return {}
    read = read_runs(measure, runs, metric)
    unit = name_unit(metric)
    return {
        seed: f"not below {parsed.loss:g} {unit} in {run.value('updates') or 0:,.10g} {counted}"
        for seed, run in runs.items()
        if seed not in read
    }


def list_early(measure: str, runs: Mapping[int, RunRecord], metric: str) -> list[int]:
    """Return the seeds of runs that had come to a loss by their first evaluation, or before."""
    parsed = parse_measure(measure)
    if parsed.kind != "steps":
        return []
    reached = read_runs(measure, runs, metric)
    first = {seed: next(_evaluations(runs[seed], metric)) for seed in reached}
    return [seed for seed, (update, loss) in first.items() if update > 0 and loss <= parsed.loss]


def _evaluations(run: RunRecord, metric: str) -> Iterator[tuple[float, float]]:
    """Yield the update of each evaluation and what it came to."""
    for event in run.events:
        value = event.get(metric) if event.get("kind") == "evaluation" else None
        if value is not None:
            yield float(event["update"]), float(value)


def _read(measure: ComparedMeasure, run: RunRecord, metric: str) -> float | None:
    if measure.scored:
        found = run.scores.get(measure.key)
        return None if found is None else found.score
    if measure.kind == "steps":
        return _steps(run, measure.loss, metric)
    if measure.kind == "peak":
        return _peak(run, measure.reading)
    return _loss_spikes(run) if measure.kind == "spikes" else gradient_profile.gradient_ratio(run)


def _steps(run: RunRecord, loss: float, metric: str) -> float | None:
    """Return after how many updates the held-out loss was reached, between two evaluations.

    None where it never was; the loss may rise above it again.
    """
    before: tuple[float, float] | None = None
    for update, value in _evaluations(run, metric):
        if value <= loss:
            if before is None:
                return update
            share = (before[1] - loss) / (before[1] - value)
            return before[0] + share * (update - before[0])
        before = update, value
    return None


def _peak(run: RunRecord, reading: str) -> float | None:
    """Return the largest of a monitor's readings in all layers over the run."""
    values = [
        row["value"]
        for event in run.events
        if event.get("kind") == "monitor"
        for row in event["readings"]
        if row["measure"] == reading and row["value"] is not None
    ]
    return max(values, default=None)


def _loss_spikes(run: RunRecord) -> float | None:
    """Count how many there were; None where nobody listened."""
    if not run.manifest["recipe"].get("monitor", {}).get("interval"):
        return None
    alarms = (one for one in run.events if one.get("kind") == "alarm")
    return float(sum(one.get("measure") == "loss" for one in alarms))
