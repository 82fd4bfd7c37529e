"""Words in every line of a text log beside its numbers: those before the step, a unit."""

import json
import logging
import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BEFORE, UNIT = "words before the step", "unit of the loss"
SAID = "said"  # under which a table keeps them
# Words of a line that change with the time or with what it is about, and not with what is read.
PASSING = frozenset(
    one.lower()
    for one in (*month_name, *month_abbr, *day_name, *day_abbr, *logging.getLevelNamesMapping())
) | {"am", "pm", "utc", "t", "z", "e", "i", "w", "d"}
WORD = re.compile(r"[^\W\d_][^\W_]*")
# What ran it and what is counted, and nothing of what was read.
OTHER = re.compile(
    r"(rank|gpu|cuda|node|host|worker|device|proc(ess)?|pid|local|global)\d*|(step|iter(ation)?)s?"
)
COUNTED = ("nat", "bit", "dit", "hartley")
# Behind a number, and not the name of the next one.
BEHIND = re.compile(
    r"\W{0,2}\b(?P<unit>nats?|bits?|dits?|hartleys?|bp[bcwt]|ppl|perplexity)\b"
    r"(?P<per>\s*(?:/|per)\s*[a-z]+)?(?!\s*[:=]|\s+[-+]?\.?\d)",
    re.IGNORECASE,
)


def describe_line(before: str, behind: Iterable[str], arm: str) -> dict[str, str]:
    """Return what a line says beside its numbers.

    Args:
        before: what stands before its step.
        behind: what stands behind each of its losses.
        arm: of the run, whose words name nothing else.
    """
    own = {*PASSING, *WORD.findall(arm.lower())}
    units = dict.fromkeys(filter(None, map(find_unit, behind)))
    return {BEFORE: list_before(before, own), UNIT: " ".join(units)}


def list_before(before: str, passing: Collection[str]) -> str:
    """Return the words of a line before its step, but for those that pass and those of a place.

    Example:
        >>> list_before("2026-11-28 INFO [c4] rank0: ", PASSING)
        'c4'
    """
    words = (one for one in WORD.findall(before.lower()) if one not in passing)
    return " ".join(one for one in words if not OTHER.fullmatch(one))


def find_unit(behind: str) -> str:
    """Return the unit that stands behind a number, or nothing.

    Example:
        >>> [find_unit(one) for one in (" bits/byte", " nats, lr", " bpb: 1.2", " | 3")]
        ['bits/byte', 'nats', '', '']
    """
    found = BEHIND.match(behind)
    if found is None:
        return ""
    per = re.sub(r"\s*(/|per)\s*", "/", (found["per"] or "").lower())
    unit = found["unit"].lower().removesuffix("s")
    return (f"{unit}s" if unit in COUNTED else unit) + per


def keep_common_words(table: "pa.Table", lines: Iterable[Mapping[str, str]]) -> "pa.Table":
    """Return a table that keeps what all of these lines say alike."""
    seen: dict[str, set[str]] = {}
    for line in lines:
        for name, value in line.items():
            seen.setdefault(name, set()).add(value)
    values = {name: next(iter(one)) for name, one in seen.items() if len(one) == 1}
    return table.replace_schema_metadata({SAID: json.dumps(values)})


def read_common_words(table: "pa.Table") -> dict[str, str]:
    """Return what a table keeps of the lines that it was read from."""
    kept = (table.schema.metadata or {}).get(SAID.encode(), b"{}")
    return dict(json.loads(kept))
