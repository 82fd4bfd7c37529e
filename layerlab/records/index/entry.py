"""One line of the index, and what every kind of entry is read by."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from layerlab.records.parse import check_digest, read_json

FINISHED, RUNNING, INTERRUPTED = "finished", "running", "interrupted"
DIVERGED, DAMAGED = "diverged", "damaged"
# Characters of a name or a headline that are kept.
LONGEST = 300

Content = TypeVar("Content", bound=BaseModel)


@dataclass(frozen=True)
class Summary:
    """Findings of a reader in a folder."""

    name: str
    state: str
    headline: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run, a comparison, a report, an evaluation, an adaptation, a study or a campaign.

    Attributes:
        kind: which of them.
        name: of the run or the recipe; the models of a report.
        state: "finished", "running", "interrupted", "diverged" or "damaged".
        headline: its number or its verdict; of what is damaged, the reason.
        folder: relative to the folder of the index, with slashes.
        page: its page, relative too; None where there is none.
        changed: when it was written last, in UTC.
    """

    kind: str
    name: str
    state: str
    headline: str
    folder: str
    page: str | None
    changed: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        return {**asdict(self), "changed": self.changed.isoformat()}


@dataclass(frozen=True)
class Kind:
    """A kind of entry: the way it is recognized and read.

    Attributes:
        name: of the kind.
        files: that it consists of; the first of them that is there dates it.
        page: name of its page.
        matches: tells from the names in a folder whether there is one.
        read: what it says.
    """

    name: str
    files: tuple[str, ...]
    page: str
    matches: Callable[[frozenset[str]], bool]
    read: Callable[[Path], Summary]


class Table(BaseModel):
    """A table of a file; what is not declared may stand there too."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def read_table(file: Path, expected: type[Content]) -> Content:
    """Read a file as the table that is expected.

    Raises:
        OSError, ValueError, UserError: it cannot be read, is no JSON, another table, or not what
            was written.
    """
    return expected.model_validate(check_digest(read_json(file)))


def one_line(text: str) -> str:
    r"""Return a text on one line, no longer than an entry's.

    Example:
        >>> one_line("a\n  b")
        'a b'
    """
    return " ".join(text[: 4 * LONGEST].split())[:LONGEST]


def count_verdicts(verdicts: Iterable[str], labels: Mapping[str, tuple[str, str]]) -> str:
    """Return how many verdicts there are of each word.

    Args:
        labels: what a sentence says of one, and of several, by word.

    Example:
        >>> count_verdicts(["fails", "odd", "fails"], {"fails": ("1 fails", "{count} fail")})
        '2 fail, odd: 1'
    """
    return ", ".join(
        labels[word][count > 1].format(count=count) if word in labels else f"{word}: {count}"
        for word, count in Counter(verdicts).items()
    )


def moment(seconds: float) -> datetime:
    """Return a time stamp of a file as a time, without parts of a second."""
    return datetime.fromtimestamp(int(seconds), UTC)
