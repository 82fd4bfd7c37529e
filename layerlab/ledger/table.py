"""A campaign as text for a terminal."""

from typing import TYPE_CHECKING

from layerlab.console.tables import grid
from layerlab.experiments.statistics.differences import Level, detectable
from layerlab.ledger.campaign import Campaign, IdeaTrial, count_seeds, find_next, find_word
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
    return grid(headings, rows, wrapped=("idea", "seeds", "says"))


def describe_campaign(campaign: Campaign) -> str:
    """Return what is known and what is left, in lines of sentences."""
    lines = [*list_facts(campaign), f"digest: {campaign.digest}"]
    return "\n".join([*lines, *([campaign.remark] if campaign.remark else [])])


def list_facts(campaign: Campaign) -> list[str]:
    """Return what was tried, what is promised and what is left, each in a sentence."""
    terms, count = campaign.terms, campaign.count()
    promise = (
        f"anything false is adopted with a probability of {terms.alpha:g} at most"
        if terms.never
        else f"a share of {terms.fdr:g} of what is adopted is false at most, on average"
    )
    words = (
        f"{count['adopted']} adopted, {count['refuted']} refuted, {count['undecided']} undecided"
    )
    ideas = len(campaign.ideas)
    tried = f"{ideas} idea" if ideas == 1 else f"{ideas} ideas"
    return [
        f"{tried} against {terms.baseline}: {words}; {promise}",
        f"wealth left: {campaign.wealth:.4g} after {campaign.tests} confirmations; the level of "
        f"the next one: {campaign.next_level:.2g}",
        _describe_seeds(campaign),
    ]


def _describe_seeds(campaign: Campaign) -> str:
    first, fresh = campaign.needed_seeds
    return (
        "a gain of 1 standard deviation of the differences is found with a probability of 80 % by "
        f"{_amount(first)} first seeds and by {_amount(fresh)} fresh ones in the next confirmation"
    )


def _amount(seeds: int | None) -> str:
    return "more than a million" if seeds is None else f"{seeds:,}"


def describe_trial(trial: IdeaTrial) -> str:
    """Return what was written down, and what so many seeds can find."""
    count = len(trial.seeds)
    # One-sided at the level: two-sided at twice that.
    level = Level(confidence=1 - 2 * trial.level)
    effect = detectable(count**-0.5, count - 1, level)
    return (
        f"{trial.idea} is written down ({trial.stage}) with seeds {list_seeds(trial.seeds)}, to be "
        f"judged by {trial.measure} at a level of {trial.level:.2g}: so many seeds find a gain of "
        f"{effect:.2g} standard deviations of the differences with a probability of 80 %"
        + (f"; {_amount(count_seeds(trial.level))} find one of 1" if effect > 1 else "")
    )
