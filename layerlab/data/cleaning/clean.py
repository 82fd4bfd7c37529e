"""Documents cleaned: normalised, filtered, each kept once, and a report of what went and why."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from layerlab.console.tables import add_title, grid, printable
from layerlab.data.cleaning.deduplication import ExactDuplicates, NearDuplicates
from layerlab.data.cleaning.quality_filters import low_quality
from layerlab.data.cleaning.repetition_filters import LIMITS
from layerlab.data.normal_form import normal_form
from layerlab.data.sources import TextChunk, open_source, to_source
from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import CleanSection
from layerlab.recipes.training_sections import Source
from layerlab.system.files import OnlyOwn, write_folder

TEXT, REPORT = "text.jsonl", "report.json"
SAMPLES = 3
EXCERPT = 120
# Units of a run, for the similarity of documents.
SHINGLE = 5
_HALF = re.compile("[\ud800-\udfff]")


# What keeps every document as it is.
KEEP_ALL = CleanSection(
    unicode_form="none",
    min_chars=0,
    max_chars=10**15,
    max_broken_ratio=1,
    max_symbol_ratio=1,
    min_word_ratio=0,
    max_bullet_ratio=1,
    max_ellipsis_ratio=1,
    max_repeated_ratio=1,
    repetition=False,
    exact_dedup=False,
    near_duplicate_threshold=0,
)


@dataclass(kw_only=True)
class RemovedTexts:
    """The texts that were removed for one reason.

    Attributes:
        documents: how many.
        bytes: of their text, as it was read; of one that is too long, up to where it was read.
        samples: of the first of them: the document's number, why in words, how it begins.
    """

    documents: int = 0
    bytes: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CleaningResult:
    """The counts of texts kept and removed.

    Attributes:
        name: of the source that was really read.
        documents: that were read; the first has number 1.
        bytes: of their text.
        kept: documents that are left.
        kept_bytes: of their text.
        changed: of those that are left, how many were rewritten by normalisation.
        removed: by reason.
        rules: by which it was done.
        notes: what the reader has to know.
        file: with the documents that are left, where they were written.
    """

    name: str
    documents: int
    bytes: int
    kept: int
    kept_bytes: int
    changed: int
    removed: dict[str, RemovedTexts]
    rules: CleanSection
    notes: tuple[str, ...] = ()
    file: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything except where the result lies."""
        content = {name: value for name, value in vars(self).items() if name != "file"}
        content["removed"] = {reason: asdict(one) for reason, one in self.removed.items()}
        rules = self.rules.model_dump(mode="json", exclude={"general", "benchmarks"})
        limits = LIMITS.to_dict() if self.rules.repetition else None
        return content | {"rules": {**rules, "repetition": limits}, "notes": list(self.notes)}

    def table(self) -> Any:
        """Return a table for a terminal."""
        rows = [("read", f"{self.documents:,}", f"{self.bytes:,}", "")]
        for reason, one in self.removed.items():
            first = one.samples[0]
            example = f"{first['document']}: {first['why']}: {printable(first['text'], 48)}"
            rows.append((reason, f"{one.documents:,}", f"{one.bytes:,}", example))
        example = f"{self.changed:,} rewritten by {self.rules.unicode_form}" if self.changed else ""
        rows.append(("left", f"{self.kept:,}", f"{self.kept_bytes:,}", example))
        headings = ("", "documents", "bytes", "for example")
        return add_title(f"{self.name}, cleaned", grid(headings, rows, ("", "for example")))


class Cleaner:
    """Cleans documents as they come; of those that are kept, hashes and sketches stay in memory."""

    def __init__(self, rules: CleanSection = CleanSection()) -> None:
        """Take the rules.

        Raises:
            UserError: near duplicates are asked for, and datasketch is not installed.
        """
        self.rules = rules
        self.removed: dict[str, RemovedTexts] = {}
        self.documents = self.bytes = self.kept = self.kept_bytes = self.changed = 0
        self._exact = ExactDuplicates() if rules.exact_dedup else None
        near = rules.near_duplicate_threshold
        self._near = NearDuplicates(near, SHINGLE) if near else None

    def clean(self, pieces: Iterable[TextChunk]) -> Iterator[str]:
        """Yield the documents that are left, in their order."""
        for text, complete in _documents(pieces, self.rules.max_chars):
            self.documents += 1
            size = len(text.encode(errors="replace"))
            self.bytes += size
            form: Any = self.rules.unicode_form
            normal = text if form == "none" else normal_form(form, text)
            why = self._reason(normal, complete)
            if why is not None:
                self._remove(*why, text, size)
                continue
            self.kept += 1
            self.kept_bytes += len(normal.encode())
            self.changed += normal != text
            yield normal

    def report(
        self, name: str, notes: tuple[str, ...] = (), file: Path | None = None
    ) -> CleaningResult:
        """Return the report of what has been read so far."""
        return CleaningResult(
            name=name,
            documents=self.documents,
            bytes=self.bytes,
            kept=self.kept,
            kept_bytes=self.kept_bytes,
            changed=self.changed,
            removed=self.removed,
            rules=self.rules,
            notes=notes,
            file=file,
        )

    def _reason(self, text: str, complete: bool) -> tuple[str, str] | None:
        rules = self.rules
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
        if self._exact is not None:
            same = self._exact.place(text, self.documents)
            if same is not None:
                return "exact duplicate", f"the same as {same}"
        if self._near is not None:
            near = self._near.place(text, self.documents)
            if near is not None:
                return "near duplicate", f"{near[1]:.2f} of {near[0]}"
        return None

    def _remove(self, reason: str, why: str, text: str, size: int) -> None:
        one = self.removed.setdefault(reason, RemovedTexts())
        one.documents += 1
        one.bytes += size
        if len(one.samples) < SAMPLES:
            begins = text[:EXCERPT].encode(errors="replace").decode()
            one.samples.append({"document": self.documents, "why": why, "text": begins})


def clean(
    source: Source | str | Path, out: Path, rules: CleanSection = CleanSection()
) -> CleaningResult:
    """Clean a source into a folder: `text.jsonl` with what is left, `report.json` with the rest.

    The rules apply in this order, and the first that a document breaks is its reason: too long, too
    short, broken characters, symbols, repetition, exact duplicate, near duplicate. Of copies the
    first is kept.

    Raises:
        UserError: the source cannot be read, nothing is left of it, or the folder holds files.
    """
    given = source if isinstance(source, Source) else to_source(str(source))
    text, cleaner = open_source(given), Cleaner(rules)

    def fill(folder: Path) -> None:
        with (folder / TEXT).open("w", encoding="utf-8") as file:
            for one in cleaner.clean(limit_text(text.pieces(), given.limit)):
                file.write(json.dumps({"text": one}, ensure_ascii=False) + "\n")
        if not cleaner.kept:
            reasons = ", ".join(f"{one.documents} {why}" for why, one in cleaner.removed.items())
            raise UserError(
                f"nothing is left of {text.name} ({reasons or 'it holds no text'}) after cleaning; "
                "relax the rules, such as min_chars, or give another text"
            )
        report = cleaner.report(text.name, text.notes).to_dict()
        (folder / REPORT).write_text(
            json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )

    write_folder(out, fill, "cleaned text", OnlyOwn())
    return cleaner.report(text.name, text.notes, out / TEXT)


def limit_text(pieces: Iterable[TextChunk], limit: int | None) -> Iterator[TextChunk]:
    """Yield text up to so many bytes; the last document may be cut."""
    left = limit
    for text, first in pieces:
        if left is not None:
            data = text.encode(errors="surrogatepass")
            if len(data) >= left:
                yield TextChunk(data[:left].decode(errors="ignore"), first)
                return
            left -= len(data)
        yield TextChunk(text, first)


def _documents(pieces: Iterable[TextChunk], longest: int) -> Iterator[tuple[str, bool]]:
    """Yield each document and whether it is whole; if it is too long, only its beginning."""
    parts: list[str] = []
    size = 0
    for text, first in pieces:
        if first and parts:
            yield "".join(parts), size <= longest
            parts, size = [], 0
        if size <= longest:
            parts.append(text)
            size += len(text)
    if parts:
        yield "".join(parts), size <= longest
