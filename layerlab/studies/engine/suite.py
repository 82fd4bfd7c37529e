"""All studies in turn, each in a folder of its own, and the page that says what holds."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from layerlab.console.tables import grid
from layerlab.errors import Interrupted, UserError
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.claims import count_words, render
from layerlab.report.views.text import prose
from layerlab.studies.engine import crash_report
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import COLOURS, StudyResult
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.sampling import RUNS, cores
from layerlab.system import files
from layerlab.system.own_page import is_own_page
from layerlab.version import VERSION

PAGE = "what-holds.html"


@dataclass(frozen=True, kw_only=True)
class SuiteStudy:
    """A study of the suite: what it found, or why it found nothing."""

    name: str
    record: StudyResult | None = None
    error: str = ""

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Return every claim that was judged."""
        return [] if self.record is None else self.record.verdicts


@dataclass(frozen=True, kw_only=True)
class Suite:
    """All studies with their verdicts, and the page of them.

    Attributes:
        page: where the page stands.
    """

    parts: Sequence[SuiteStudy]
    page: Path

    @property
    def failed(self) -> list[str]:
        """Return the studies that came to no verdict."""
        return [part.name for part in self.parts if part.record is None]

    def table(self) -> Group:
        """Return the summary for a terminal: a line for each study, and how many claims hold."""
        table = grid(
            ("study", "verdict", "claims", "seconds"),
            [_line(part) for part in self.parts],
            wrapped=("study", "verdict"),
        )
        counts = count_words([_content(part) for part in self.parts])
        summary = "".join(
            f"claims of {whose}: {', '.join(f'{word}: {counts[own][word]}' for word in COLOURS)}\n"
            for own, whose in ((False, "the sources"), (True, "our own"))
        )
        errors = [Text(f"{part.name}: {part.error}", "red") for part in self.parts if part.error]
        text = f"{summary}The page: {prose(files.from_here(self.page))}"
        return Group(table, *errors, Text(text))


def every(
    *,
    out: str | Path,
    progress: bool = True,
    lang: str = ENGLISH,
    **settings: Any,
) -> Suite:
    """Run every study of the package; what an earlier call has finished is kept.

    A study that cannot be run is named with its reason, and does not keep the others from theirs;
    where it broke off unforeseen, the traceback is left in its folder.

    Args:
        out: folder that gets one of each study, and the page what-holds.html.
        progress: show a live bar on standard error.
        lang: language of all pages.
        settings: as of `study`: runs, fast, seed, threads, restart.

    Raises:
        UserError: the folder cannot be written, or there is no page in this language.
    """
    language(lang)  # an unknown one is refused before the work is done
    folder, settings = Path(out), {**settings, "progress": progress, "lang": lang}
    _check_page(folder)
    parts = [_part(name, out=folder / name, **settings) for name in studies()]
    page = render([_content(part) for part in parts], lang, provenance=_make(parts, settings))
    _check_page(folder)
    files.write_file(folder / PAGE, page)
    return Suite(parts=parts, page=(folder / PAGE).resolve())


def _check_page(folder: Path) -> None:
    if (folder / PAGE).exists() and not is_own_page(folder / PAGE):
        raise UserError(
            f"{folder} holds a {PAGE} that is no page of layerlab; move it away, or name another "
            "folder with --out"
        )


def _part(name: str, **settings: Any) -> SuiteStudy:
    try:
        return SuiteStudy(name=name, record=study(name, **settings))
    except UserError as error:
        return SuiteStudy(name=name, error=str(error))
    except Interrupted:
        raise
    except Exception as error:  # an unattended night goes on
        return SuiteStudy(name=name, error=crash_report.report_crash(error, settings["out"]))


def _content(part: SuiteStudy) -> Mapping[str, Any]:
    declared = studies()[part.name]
    return {
        "study": part.name,
        "title": declared.title,
        "source": declared.source,
        "verdicts": part.verdicts,
        "error": part.error,
        **_draw(part.record),
    }


def _draw(record: StudyResult | None) -> dict[str, Any]:
    if record is None:
        return {}
    content = record.to_dict()
    return {"draws": record.settings["draws"], **{n: content[n] for n in ("unit", "created")}}


def _make(parts: Sequence[SuiteStudy], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mode, time, machine and command for the page.

    What was finished before had its own threads.
    """
    fast, threads = bool(settings.get("fast")), settings.get("threads")
    argv = ["layerlab", "study", "--all", *["--fast"] * fast]
    for name, usual in (("seed", 0), ("runs", RUNS)):
        if (value := settings.get(name, usual)) != usual:
            argv += [f"--{name}", str(value)]
    found = {one["threads"]: None for part in parts for one in _machines(part)}
    return {
        "fast": fast,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "layerlab": VERSION,
        "system": platform.platform(),
        "threads": ", ".join(map(str, found)) or str(threads or cores()),
        "command": shlex.join(argv),
    }


def _machines(part: SuiteStudy) -> list[dict[str, Any]]:
    return [] if part.record is None else [part.record.to_dict()["machine"]]


def _line(part: SuiteStudy) -> tuple[str | Text, ...]:
    if part.record is None:
        return part.name, Text("could not be run", "red"), "", ""
    word, spent = part.record.verdict, part.record.to_dict()["time"]
    return (
        part.name,
        Text(word, COLOURS[word]),
        str(len(part.verdicts)),
        f"{spent['wall seconds']:.0f}",
    )
