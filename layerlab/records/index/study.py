"""A study in the index: how many of its claims hold, fail, or are not decided."""

from pathlib import Path

from layerlab.records.index.entry import FINISHED, Kind, Summary, Table, count_verdicts, read_table

DATA = "study.json"
# What is said of one claim, and of several.
SAID = {
    "holds": ("1 claim holds", "{count} claims hold"),
    "smaller than asked": (
        "1 claim is right by less than was asked",
        "{count} claims are right by less than was asked",
    ),
    "fails": ("1 claim fails", "{count} claims fail"),
    "not decided": ("1 claim is not decided", "{count} claims are not decided"),
}


class _Verdict(Table):
    word: str


class _Study(Table):
    study: str
    verdicts: list[_Verdict]


def read(folder: Path) -> Summary:
    """Read a study."""
    content = read_table(folder / DATA, _Study)
    counted = count_verdicts((one.word for one in content.verdicts), SAID)
    return Summary(content.study, FINISHED, counted or "no verdict")


KIND = Kind("study", (DATA,), "study.html", lambda names: DATA in names, read)
