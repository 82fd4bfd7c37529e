"""One document held against the rules of cleaning: the work that many cores can share."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from layerlab.data.cleaning.deduplication import hash_words, sketch
from layerlab.data.cleaning.process_map import map_in_processes
from layerlab.data.cleaning.quality_filters import low_quality
from layerlab.data.cleaning.repetition_filters import LIMITS
from layerlab.data.normal_form import normal_form
from layerlab.recipes.adaptation_sections import CleanSection

EXCERPT = 120
# Units of a run, for the similarity of documents.
SHINGLE = 5
# Characters that go to a process together: one to three seconds of work.
BATCH = 1 << 20
_HALF = re.compile("[\ud800-\udfff]")
# A text, and whether it is whole.
BoundedText = tuple[str, bool]


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """One document, held against all rules but those on duplicates.

    Attributes:
        text: normalized; empty where it is removed.
        beginning: of the text as it was read.
        size: of the text as it was read, in bytes.
        changed: whether normalization rewrote it.
        reason: it is removed for, and the same in words; None where it stays.
        words: a hash, for exact duplicates.
        sketch: for near duplicates; None where it has no run.
    """

    text: str
    beginning: str
    size: int
    changed: bool
    reason: tuple[str, str] | None
    words: bytes = b""
    sketch: Any = None


def assess_all(documents: Iterable[BoundedText], rules: CleanSection) -> Iterator[Assessment]:
    """Yield the assessment of each document in order; a long source is shared among all cores."""
    found = map_in_processes(partial(_assess_batch, rules=rules), _batches(documents))
    return chain.from_iterable(found)


def _batches(documents: Iterable[BoundedText]) -> Iterator[list[BoundedText]]:
    batch: list[BoundedText] = []
    size = 0
    for one in documents:
        batch.append(one)
        size += len(one[0])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _assess_batch(documents: list[BoundedText], rules: CleanSection) -> list[Assessment]:
    return [_assess(text, complete, rules) for text, complete in documents]


def _assess(text: str, complete: bool, rules: CleanSection) -> Assessment:
    form: Any = rules.unicode_form
    normal = text if form == "none" else normal_form(form, text)
    reason = _reason(normal, complete, rules)
    beginning = text[:EXCERPT].encode(errors="replace").decode()
    size = len(text.encode(errors="replace"))
    if reason is not None:
        return Assessment(text="", beginning=beginning, size=size, changed=False, reason=reason)
    return Assessment(
        text=normal,
        beginning=beginning,
        size=size,
        changed=normal != text,
        reason=None,
        words=hash_words(normal) if rules.exact_dedup else b"",
        sketch=sketch(normal, SHINGLE) if rules.near_duplicate_threshold else None,
    )


def _reason(text: str, complete: bool, rules: CleanSection) -> tuple[str, str] | None:
    length = sum(map(len, text.split()))
    if not complete:
        return "too long", f"more than {rules.max_chars:,} characters"
    if length < rules.min_chars or not length:
        return "too short", f"{length} characters < {max(1, rules.min_chars)}"
    if _HALF.search(text):
        return "broken", "half of a surrogate pair"
    if poor := low_quality(text, rules):
        return poor
    if rules.repetition and (passed := LIMITS.find_exceeded(text)):
        return "repetition", passed
    return None
