"""Campaigns of ideas against one baseline: written down before, judged after, nothing deleted."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path

from layerlab.errors import UserError
from layerlab.ledger.campaign import Campaign, CampaignTerms, IdeaTrial, IdeaVerdict, replay
from layerlab.ledger.chain import read_chain, wait_for_writer
from layerlab.ledger.declare import begin_campaign, declare_trial, find_better
from layerlab.ledger.table import list_facts
from layerlab.logs.directions import split_direction
from layerlab.logs.read import find_logs, read_logs
from layerlab.logs.training_log import LogColumns
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.campaign import save_campaign
from layerlab.system.files import File
from layerlab.validation import join_words
from layerlab.version import VERSION

# Options that decide what is judged, which nobody may choose once there are runs.
_TERMS = re.compile(r"--(at|last|loss)\b")


def create_ledger(
    folder: File,
    *,
    baseline: str,
    fdr: float = 0.1,
    alpha: float = 0.05,
    never: bool = False,
    loss: str | None = None,
    at: float | None = None,
    last: int = 1,
) -> Campaign:
    """Begin a campaign: many ideas that are held against one baseline, one after the other.

    An idea is adopted where a confirmation on fresh seeds reaches the level that it had when it was
    written down. The levels are those of LORD++: of all that is adopted a share of `fdr` is false
    on average at most, and where nothing works anything is adopted with a probability of `alpha`.

    Args:
        folder: for the ledger, which is two files.
        baseline: arm that every idea is judged against, as the logs name it.
        fdr: that share.
        alpha: that probability.
        never: spend alpha instead, by online fallback: it is then the probability of any false
            adoption, whatever else works, and less is found.
        loss: column that is judged: a loss, found by its usual names if left out, or a score;
            "latency=lower" or "own=higher" where no word of its name says which way is better.
        at: judge at this step; at the last one if left out.
        last: judge the mean of so many readings.

    Raises:
        UserError: a number means nothing, nothing says which way a column is better, or the folder
            has a ledger or cannot be written.
    """
    column, higher = (None, False) if loss is None else split_direction(loss, "--loss")
    terms = CampaignTerms(
        baseline=baseline,
        fdr=fdr,
        alpha=alpha,
        never=never,
        loss=column,
        at=at,
        last=last,
        better=find_better(column, higher),
    )
    return begin_campaign(Path(folder), terms)


def add_idea(
    folder: File,
    idea: str,
    *,
    seeds: Sequence[int],
    says: str | None = None,
    measure: str | None = None,
    confirm: bool = False,
) -> IdeaTrial:
    """Write an idea down before its runs, or fresh runs that are to confirm it.

    The first runs of an idea claim nothing and cost nothing of what the campaign may err; they say
    whether a confirmation is worth its runs.

    Args:
        folder: of the ledger.
        idea: its name, as the logs will have it.
        seeds: of its runs and the baseline's; of a confirmation none that was used before.
        says: what is changed.
        measure: loss, or steps:2.5 for the steps to a loss of 2.5; the loss if left out.
        confirm: write a confirmation down, for an idea whose runs are judged.

    Raises:
        UserError: there is no ledger, or a changed one; the idea is there already, or is not there
            to be confirmed; seeds were used before; there is no such measure.
    """
    return declare_trial(
        Path(folder), idea, says=says, seeds=seeds, measure=measure, confirm=confirm
    )


def judge_idea(
    folder: File,
    idea: str,
    logs: File | Iterable[File],
    *,
    arm: str | None = None,
    seed: str | None = None,
    step: str | None = None,
    line: str | None = None,
    name: str | None = None,
) -> IdeaVerdict:
    """Judge an idea by its runs and the baseline's, and write the verdict down, once.

    Args:
        folder: of the ledger.
        idea: whose last runs are judged.
        logs: files and folders, read as `judge` reads them; runs of other arms are passed over.
        arm: column that says what a run tries; its path where no column does.
        seed: column that tells the runs of an arm apart, as for `arm`.
        step: column that readings are ordered by.
        line: regular expression of a line of plain text, with groups named step and loss; where
            these stand in lines of their own, "A|B", and a loss is of the last step above it.
        name: regular expression of a path, with groups named arm and seed.

    Raises:
        UserError: there is no ledger, or a changed one; the idea is not there; runs are missing, or
            have seeds that were not declared; it was judged with other runs.
    """
    from layerlab.ledger.judge import judge_trial  # imports torch, and the others need none

    path = Path(folder)
    campaign = read_ledger(path)
    campaign.find(idea)  # before logs are read, which may be many
    loss = campaign.terms.loss
    columns = LogColumns(arm=arm, seed=seed, loss=loss, step=step, line=line, name=name)
    given = [logs] if isinstance(logs, str | PathLike) else list(logs)
    with _explain_terms():
        found = list(read_logs(find_logs([fspath(one) for one in given], columns.name), columns))
        return judge_trial(path, idea, found, columns)


@contextmanager
def _explain_terms() -> Iterator[None]:
    """Say of options that a message names and judging has not where they are given.

    Raises:
        UserError: with that.
    """
    try:
        yield
    except UserError as error:
        if (named := _TERMS.search(str(error))) is None:
            raise
        raise UserError(
            f"{error}; {named[0]} is given to layerlab ledger new and holds for a whole campaign: "
            "begin another one with it, or give logs that fit this one"
        ) from None


def read_ledger(folder: File, *, out: File | None = None, lang: str = ENGLISH) -> Campaign:
    """Read a ledger: ideas tried, adopted, refuted and undecided, and what is left to spend.

    Args:
        folder: of the ledger.
        out: folder for a page of it, campaign.json and pictures; none is written without it.
        lang: language of the page.

    Raises:
        UserError: there is no ledger, or a line of it was changed, removed or moved; the folder
            for the page holds something else, or cannot be written.
    """
    language(lang)  # an unknown one is refused before the work is done
    path = Path(folder)
    chain = read_chain(path)
    if chain.cut:  # another process may be writing this line
        wait_for_writer(path)
        chain = read_chain(path)
    campaign = replay(chain)
    if out is not None:
        argv = ["layerlab", "ledger", "status", fspath(folder), "--out", fspath(out)]
        beside = {"layerlab": VERSION, "said": list_facts(campaign), "command": join_words(argv)}
        save_campaign({**campaign.to_dict(), **beside}, Path(out), lang)
    return campaign
