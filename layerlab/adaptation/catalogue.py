"""The corpora that the source was made of: what they are, whose, and how to get them."""

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "catalogue.toml"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A corpus; what nobody has confirmed is said to be so.

    Attributes:
        name: as the source calls it.
        domain: finance or law.
        stage: that it was used in.
        id: where it lies.
        language: zh or en.
        size: as its owners give it.
        license: of the corpus, not of a model made with it.
        get: how to get it, or to read it here.
        feeds: benchmarks whose questions it holds, or may hold.
        source: of all this.
    """

    name: str
    domain: str
    stage: str
    id: str
    language: str
    size: str
    license: str
    get: str
    feeds: tuple[str, ...]
    source: str

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


@cache
def catalogue() -> tuple[Entry, ...]:
    """All corpora, in the order of the source.

    Source: pangu23, section on YunShan's data.

    Example:
        >>> [entry.name for entry in catalogue() if entry.domain == "finance"]
        ['FinCorpus', 'TuShare']
    """
    content = tomllib.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return tuple(Entry(**{**one, "feeds": tuple(one["feeds"])}) for one in content["corpus"])


def table() -> Any:
    """For a terminal."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 1, 0))
    for heading in ("corpus", "id", "size", "licence", "how to get it", "feeds"):
        found.add_column(heading, overflow="fold")
    for one in catalogue():
        head = f"{one.name}\n{one.domain}, {one.language}\n{one.stage}"
        found.add_row(head, one.id, one.size, one.license, one.get, "; ".join(one.feeds))
    return found
