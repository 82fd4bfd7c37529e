"""Writes a campaign and its ideas down, before there are runs."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.ledger.campaign import (
    DIGITS,
    LOSS,
    SCREEN,
    Campaign,
    CampaignTerms,
    Direction,
    IdeaTrial,
    TrialStage,
    replay,
)
from layerlab.ledger.chain import FILE, append_line, begin_chain, hold_ledger, read_chain
from layerlab.logs.directions import is_higher_better
from layerlab.recipes.compared_measures import parse_measure
from layerlab.records.json_values import json_text
from layerlab.system.files import check_file, resolve
from layerlab.validation import find_twice, short_repr
from layerlab.version import VERSION

STEPS = "steps"


def begin_campaign(folder: Path, terms: CampaignTerms) -> Campaign:
    """Write the first line of a ledger.

    Raises:
        UserError: a number means nothing, or the folder has a ledger or cannot be written.
    """
    check_name(terms.baseline, "--baseline")
    for name, value in (("--fdr", terms.fdr), ("--alpha", terms.alpha)):
        if not 0 < value < 1:
            raise UserError(f"{name} is {value:g}; expected a number between 0 and 1")
    if not terms.never and terms.alpha > terms.fdr:
        raise UserError(
            f"--alpha is {terms.alpha:g}, above --fdr, which is {terms.fdr:g}; expected at most "
            "that: where nothing works all that is adopted is false"
        )
    if terms.at is not None and not math.isfinite(terms.at):
        raise UserError(f"--at is {terms.at:g}; expected a step, or leave it out")
    if terms.last < 1:
        raise UserError(f"--last is {terms.last}; expected 1 or more readings")
    content = {"kind": "campaign", "layerlab": VERSION, "terms": asdict(terms)}
    check_file(folder / FILE)
    with hold_ledger(folder):
        return replay(begin_chain(resolve(folder), content))


def find_better(column: str | None, higher: bool | None) -> Direction:
    """Return which way a column is better: as it is said, or else as its name says.

    Raises:
        UserError: neither says it.
    """
    if higher is None and column is not None:
        higher = is_higher_better(column)
    if higher is None:
        raise UserError(
            f"whether more of {short_repr(column)} is better is told by no word of its name; type "
            f"--loss {column}=lower or --loss {column}=higher"
        )
    return "higher" if higher else "lower"


def declare_trial(
    folder: Path,
    idea: str,
    *,
    says: str | None,
    seeds: Sequence[int],
    measure: str | None,
    confirm: bool,
) -> IdeaTrial:
    """Write down what is tried with which seeds, and the level that p has to reach.

    Raises:
        UserError: the idea is there already, or is not there to be confirmed; seeds or a measure
            mean nothing; seeds of a confirmation were used before.
    """
    check_name(idea, "IDEA")
    chosen = _check_seeds(seeds)
    read_chain(folder)  # before a lock is left beside what is no ledger
    with hold_ledger(folder):
        chain = read_chain(folder)
        campaign = replay(chain)
        if idea == campaign.terms.baseline:
            raise UserError(f"{short_repr(idea)} is the baseline of this campaign; name an idea")
        if confirm:
            earlier = _check_confirmation(campaign, idea, chosen, measure)
            stage: TrialStage = "confirmation"
            level, judged, text = (
                campaign.next_level,
                earlier.measure,
                says or earlier.says,
            )
        else:
            stage, level = "screening", SCREEN
            judged = _check_measure(measure or LOSS, campaign.terms)
            text = _check_new(campaign, idea, says)
        content: dict[str, Any] = {
            "kind": "trial",
            "idea": idea,
            "stage": stage,
            "seeds": list(chosen),
            "level": level,
            "measure": judged,
            "says": json_text(" ".join(text.split())),
        }
        return replay(append_line(chain, content)).find(idea)[-1]


def check_name(name: str, what: str) -> None:
    """Refuse a name that is empty or cannot be printed.

    Raises:
        UserError: it is.
    """
    if name != name.strip() or not name or not name.isprintable() or len(name) > 200:
        raise UserError(f"{what} is {short_repr(name)}; expected a name, as the logs have it")


def _check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    twice = find_twice(map(str, seeds))
    if twice is not None:
        raise UserError(f"--seeds has {twice} twice; leave one out")
    if any(one >= 10**DIGITS for one in seeds):
        raise UserError(f"--seeds has a number of more than {DIGITS} digits; expected 64 bits")
    if len(seeds) < 2 or any(one < 0 for one in seeds):
        raise UserError(
            f"--seeds is {short_repr(','.join(map(str, seeds)))}; expected two or more, as 1,2,3: "
            "one run cannot say how much of a difference is chance"
        )
    return tuple(int(one) for one in seeds)


def _check_measure(name: str, terms: CampaignTerms) -> str:
    """Return the name of a measure that a log can give.

    Raises:
        UserError: there is none of this name, or it is not one of scores.
    """
    if name == LOSS:
        return name
    with suppress(ValueError):
        if parse_measure(name).kind == STEPS:
            if terms.better == "higher":
                raise UserError(
                    f"--measure {name} is for what is better the lower it is, and {terms.loss} is "
                    "not; leave it out"
                )
            return name
    raise UserError(
        f"--measure is {short_repr(name)}; expected loss, or steps:2.5 for the steps to a loss of "
        "2.5"
    )


def _check_new(campaign: Campaign, idea: str, says: str | None) -> str:
    """Return what is changed by an idea that is not there yet.

    Raises:
        UserError: it is there, or nothing is said of it.
    """
    if idea in campaign.ideas:
        earlier = campaign.find(idea)[0]
        raise UserError(
            f"the idea {short_repr(idea)} was written down on {earlier.time}, and stays as it is; "
            "give a new one a name of its own, or type --confirm for fresh runs of this one"
        )
    if says is None or not says.strip():
        raise UserError(
            f"nothing is said of {short_repr(idea)}; type --says with what is changed, in a "
            "sentence"
        )
    return says


def _check_confirmation(
    campaign: Campaign, idea: str, seeds: Sequence[int], measure: str | None
) -> IdeaTrial:
    """Return the last trial of an idea that may be confirmed.

    Raises:
        UserError: it is not there, waits for its verdict or has a final one, or a seed or the
            measure will not do.
    """
    last = campaign.find(idea)[-1]
    if last.verdict is None:
        raise UserError(
            f"the runs of {short_repr(idea)} with seeds {list_seeds(last.seeds)} are not judged "
            f"yet; type layerlab ledger judge {campaign.folder} {idea} LOGS"
        )
    if last.verdict.verdict != "undecided":
        raise UserError(
            f"{short_repr(idea)} is {last.verdict.verdict} already, which stays; there is nothing "
            "to confirm"
        )
    if measure not in (None, last.measure):
        raise UserError(
            f"{short_repr(idea)} was written down to be judged by {last.measure}, and stays so; "
            "leave out --measure"
        )
    used = {seed: campaign.used_seeds[seed] for seed in seeds if seed in campaign.used_seeds}
    if used:
        uses = ", ".join(f"{seed} for {name}" for seed, name in used.items())
        raise UserError(
            f"a confirmation needs seeds that no run of this campaign had, and these were used "
            f"before: {uses}; type others, such as {max(campaign.used_seeds) + 1}"
        )
    return last


def list_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as they are typed."""
    return ",".join(map(str, seeds))
