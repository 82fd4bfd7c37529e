"""The report of an inspection that goes on, saved in case the next model fails."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT

from layerlab.errors import Interrupted, UserError
from layerlab.report.i18n.language import ENGLISH
from layerlab.report.results.report import Report
from layerlab.system.files import from_here, resolve

# Seconds between two saves: the page of fifty models takes some, and each has one model more.
PAUSE = 60.0


class UnfinishedReport:
    """Saves the report of the finished models beside the folder that was asked for."""

    def __init__(self, folder: Path, lang: str = ENGLISH) -> None:
        target = resolve(folder)
        self.folder = target.with_name(f"{target.name}-unfinished")
        self.lang = lang
        self.report: Report | None = None
        self.saved: float | None = None
        self.begun = time.monotonic()

    def keep(self, report: Report) -> None:
        """Hold the report in case of need, and save it now and then: a process may be killed."""
        self.report = report
        if time.monotonic() - (self.saved or self.begun) >= PAUSE:
            with suppress(UserError):  # which ends no inspection
                self.save(report)

    def save(self, report: Report) -> None:
        """Save the report now.

        Raises:
            UserError: it cannot be saved.
        """
        report.save(self.folder, lang=self.lang)
        self.saved = time.monotonic()

    def explain(self, report: Report) -> str:
        """Save the report, and return where it is in words, or why it is not."""
        count = len(report.models)
        begun = f"{count} models were" if count > 1 else "1 model was"
        try:
            self.save(report)
        except UserError as error:
            return f"{begun} finished before, and the report is lost: {error}"
        return f"{begun} finished before: the report is in {from_here(self.folder)}"


@contextmanager
def keep_finished(folder: Path, lang: str = ENGLISH) -> Iterator[Callable[[Report], None]]:
    """Yield a function that takes the report of the finished models, saved where the rest fails.

    Raises:
        UserError: the rest failed; it says where the finished models are.
        Interrupted: likewise.
    """
    finished = UnfinishedReport(folder, lang)
    try:
        yield finished.keep
    except BaseException as error:
        if finished.report is None:
            raise
        where = finished.explain(finished.report)
        if isinstance(error, UserError):
            raise UserError(f"{error}; {where}") from error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            code = getattr(error, "code", 128 + SIGINT)
            raise Interrupted(f"interrupted; {where}", code) from None
        raise
    if finished.saved is not None:
        shutil.rmtree(finished.folder, ignore_errors=True)
