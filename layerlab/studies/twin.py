"""Small models trained for a study, and what is read of them: every arm of a seed on one order.

They learn Python's documentation, which comes with Python, in the words of the built-in models.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.domain import Domain
from layerlab.studies.picture import Curve, curves
from layerlab.studies.statistic import Interval
from layerlab.studies.study import Picture, Word
from layerlab.studies.work import Arrays, Draw

if TYPE_CHECKING:
    from layerlab.measures.subject import Subject

PLAIN = "llama"
WORDS = "llama"
TEXT = "python-docs"
CONTEXT, BATCH, RATE = 128, 8, 3e-3
# Held-out blocks: of 128 tokens, enough to read a dimension at a width of 64.
HELD = 16
SIZES: dict[str, Any] = {"layers": 6, "width": 64, "updates": 300}
FAST: dict[str, Any] = {"layers": 2, "width": 32, "updates": 10}
DOMAINS = {
    "layers": Domain(kind=int, least=1, most=100),
    "width": Domain(kind=int, least=16, most=1024),
    "updates": Domain(kind=int, least=1, most=1_000_000),
}
ABOUT = (
    "Every model is trained here: on Python's documentation, one rate and one course of it for "
    "all, batches of 8 passages of 128 tokens, the same ones in the same order for all models of a "
    "seed; the feed-forward gives up as many parameters as an arm adds. Intervals are Student's "
    "over the seeds, paired."
)
# By columns of `collapse_depth.depths`.
SHOWN = (
    ("residual", "Share of the features that differs between tokens", "||JX|| / ||X||"),
    ("dimension", "Effective dimension", "d(0.8), as a share of the width"),
)
Parts = Mapping[str, Arrays]
# Where training keeps its choices there is room for one run in a process.
_ALONE = Lock()


@dataclass(frozen=True)
class Twin:
    """A trained model.

    Attributes:
        nats: on held-out text, per token.
        held: passages of that text.
    """

    subject: "Subject"
    nats: float
    held: Tensor


def recipe(arm: str, seed: int, *, layers: int, width: int, updates: int) -> Any:
    """What one model is trained by; the plain one beside it says how many parameters it has."""
    from layerlab.training.recipe import recipe_of

    return recipe_of(
        {
            "name": "twin",
            "model": {
                "width": width,
                "layers": layers,
                "heads": 4,
                "context": CONTEXT,
                "options": {"head": "untied"},
            },
            "data": {"sources": [{"text": TEXT}], "tokenizer": WORDS},
            "train": {"updates": updates, "batch": BATCH, "rate": RATE},
            "evaluate": {"every": updates, "blocks": HELD, "batch": HELD},
            "compare": {
                "baseline": PLAIN,
                "arms": list(dict.fromkeys([PLAIN, arm])),
                "seeds": [seed],
                "match": "parameters",
            },
            "run": {"model": False, "checkpoint": updates},
        }
    )


def taught(arm: str, seed: int, **sizes: int) -> Twin:
    """Train one model of a variant; all of a seed start and go on with the same numbers."""
    # Late: a list of studies needs nothing that trains.
    from layerlab.experiment import prepared
    from layerlab.measures.subject import subject
    from layerlab.training.loop import Training
    from layerlab.training.watch import Silent
    from layerlab.training.words import loaded_words

    with _ALONE, TemporaryDirectory() as folder:
        task = prepared(recipe(arm, seed, **sizes), Path(folder), progress=False)
        (run,) = [one for one in task.runs if one.arm == arm]
        training = Training(run, task.corpus, task.folder(run), Silent())
        training.start()
        while not training.done:
            training.advance()
        nats = float(training.finish()["nats"])
        (blocks,) = training.held.batches(HELD)
    found = subject(training.model.eval(), tokenizer=loaded_words(WORDS))
    return Twin(found, nats, blocks.inputs.clone())


def readings(draw: Draw, arm: str, **sizes: int) -> dict[str, Tensor]:
    """One batch of seeds: loss, and by layer what of the features differs and its dimension."""
    from layerlab.studies.collapse_depth import depths

    seeds = torch.randint(2**31, (draw.count,), generator=draw.generator).tolist()
    twins = [taught(arm, seed, **sizes) for seed in seeds]
    return {
        "nats": torch.tensor([one.nats for one in twins], dtype=torch.float64),
        "layers": torch.stack([depths(one.subject, one.held) for one in twins]),
    }


def over_seeds(ours: np.ndarray, theirs: np.ndarray, comparisons: int = 1) -> Interval:
    """Mean difference of two arms with its interval, seed by seed.

    Args:
        comparisons: that are to be right together.
    """
    from layerlab.training.statistics import Level, paired

    level = Level(confidence=1 - 0.05 / comparisons)
    found = paired(ours.tolist(), theirs.tolist(), level)
    assert found.mean is not None
    # Seeds that agree to the last bit leave no spread.
    low, high = (found.mean if end is None else end for end in (found.low, found.high))
    return Interval(found.mean, low, high)


def ratio(ours: np.ndarray, theirs: np.ndarray, comparisons: int = 1) -> Interval:
    """Geometric mean of the quotients of two arms with its interval, seed by seed."""
    found = over_seeds(np.log(ours), np.log(theirs), comparisons)
    value, low, high = np.exp([found.value, found.low, found.high]).tolist()
    return Interval(value, low, high)


def judged(found: Interval, asked: float) -> Word:
    """Whether a number is above what was asked for."""
    return "holds" if found.low > asked else "fails" if found.high < asked else "not decided"


def rows(parts: Parts) -> Iterator[dict[str, Any]]:
    """For a table: every seed of every arm, layer by layer."""
    for arm, part in parts.items():
        for seed, layers in enumerate(part["layers"]):
            for layer, (residual, dimension) in enumerate(layers):
                yield {
                    "arm": arm,
                    "seed": seed,
                    "nats": float(part["nats"][seed]),
                    "layer": layer,
                    "relative residual": float(residual),
                    "d(0.8) / width": float(dimension),
                }


def drawn(parts: Parts, column: int) -> Picture:
    """One quantity by layer, and the range of the seeds."""
    lines = []
    for kind, (arm, part) in enumerate(parts.items()):
        found = part["layers"][..., column]
        lines.append(
            Curve(
                name=arm,
                x=list(range(found.shape[1])),
                y=found.mean(0).tolist(),
                kind=kind,
                low=found.min(0).tolist(),
                high=found.max(0).tolist(),
            )
        )
    name, title, y = SHOWN[column]
    return curves(
        name,
        f"{title}, trained (mean of seeds, and their range)",
        lines,
        x="layer, 0 behind the embedding",
        y=y,
        log="",
    )
