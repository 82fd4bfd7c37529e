"""One run as somebody's trainer logged it, and what a user says of the columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Columns that count updates, whatever a tracker calls them, and others that order readings. W&B's
# own, `_step`, counts what was logged where its user said nothing.
UPDATES = (
    *("step", "global_step", "steps", "update", "iteration", "iter", "current_steps"),
    *("train/global_step", "trainer/global_step", "it", "_step"),
)
ROWS = "rows"  # are counted where nothing else orders them
STEPS = (*UPDATES, "tokens", "epoch")
# Columns that count the tokens of all updates so far, with a tracker's folders before them.
TOKENS = (
    *("tokens", "num_tokens", "total_tokens", "tokens_seen", "n_tokens_seen", "consumed_tokens"),
    *("num_input_tokens_seen", "train_tokens"),
)
ARMS, SEEDS = ("arm", "variant"), ("seed",)
# Columns that name runs, and those that say which text a row is of, with what they say.
RUNS = ("run", "run_id", "run_name", "run_uuid", "runid", "trial", "trial_id")
PARTS = (
    *("split", "phase", "mode", "stage", "subset", "partition", "set"),
    *("type", "kind", "event", "dataset", "domain", "task"),
)
# What a loss is of, as a line or a row says it, and as the name of the loss has it.
TEXTS = {
    **{one: one for one in ("train", "training", "valid", "validation", "evaluation", "dev")},
    **{"val": "val", "validate": "val", "validating": "val"},
    **{"eval": "eval", "evaluate": "eval", "evaluating": "eval", "test": "test", "testing": "test"},
    **dict.fromkeys(("held", "heldout", "holdout"), "held_out"),
    "vali": "val",
}


@dataclass(frozen=True, kw_only=True)
class LogColumns:
    """Columns of a log that are judged; one that is None is looked for under usual names.

    Attributes:
        arm: column that names what a run tries; else the path does.
        seed: column that tells the runs of an arm apart.
        loss: column that is judged.
        step: column that readings are ordered by.
        line: regular expression of a line of plain text, with groups named step and loss; a loss
            without a step in its line is of the last one above it.
        name: regular expression of a path, with groups named arm and seed.
    """

    arm: str | None = None
    seed: str | None = None
    loss: str | None = None
    step: str | None = None
    line: str | None = None
    name: str | None = None

    @property
    def word_names(self) -> frozenset[str]:
        """Columns, in lower case, that name runs, whatever their values look like."""
        given = [one.lower() for one in (self.arm, self.seed) if one is not None]
        return frozenset((*ARMS, *SEEDS, *RUNS, *given))


@dataclass(frozen=True, kw_only=True)
class TrainingLog:
    """The readings of one run.

    Attributes:
        place: file that it stands in.
        seed: as it stands there; None where nothing tells.
        steps: rising.
        losses: as many; not finite where that was logged.
        loss_name: what they are called there.
        step_name: column that the steps are of; where there is none, rows are counted.
        mean: whether the loss is the mean over the whole run, as the train_loss of Trainer is.
        config: what the run was started with, where that lies beside; empty where it does not.
        settings: as much of that as columns of its table tell.
        diverged: why the run itself says that it diverged; None where it does not.
        finished: whether the run has come to its end; None where nothing tells.
        again: readings of steps that were logged again, as a resumed run does; the last counts.
        blank: step of a row behind its last reading that has no loss; None where there is none.
        cut: whether its file ends within a line or a record, as where it is still being written.
        planned: steps that its trainer was to make; None where nothing tells.
        beside: what else may be a loss; beside one on held-out text, what may be another.
        resumed: step of the last row where others before it are further on, as of a run that went
            back and did not come as far again, or of steps that begin anew with each epoch.
        words: columns of its readings that hold several words, as of several texts.
        passed: logs of the same run that were not read, of another kind than this one.
        empty: whether it has no reading at all, and not even one that is no number.
        tokens: learned from in an update, in the mean; None where nothing tells.
        updates: up to its last reading, where something else than these orders them; None where
            nothing tells.
        filtered: step from which its gradients are no number, so that its losses count as none
            either, whatever was logged; None where they are.
    """

    place: str
    arm: str
    seed: str | None
    steps: np.ndarray
    losses: np.ndarray
    loss_name: str
    step_name: str = UPDATES[0]
    mean: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    diverged: str | None = None
    finished: bool | None = None
    again: int = 0
    blank: float | None = None
    cut: bool = False
    planned: int | None = None
    beside: tuple[str, ...] = ()
    resumed: float | None = None
    words: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    empty: bool = False
    tokens: float | None = None
    filtered: float | None = None
    updates: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the run in its comparison."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"
