"""A campaign of ideas in the index: its ledger, or a page of it, by what became of the ideas."""

from pathlib import Path

from layerlab.records.index.entry import FINISHED, Kind, Summary, Table
from layerlab.records.parse import json_of, read_json
from layerlab.system.files import read_whole

LEDGER, DATA = "ledger.jsonl", "campaign.json"


class _CampaignTerms(Table):
    baseline: str


class _JudgedIdea(Table):
    idea: str
    verdict: str


class _LedgerLine(Table):
    kind: str
    terms: _CampaignTerms | None = None
    idea: str | None = None
    verdict: _JudgedIdea | None = None


class _CountedIdea(Table):
    verdict: str


class _CampaignPage(_CampaignTerms):
    ideas: list[_CountedIdea]


def matches(names: frozenset[str]) -> bool:
    """Tell the folder of a campaign by its ledger, or by the numbers of a page of it."""
    return LEDGER in names or DATA in names


def read(folder: Path) -> Summary:
    """Read a campaign; whether a ledger is as it was written is told where it is judged."""
    if not (folder / LEDGER).exists():
        # Its digest is that of the ledger, whose file is elsewhere.
        page = _CampaignPage.model_validate(read_json(folder / DATA))
        return _summarize(folder, page.baseline, [one.verdict for one in page.ideas])
    baseline, words = "", dict[str, str]()
    # What stands behind the last line break was cut off while it was written.
    for content in read_whole(folder / LEDGER).split(b"\n")[:-1]:
        line = _LedgerLine.model_validate(json_of(content.decode()))
        if line.terms is not None:
            baseline = line.terms.baseline
        elif line.verdict is not None:
            words[line.verdict.idea] = line.verdict.verdict
        elif line.idea is not None:
            words[line.idea] = "undecided"
    if not baseline:
        raise ValueError("it has no baseline")
    return _summarize(folder, baseline, list(words.values()))


def _summarize(folder: Path, baseline: str, words: list[str]) -> Summary:
    tried = "1 idea" if len(words) == 1 else f"{len(words)} ideas"
    adopted, refuted, undecided = (words.count(one) for one in ("adopted", "refuted", "undecided"))
    headline = (
        f"{tried} against {baseline}: {adopted} adopted, {refuted} refuted, {undecided} undecided"
    )
    return Summary(folder.resolve().name, FINISHED, headline)


KIND = Kind("campaign", (LEDGER, DATA), "report.html", matches, read)
