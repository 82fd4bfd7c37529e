"""A measure of your own, in one file that stays where it is.

    layerlab inspect pre-norm --load examples/own_measure.py --measures focus
    python examples/own_measure.py

It asks how much of the residual stream's energy the loudest few channels carry.
"""

from collections.abc import Iterator

import layerlab
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import Hidden


def focus(h: Hidden, channels: int) -> float:
    """Share of the energy of the features that their loudest channels carry.

    max over sets C of `channels` columns of  sum_{i, j in C} x_ij^2 / ||X||_F^2

    1 means that the other channels are silent; channels / width is what equal channels give.

    Source: Own.
    Unit: none.
    """
    energy = h.double().square().sum(0)
    return (energy.topk(channels).values.sum() / energy.sum()).item()


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """One row per block."""
    channels = min(run.options["channels"], layer.stream.shape[-1])
    yield {
        "sequence": layer.sequence,
        "layer": layer.layer,
        "focus": focus(layer.stream, channels),
    }


MEASURES = (
    Measure(
        name="focus",
        title="Focus on few channels",
        unit="none",
        source="Own.",
        about=(
            "How much of the residual stream's energy sits in its few loudest channels. "
            "A value near 1 means that the other channels hardly speak, and that low precision "
            "will silence them."
        ),
        equation="sum of the largest column energies of X / ||X||_F^2",
        per=("sequence", "layer"),
        columns={"focus": "share of energy in the loudest channels: 1 all of it"},
        plot=("focus",),
        better="lower",
        needs=frozenset({"stream"}),
        read=read,
        options={"channels": 3},
    ),
)

if __name__ == "__main__":
    report = layerlab.inspect(
        "pre-norm",
        measures=[MEASURES[0].given(channels=1)],
        context=64,
        progress=False,
    )
    shares = report.frame("focus").groupby("layer")["focus"].mean()
    print("focus on the loudest channel, per layer:", shares.round(3).tolist())
