"""Cost of a ladder: each size, and all together."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.console.units import amount, duration
from layerlab.experiments.estimate.estimate import Estimate
from layerlab.experiments.plan.ladder import Rung

_SUMMED = ("runs", "flops", "disk")


def describe_rung(rung: Rung) -> str:
    """Describe the model and the length of a size."""
    shape = rung.recipe.model
    return (
        f"{amount(rung.parameters)} parameters (width {shape.width}, layers {shape.layers}), "
        f"{amount(rung.tokens)} tokens a run, {rung.tokens / rung.parameters:.3g} a parameter"
    )


def describe_sum(found: Sequence[Estimate]) -> list[str]:
    """Describe what all sizes take, one after the other."""
    runs, flops, disk = (sum(getattr(one, name) for one in found) for name in _SUMMED)
    return [
        f"all sizes: {runs} runs, {duration(_seconds(found))} in all, {amount(flops, 'FLOP')}, "
        f"{amount(max(one.memory for one in found), 'B')} of memory at most, "
        f"{amount(disk, 'B')} on disk"
    ]


def plan_to_json(rungs: Sequence[Rung], estimates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what each size costs, and the sum, as plain values."""
    summed = {name: sum(one[name] for one in estimates) for name in _SUMMED}
    times = [one["seconds"] for one in estimates]
    return {
        **summed,
        "seconds": None if None in times else sum(times),
        "memory": max(one["memory"] for one in estimates),
        "sizes": [
            {
                "parameters": rung.parameters,
                "tokens": rung.tokens,
                "width": rung.recipe.model.width,
                "layers": rung.recipe.model.layers,
                **one,
            }
            for rung, one in zip(rungs, estimates, strict=True)
        ],
    }


def _seconds(found: Sequence[Estimate]) -> float | None:
    times = [one.seconds for one in found]
    return None if None in times else sum(one for one in times if one is not None)
