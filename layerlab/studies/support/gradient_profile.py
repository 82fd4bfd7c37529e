"""Norms of gradients by block, as pictures and tables of a study of trained arms."""

from collections.abc import Sequence

import pandas as pd

from layerlab.records.json_values import Json
from layerlab.studies.engine.pictures import Curve, curves, style
from layerlab.studies.engine.study import Picture

# A reading of a comparison's gradients, by how a picture calls it.
TIMES = {"start": "before the first update", "mean": "in the mean of a run's readings"}


def pictures(gradients: Sequence[Json]) -> tuple[Picture, ...]:
    """Plot the norm of the gradient by block, for each arm, if a claim is on gradients."""
    if not gradients:
        return ()
    arms = _by_arm(gradients)
    return tuple(
        curves(
            f"gradient-{time}",
            f"Norm of the gradient by block, {title} (mean of seeds, and their range)",
            [_curve(name, runs, time, number) for number, (name, runs) in enumerate(arms.items())],
            x="block, the first one reads the embedding",
            y="norm of the gradient",
        )
        for time, title in TIMES.items()
    )


def frames(gradients: Sequence[Json]) -> dict[str, pd.DataFrame]:
    """Return each arm's ratio of first to last block, in powers of ten, and every block."""
    if not gradients:
        return {}
    arms = _by_arm(gradients)
    return {
        "gradients": pd.DataFrame(
            {"arm": name, "blocks": len(runs[0]["mean"]), "seeds": len(runs), **_ratios(runs)}
            for name, runs in arms.items()
        ),
        "gradient_blocks": pd.DataFrame(
            {"arm": name, "block": block + 1}
            | {time: 10 ** _spread(runs, time, block)[0] for time in TIMES}
            for name, runs in arms.items()
            for block in range(len(runs[0]["mean"]))
        ),
    }


def _by_arm(gradients: Sequence[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for one in gradients:
        found.setdefault(str(one["arm"]), []).append(one)
    return found


def _curve(name: str, runs: Sequence[Json], time: str, number: int) -> Curve:
    blocks = range(len(runs[0][time]))
    middle, low, high = zip(*(_spread(runs, time, block) for block in blocks), strict=True)
    return Curve(
        name=name,
        x=[block + 1 for block in blocks],
        y=[10**one for one in middle],
        low=[10**one for one in low],
        high=[10**one for one in high],
        kind=number,
        style=style(number),
    )


def _spread(runs: Sequence[Json], time: str, block: int) -> tuple[float, float, float]:
    """Return the mean, smallest and largest logarithm over the seeds."""
    values = [run[time][block] for run in runs]
    return sum(values) / len(values), min(values), max(values)


def _ratios(runs: Sequence[Json]) -> dict[str, float]:
    found: dict[str, float] = {}
    for time in TIMES:
        ratios = [run[time][0] - run[time][-1] for run in runs]
        found |= {
            f"{time}_ratio": sum(ratios) / len(ratios),
            f"{time}_least": min(ratios),
            f"{time}_most": max(ratios),
        }
    return found
