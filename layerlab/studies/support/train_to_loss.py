"""Two placements of the norm, each at a rate of its own, trained until both have one loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.code_hash import fingerprint
from layerlab.studies.engine.sampling import StudyContext
from layerlab.studies.engine.scale import models
from layerlab.studies.support import small_models
from layerlab.studies.support.feature_statistics import depths
from layerlab.studies.support.passages import for_each_attention
from layerlab.studies.support.stored_readings import Shapes, check_shapes, find_readings

# They differ in nothing else: both have a norm before the head.
ARMS = {"pre-norm": "gpt1-pre-norm", "post-norm": "gpt1"}
OPTIONS = {"head": "untied", "final_norm": "layer"}
# Fixed before any run: the range in which models of this size are trained.
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
# Its seed is that of no draw.
SWEEP = 0
WARMUP = 20
# Evaluations of a sweep: two in a row are a thirtieth of its updates apart.
EVALUATIONS = 30
# Of a sweep, where the target is set: a seed that is slower has as much time again, and more.
EARLY = 0.75
LONGER = 2
KIND = "equal-loss"
TrialOutcome = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training.

    Attributes:
        target: nats at which it stops; a trial of the sweep has none and goes on to its end.
    """

    arm: str
    seed: int
    rate: float
    target: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingContest:
    """The outcome of all runs.

    Attributes:
        rates: that each arm was given.
        sweep: last loss by arm and rate.
        runs: what was found of every seed of every arm.
    """

    target: float
    rates: Mapping[str, float]
    sweep: Mapping[str, Mapping[float, float]]
    runs: Mapping[str, Sequence[TrialOutcome]]


def recipe(trial: Trial, *, layers: int, width: int, updates: int) -> Any:
    """Return the recipe of a model, whose constant learning rate lets a run stop anywhere."""
    from layerlab.recipes.training import make_recipe

    every = max(1, updates // EVALUATIONS)
    span = updates if trial.target is None else LONGER * updates
    return make_recipe(
        {
            "name": KIND,
            "model": {
                "width": width,
                "layers": layers,
                "heads": 4,
                "context": small_models.CONTEXT,
            },
            "data": {"sources": [{"text": small_models.TEXT}], "tokenizer": small_models.WORDS},
            "train": {
                "max_steps": span,
                "batch_size": small_models.BATCH,
                "learning_rate": trial.rate,
                "lr_scheduler_type": "constant",
                "warmup_steps": min(WARMUP, updates // 2),
            },
            "evaluate": {
                "eval_steps": every,
                "max_eval_blocks": small_models.HELD,
                "batch_size": small_models.HELD,
            },
            "compare": {
                "arms": [{"name": trial.arm, "variant": ARMS[trial.arm], "options": OPTIONS}],
                "seeds": [trial.seed],
            },
            "run": {"save_model": False, "save_steps": span},
        }
    )


def train_one(trial: Trial, **sizes: int) -> TrialOutcome:
    """Train one model to its target or its end, and read the model there.

    Gives the updates and losses of all evaluations, whether the target was reached, and by layer
    the quantities of `feature_statistics` and the norm of attention.
    """
    asked = recipe(trial, **sizes)
    with small_models.begin_training(asked, trial.arm) as training:
        curve: list[tuple[int, float]] = []
        reached = False
        while not training.done and not reached:
            training.advance()
            if training.update % asked.evaluate.eval_steps == 0 or training.done:
                assert training.score is not None
                curve.append((training.update, float(training.score.nats)))
                reached = trial.target is not None and curve[-1][1] <= trial.target
        subject, held = small_models.read_trained(training)
    found: TrialOutcome = {"curve": curve, "reached": reached}
    if trial.target is not None:
        found |= {"layers": depths(subject, held).tolist(), "norms": norms(subject, held)}
    return found


def norms(subject: Any, ids: torch.Tensor) -> list[float]:
    """Return the spectral norm of attention by layer, mean over heads and passages."""
    from layerlab.measures.quantities.spectrum import spectrum

    found: dict[int, list[torch.Tensor]] = {}

    def read(layer: Any) -> None:
        found.setdefault(layer.layer, []).append(spectrum(layer.attention).norm.mean())

    for_each_attention(subject, ids, read)
    return [float(torch.stack(found[layer]).mean()) for layer in sorted(found)]


def locate_readings(runs: Path, trial: Trial, **sizes: int) -> Path:
    """Return the file for the readings of a model; another recipe or target has another file."""
    key = recipe(trial, **sizes).hash()[:8]
    until = "sweep" if trial.target is None else f"{trial.target:.2f}"
    return find_readings(runs) / f"{KIND}-{trial.arm}-s{trial.seed}-{until}-{key}.json"


def gather_trials(context: StudyContext) -> tuple[TrainingContest, tuple[str, ...]]:
    """Gather all trials, with notes for the reader.

    Readings that lie among the runs are taken from there. Others are trained for and left there;
    the fast mode trains small models for them instead, and leaves nothing.
    """
    sizes = {name: context.options[name] for name in small_models.SIZES}
    seeds = small_models.seeds_of(context)
    if context.watcher is not None:
        context.watcher.begin(context.study, len(ARMS) * (len(RATES) + len(seeds)))
    small, other = False, list[Trial]()
    origin = {} if context.fast else {"text": small_models.text_identity()}
    origin |= {"code": fingerprint(__name__)}
    try:
        found = run_contest(partial(_fetch, context, origin, other, sizes), seeds)
    except FileNotFoundError:
        if not context.fast:
            raise
        found = run_contest(lambda trial: train_one(trial, **small_models.FAST), seeds)
        small = True
    used = small_models.FAST if small else sizes
    size = small_models.parameters(ARMS["pre-norm"], layers=used["layers"], width=used["width"])
    updates = [one["curve"][-1][0] for runs in found.runs.values() for one in runs]
    context.judged = {
        "scale": models(
            [size], [small_models.BATCH * small_models.CONTEXT * one for one in updates]
        )
    }
    notes = small_models.notes_on(
        context.done, context.kept, small=small, other=0 if small else len(other)
    )
    return found, tuple(notes)


def run_contest(fetch: Callable[[Trial], TrialOutcome], seeds: Sequence[int]) -> TrainingContest:
    """Find a learning rate for each arm and a target for both, then run every seed."""
    curves = {
        arm: {rate: fetch(Trial(arm=arm, seed=SWEEP, rate=rate))["curve"] for rate in RATES}
        for arm in ARMS
    }
    sweep = {
        arm: {rate: curve[-1][1] for rate, curve in found.items()} for arm, found in curves.items()
    }
    rates = {arm: min(found, key=lambda rate: found[rate]) for arm, found in sweep.items()}
    target = goal([curves[arm][rate] for arm, rate in rates.items()])
    runs = {
        arm: [fetch(Trial(arm=arm, seed=seed, rate=rate, target=target)) for seed in seeds]
        for arm, rate in rates.items()
    }
    return TrainingContest(target=target, rates=rates, sweep=sweep, runs=runs)


def goal(curves: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Return the loss, in hundredths of nats, that all curves reach by three quarters of their way.

    Example:
        >>> goal([[(3, 2.0), (4, 1.0)], [(3, 2.5), (4, 2.4)]])
        2.5
    """
    least = [
        min(nats for update, nats in curve if update <= max(curve[0][0], EARLY * curve[-1][0]))
        for curve in curves
    ]
    return -(-round(100 * max(least), 6) // 1) / 100


def _fetch(
    context: StudyContext,
    origin: Mapping[str, str],
    other: list[Trial],
    sizes: Mapping[str, int],
    trial: Trial,
) -> TrialOutcome:
    """Return what an earlier training on this text by this code left.

    Where there is none, the model is trained now and its readings are left there. In the fast mode
    whatever text and code will do, and nothing is trained.

    Args:
        other: takes the trials that other code made.

    Raises:
        FileNotFoundError: none did, in the fast mode.
    """
    file = locate_readings(context.runs, trial, **sizes)
    found = read_kept(file, partial(_check, trial))
    if found is None and context.fast:
        raise FileNotFoundError(file)
    kept = found is not None and (context.fast or origin.items() <= found.items())
    if found is None or not kept:
        found = train_one(trial, **sizes)
        write_kept(file, {**found, "sizes": sizes, **origin})
    elif found.get("code") != origin["code"]:
        other.append(trial)
    context.done, context.kept = context.done + 1, context.kept + kept
    if context.watcher is not None:
        context.watcher.step(f"{trial.arm}, seed {trial.seed}, rate {trial.rate:g}")
    return found


def _check(trial: Trial, found: TrialOutcome) -> None:
    shapes: Shapes = {"curve": (None, 2), "reached": ()}
    if trial.target is not None:
        shapes = {**shapes, "layers": (None, 2), "norms": (None,)}
    check_shapes(found, shapes)
