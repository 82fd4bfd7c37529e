"""The corpora that the source was made of: what they are, whose, and how to get them."""

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "catalog.toml"


@dataclass(frozen=True, kw_only=True)
class KnownCorpus:
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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


@cache
def list_corpora() -> tuple[KnownCorpus, ...]:
    """Return all corpora, in the order of the source.

    Source: pangu23, section 6.1.

    Example:
        >>> sum(entry.domain == "finance" for entry in list_corpora())
        2
    """
    content = tomllib.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return tuple(KnownCorpus(**{**one, "feeds": tuple(one["feeds"])}) for one in content["corpus"])


def table() -> Any:
    """Return a table for a terminal: a row for each corpus, what is known of it line by line."""
    from rich.table import Table

    found = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    found.add_column(style="bold", no_wrap=True)
    found.add_column()
    for one in list_corpora():
        facts = {
            "what for": f"{one.domain}, {one.stage} ({one.language})",
            "id": one.id,
            "size": one.size,
            "licence": one.license,
            "get": one.get,
            "feeds": "; ".join(one.feeds),
            "source": one.source,
        }
        lines = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
        found.add_row(one.name, lines)
    return found
