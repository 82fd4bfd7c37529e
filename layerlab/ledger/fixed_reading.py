"""The step and measure that an idea is judged by: its first runs fix them, later ones must fit.

Whoever looks at runs that go on, and judges them at the step or by the loss that looks good, adopts
what is no better, whatever the level of the confirmation is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from layerlab.errors import UserError
from layerlab.experiments.log_values import JudgedStep, find_end
from layerlab.ledger.campaign import LOSS, Campaign, CampaignTerms, IdeaTrial, IdeaVerdict
from layerlab.logs.directions import is_higher_better
from layerlab.logs.training_log import LogColumns, TrainingLog
from layerlab.recipes.compared_measures import parse_measure
from layerlab.validation import short_repr

_READ = {
    "loss": "the loss",
    "step": "what counts steps",
    "line": "--line",
    "window": "of what steps it is the mean",
}


def fix_reading(
    campaign: Campaign, trial: IdeaTrial, logs: Sequence[TrainingLog], columns: LogColumns
) -> tuple[JudgedStep, dict[str, str]]:
    """Return at which step runs are judged, and what is judged there by the names in their logs.

    Raises:
        UserError: it is a score that nobody named, or not what the first runs were judged by.
    """
    _refuse_scores(campaign.terms, logs)
    _refuse_empty(logs)
    verdicts = [one.verdict for one in campaign.find(trial.idea)]
    # Those of earlier versions do not say by what they judged.
    first = next((one for one in verdicts if one is not None and one.step is not None), None)
    judged, read = _choose_step(campaign.terms, trial, first), _describe_read(logs, columns)
    if first is not None:
        _refuse_unlike(first, read, tuple(read))
    if judged.last > 1:
        read["window"] = _describe_window(logs[0], judged, find_end(logs, judged))
    if first is not None:
        _refuse_unlike(first, read, tuple(_READ))
    return judged, read


def _refuse_scores(terms: CampaignTerms, logs: Sequence[TrainingLog]) -> None:
    """Refuse scores that nobody named, in a campaign that takes what it finds for a loss.

    Raises:
        UserError: there is one.
    """
    if terms.loss is not None and terms.better is not None:
        return
    for one in logs:
        if is_higher_better(one.loss_name):
            raise UserError(
                f"{short_repr(one.loss_name)} ({one.place}) is better the higher it is, and what "
                "is judged is better the lower it is; name a loss, or an error rate, or type "
                f"--loss {one.loss_name}=higher"
            )


def _refuse_empty(logs: Sequence[TrainingLog]) -> None:
    """Refuse runs without a reading: that a cell is empty does not say that a run diverged.

    Raises:
        UserError: there is one.
    """
    for one in logs:
        if one.empty:
            raise UserError(
                f"{one.name} ({one.place}) has no reading of {short_repr(one.loss_name)}; write "
                "nan where it diverged, and else the losses of all runs in one column"
            )


def _describe_read(logs: Sequence[TrainingLog], columns: LogColumns) -> dict[str, str]:
    read = {
        "loss": ", ".join(sorted({one.loss_name for one in logs})),
        "step": ", ".join(sorted({one.step_name for one in logs})),
    }
    return read if columns.line is None else {**read, "line": columns.line}


def _describe_window(log: TrainingLog, judged: JudgedStep, end: float) -> str:
    """Return the steps of the readings whose mean is judged, which all runs have to share."""
    return ", ".join(f"{step:g}" for step in log.steps[log.steps <= end][-judged.last :])


def _refuse_unlike(first: IdeaVerdict, read: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse to judge an idea by something else than its first runs.

    Args:
        names: of what is compared.

    Raises:
        UserError: it would be.
    """
    for name, called in ((one, _READ[one]) for one in names):
        then, now = first.read.get(name), read.get(name)
        if then != now:
            raise UserError(
                f"{called} is {_show(now)} for these logs, and was {_show(then)} when "
                f"{short_repr(first.idea)} was first judged; its other runs are judged by the "
                "same: give logs that have it, or begin an idea of another name"
            )


def _show(given: str | None) -> str:
    return "left out" if given is None else short_repr(given)


def _choose_step(terms: CampaignTerms, trial: IdeaTrial, first: IdeaVerdict | None) -> JudgedStep:
    target = None if trial.measure == LOSS else parse_measure(trial.measure).loss
    judged = JudgedStep(at=terms.at, last=terms.last, nan_diverged=True, target=target)
    if terms.at is not None or first is None:
        return judged
    way = (
        f"{short_repr(trial.idea)} was first judged at this step, and its other runs are too: "
        "go on to it, or begin an idea of another name"
    )
    return replace(judged, at=first.step, way=way)
