"""A campaign as text for a terminal."""

from typing import TYPE_CHECKING

from layerlab.console.tables import grid
from layerlab.ledger.campaign import Campaign, IdeaTrial, find_next, find_word
from layerlab.ledger.declare import list_seeds

if TYPE_CHECKING:
    from rich.table import Table


def draw_ideas(campaign: Campaign) -> "Table":
    """Return a table of the ideas, in the order in which they were written down."""
    rows = []
    for idea, trials in campaign.ideas.items():
        verdict = trials[-1].verdict
        seeds = "; ".join(list_seeds(one.seeds) for one in trials)
        p = "" if verdict is None else f"{verdict.p:.2g}"
        level = f"{trials[-1].level:.2g}"
        rows.append((idea, find_word(trials), find_next(trials), p, level, seeds, trials[0].says))
    headings = ("idea", "verdict", "next", "p", "level", "seeds", "says")
    return grid(headings, rows, words=("idea", "seeds", "says"))


def describe_campaign(campaign: Campaign) -> str:
    """Return what is known and what is left, in sentences."""
    terms, count = campaign.terms, campaign.count()
    promise = (
        f"anything false is adopted with a probability of {terms.alpha:g} at most"
        if terms.never
        else f"a share of {terms.fdr:g} of what is adopted is false at most, on average"
    )
    words = ", ".join(f"{number} {word}" for word, number in count.items())
    told = [
        f"{len(campaign.ideas)} ideas against {terms.baseline}: {words}; {promise}",
        f"wealth left: {campaign.wealth:.4g} after {campaign.tests} confirmations; the level of "
        f"the next one: {campaign.next_level:.2g}",
        f"digest: {campaign.digest}",
        *([campaign.remark] if campaign.remark else []),
    ]
    return "\n".join(told)


def describe_trial(trial: IdeaTrial) -> str:
    """Return what was written down, and what so many seeds can find."""
    from layerlab.experiments.statistics.differences import Level, detectable

    count = len(trial.seeds)
    # One-sided at the level: two-sided at twice that.
    level = Level(confidence=1 - 2 * trial.level)
    effect = detectable(count**-0.5, count - 1, level)
    return (
        f"{trial.idea} is written down ({trial.stage}) with seeds {list_seeds(trial.seeds)}, to be "
        f"judged by {trial.measure} at a level of {trial.level:.2g}: so many seeds find a gain of "
        f"{effect:.2g} standard deviations of the differences with a probability of 80 %"
    )
