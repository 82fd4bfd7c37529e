"""A study in the index: the words of its verdicts."""

from collections import Counter
from pathlib import Path

from layerlab.records.index.entry import FINISHED, Kind, Summary, Table, read_table

DATA = "study.json"


class _Verdict(Table):
    word: str


class _Study(Table):
    study: str
    verdicts: list[_Verdict]


def read(folder: Path) -> Summary:
    """Read a study."""
    content = read_table(folder / DATA, _Study)
    counts = Counter(one.word for one in content.verdicts)
    words = ", ".join(f"{word}: {count}" for word, count in counts.items())
    return Summary(content.study, FINISHED, words or "no verdict")


KIND = Kind("study", (DATA,), "study.html", lambda names: DATA in names, read)
