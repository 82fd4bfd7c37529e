"""Documents cleaned: normalized, filtered, each kept once, and a report of what went and why."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from layerlab.console.progress import ProgressCallback
from layerlab.console.tables import add_title, grid, printable
from layerlab.data.cleaning.assessment import Assessment, BoundedText, assess_all
from layerlab.data.cleaning.deduplication import NearDuplicates
from layerlab.data.cleaning.repetition_filters import LIMITS
from layerlab.data.sources import TextChunk, open_source, to_source
from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import CleanSection
from layerlab.recipes.training_sections import Source
from layerlab.system.files import OnlyOwn, write_folder

TEXT, REPORT = "text.jsonl", "report.json"
SAMPLES = 3
# Documents kept between two reports of progress.
TOLD = 500

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
        changed: of those that are left, how many were rewritten by normalization.
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
        self._exact: dict[bytes, int] = {}
        near = rules.near_duplicate_threshold
        self._near = NearDuplicates(near) if near else None

    def clean(self, pieces: Iterable[TextChunk]) -> Iterator[str]:
        """Yield the documents that are left, in their order."""
        for one in assess_all(_documents(pieces, self.rules.max_chars), self.rules):
            self.documents += 1
            self.bytes += one.size
            reason = one.reason or self._find_copy(one)
            if reason is not None:
                self._remove(*reason, one)
                continue
            self.kept += 1
            self.kept_bytes += len(one.text.encode())
            self.changed += one.changed
            yield one.text

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

    def _find_copy(self, one: Assessment) -> tuple[str, str] | None:
        """Return of which document this is a copy, as a reason and in words; None where it is new.

        A new one is remembered.
        """
        number = self.documents
        if self.rules.exact_dedup and (same := self._exact.setdefault(one.words, number)) != number:
            return "exact duplicate", f"the same as {same}"
        if self._near is not None and one.sketch is not None:
            near = self._near.place(one.sketch, number)
            if near is not None:
                return "near duplicate", f"{near[1]:.2f} of {near[0]}"
        return None

    def _remove(self, reason: str, why: str, document: Assessment) -> None:
        one = self.removed.setdefault(reason, RemovedTexts())
        one.documents += 1
        one.bytes += document.size
        if len(one.samples) < SAMPLES:
            place = {"document": self.documents, "why": why, "text": document.beginning}
            one.samples.append(place)


def clean(
    source: Source | str | Path,
    out: Path,
    rules: CleanSection = CleanSection(),
    tell: ProgressCallback | None = None,
) -> CleaningResult:
    """Clean a source into a folder: `text.jsonl` with what is left, `report.json` with the rest.

    The rules apply in this order, and the first that a document breaks is its reason: too long, too
    short, broken characters, symbols, repetition, exact duplicate, near duplicate. Of copies the
    first is kept.

    Args:
        tell: is told how much was read.

    Raises:
        UserError: the source cannot be read, nothing is left of it, or the folder holds files.
    """
    given = source if isinstance(source, Source) else to_source(str(source))
    text, cleaner = open_source(given), Cleaner(rules)

    def fill(folder: Path) -> None:
        with (folder / TEXT).open("w", encoding="utf-8") as file:
            for one in cleaner.clean(limit_text(text.pieces(), given.limit)):
                file.write(json.dumps({"text": one}, ensure_ascii=False) + "\n")
                if tell is not None and cleaner.kept % TOLD == 0:
                    tell(f"reading {text.name}, {cleaner.documents:,} documents so far", 0.0)
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


def _documents(pieces: Iterable[TextChunk], longest: int) -> Iterator[BoundedText]:
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
